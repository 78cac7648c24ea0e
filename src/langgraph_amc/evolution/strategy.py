"""The settings of an evolution strategy: everything that, with the rewards, fixes every update of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.checks import as_float, at_least, finite, one_of, whole
from langgraph_amc.evolution.errors import HistoryError
from langgraph_amc.evolution.estimator import Baseline, Shaping
from langgraph_amc.evolution.fields import nested
from langgraph_amc.evolution.members import NOISES
from langgraph_amc.evolution.schedules import Constant, Schedule, schedule_from_json, schedule_to_json

if TYPE_CHECKING:
    from langgraph_amc.evolution.noise import NoiseKind

_SEED_BITS = 256


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a population is drawn and how its rewards become an update.

    Attributes
    ----------
    population: members per generation; with ``antithetic`` half as many directions, each tried with both signs.
    sigma: schedule of the perturbation's standard deviation per weight; a number is a constant one.
    alpha: step size as in the paper, constant. ``None`` ties it to sigma: ``alpha_ratio * sigma``, so that a
        perturbation that shrinks takes the step with it, rather than leaving a step of pure noise.
    shaping, baseline: see ``estimator.estimate``.
    trust_region: largest root mean square of a step per weight, in expectation over the noise.
    decay: share of the way back to the starting weights that each generation takes (anchored weight decay,
        arXiv 2605.30148). It needs the starting weights, see ``weights.Weights``.
    noise: ``"rademacher"`` or ``"gaussian"``. rank: r of the low-rank form; ``None`` is the paper's full form.
    """

    population: int = 32
    sigma: Schedule | float = 1e-3
    alpha: float | None = None
    alpha_ratio: float = 0.5
    shaping: Shaping = "z"
    baseline: Baseline = "task"
    antithetic: bool = True
    trust_region: float | None = None
    decay: float = 0.0
    noise: NoiseKind = "rademacher"
    rank: int | None = 1
    seed: int = 0

    def __post_init__(self) -> None:
        whole("population", self.population, 2)
        whole("seed", self.seed, 0)
        if self.seed.bit_length() > _SEED_BITS:
            raise ConfigurationError(f"a seed has at most {_SEED_BITS} bits, got one of {self.seed.bit_length()}")
        one_of("antithetic", self.antithetic, (True, False))
        if self.antithetic and self.population % 2:
            raise ConfigurationError(f"antithetic pairs need an even population, got {self.population}")
        if isinstance(self.sigma, type):
            raise ConfigurationError(f"sigma is a schedule or a number, not a class: give {self.sigma.__name__}(…)")
        if not isinstance(self.sigma, Schedule):
            finite("sigma", self.sigma, above=0)
            object.__setattr__(self, "sigma", Constant(self.sigma))
        if self.alpha is not None:
            finite("alpha", self.alpha, above=0)
        if self.trust_region is not None:
            finite("trust_region", self.trust_region, above=0)
        if self.rank is not None:
            whole("rank", self.rank, 1)
        finite("alpha_ratio", self.alpha_ratio, above=0)
        at_least("decay", self.decay, 0)
        if self.decay >= 1:
            raise ConfigurationError(f"decay is the share of the way back per generation, below 1, got {self.decay}")
        one_of("shaping", self.shaping, ("z", "ranks", "none"))
        one_of("baseline", self.baseline, ("task", "none"))
        one_of("noise", self.noise, NOISES)
        as_float(self, "alpha", "alpha_ratio", "trust_region", "decay")

    @property
    def schedule(self) -> Schedule:
        return self.sigma if isinstance(self.sigma, Schedule) else Constant(self.sigma)

    @property
    def pairs(self) -> int:
        """Directions per generation."""
        return self.population // 2 if self.antithetic else self.population

    def step_size(self, sigma: float) -> float:
        """Alpha of a generation with this sigma."""
        return self.alpha_ratio * sigma if self.alpha is None else self.alpha

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the history keeps it."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"sigma": schedule_to_json(self.schedule)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Strategy:
        """The strategy that ``to_json`` described; raises HistoryError for a damaged field."""
        names = {f.name for f in fields(cls)}
        if odd := sorted(names ^ data.keys()):
            raise HistoryError(f"the field {odd[0]!r} of the strategy is {'missing' if odd[0] in names else 'unknown'}")
        return cls(**(data | {"sigma": schedule_from_json(nested(data, "sigma"))}))
