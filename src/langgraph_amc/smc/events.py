"""What the filter tells its listeners: frozen events, in the order in which things happen.

The algorithm itself does not log, trace, save or print; budget, tracing, journal and report listen to these.
Particles are the population's own objects; indices and arrays of an event refer to its `particles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from langgraph_amc.smc.nodes import TreeNode

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a particle has got to.

    Attributes
    ----------
    reward: cumulative observed reward so far (the total, not the last step's); ignored where failed. NaN where the
        run has ended and what it was worth is missing.
    done: the run has ended by itself (absorbing): it will not be stepped, scored or forked again.
    failed: the run broke; it keeps its record and gets the weight 0.
    late: it is still on its way to the boundary and is not waited for: it is left alone until a later check.
    """

    reward: float
    done: bool
    failed: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Final(Generic[P]):
    """One particle as it ended.

    Attributes
    ----------
    log_weight: unnormalised, nats; −inf where failed.
    reward: cumulative observed reward at its end; NaN where what it was worth is missing.
    last_value: the value function's last score while it was live; None if there is none, or that one is missing.
    done: False only for a run that was stopped from outside before its end.
    """

    particle: P
    log_weight: float
    reward: float
    last_value: float | None
    done: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class FilterResult(Generic[P]):
    """All particles that ended, in the order in which they did.

    Attributes
    ----------
    log_evidence: log Σ w, with E[exp(log_evidence)] = Z = E_π[exp(R/β)] whatever V is; None where the weights
        estimate no evidence: the tempering is solved on the way (`ess_target`), how many particles there are or when
        they end depends on their answers, or earlier states are gone back to.
    tree: of a search, as it stood at the end; empty for the filter.
    """

    finals: tuple[Final[P], ...]
    log_evidence: float | None
    tree: tuple[TreeNode[P], ...] = ()


@dataclass(frozen=True, slots=True)
class Past(Generic[P]):
    """An earlier state of some lineage, to which a resampling may go back.

    Attributes
    ----------
    particle: a copy that stands there; it is never advanced, only forked.
    boundary: where that is.
    log_base, baseline, growth, seen: as in `FilterState`, at that check, of a particle that was weighed there.
    potential: what it was worth then, nats.
    """

    particle: P
    boundary: int
    log_base: float
    growth: float
    potential: float
    seen: float


@dataclass(frozen=True, slots=True)
class FilterState(Generic[P]):
    """Where a filter stands between two checks; `particle_filter(start=…)` goes on from it.

    Attributes
    ----------
    boundary: the last check, 0 before the first.
    live: particles that can still run, in slot order; the arrays have one entry for each.
    finals: those that have ended.
    log_base: log-weight after the particle's last resampling, nats.
    baseline: the potential it had then.
    growth: what its potential had grown by at its last check; times the sharpness, that is what its log-weight
        had grown by since the last resampling.
    seen: its last score, NaN if it was never scored or that score is missing.
    checked: the boundary of its last check: an earlier one than `boundary` where it was late.
    earlier: those that ended in earlier waves of an adaptive population, with their weights among all of them.
    started: particles that were started in those waves.
    pool: earlier states that a resampling may go back to.
    tree: of a search; then some of the live ones wait, and those that run on are `going`.
    """

    boundary: int
    live: tuple[P, ...]
    finals: tuple[Final[P], ...]
    log_base: tuple[float, ...]
    baseline: tuple[float, ...]
    growth: tuple[float, ...]
    seen: tuple[float, ...]
    checked: tuple[int, ...]
    earlier: tuple[Final[P], ...] = ()
    started: int = 0
    pool: tuple[Past[P], ...] = ()
    tree: tuple[TreeNode[P], ...] = ()

    @property
    def going(self) -> tuple[P, ...]:
        """Who runs on from here."""
        pending = tuple(n.particle for n in self.tree if n.status == "pending" and n.particle is not None)
        return pending if self.tree else self.live

    @classmethod
    def fresh(cls, particles: Sequence[P], boundary: int = 0) -> FilterState[P]:
        """Equal weights that sum to 1, and nothing seen yet."""
        n = len(particles)
        zeros = (0.0,) * n
        return cls(boundary, tuple(particles), (), (-math.log(n),) * n, zeros, zeros, (math.nan,) * n, (boundary,) * n)


@dataclass(frozen=True, slots=True)
class Barrier(Generic[P]):
    """Everything up to here is decided: a run that is broken off can go on from this state."""

    state: FilterState[P]


@dataclass(frozen=True, slots=True)
class Advanced(Generic[P]):
    """All live particles but the late ones have reached the boundary, or their end (boundary None: only that)."""

    boundary: int | None
    particles: tuple[P, ...]
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Scored(Generic[P]):
    """The particles still live have got a value each: their estimated future return, NaN where it is missing."""

    boundary: int
    particles: tuple[P, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Weighted(Generic[P]):
    """Everybody who arrived has been weighed; `ess` is a fraction of the live ones, 0 if none is possible."""

    boundary: int | None
    particles: tuple[P, ...]
    log_weights: tuple[float, ...]
    sharpness: float
    ess: float


@dataclass(frozen=True, slots=True)
class Archived(Generic[P]):
    """A particle has ended (finished, failed or stopped) and been set aside with its final weight."""

    boundary: int | None
    final: Final[P]


@dataclass(frozen=True, slots=True)
class Collapsed(Generic[P]):
    """No live particle has a weight above 0: nothing can be resampled, they run on as they are."""

    boundary: int
    particles: tuple[P, ...]


@dataclass(frozen=True, slots=True)
class Withheld(Generic[P]):
    """The schedule fired, but the scores say too little to resample by them: `reason` says why."""

    boundary: int
    particles: tuple[P, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Resampled(Generic[P]):
    """The schedule fired: slot k descends from `particles[ancestors[k]]`.

    Attributes
    ----------
    particles: those compared; earlier states, copies that stand there, come after the live ones.
    past: how many of them are earlier states.
    log_weights_before: of `particles`, unnormalised, sharpness included, earlier states discounted.
    log_weight_after: the one log-weight of every slot.
    """

    boundary: int
    particles: tuple[P, ...]
    ancestors: tuple[int, ...]
    log_weights_before: tuple[float, ...]
    log_weight_after: float
    sharpness: float
    ess: float
    past: int = 0


@dataclass(frozen=True, slots=True)
class Pruned(Generic[P]):
    """A particle that nobody descends from has been dropped."""

    boundary: int | None
    particle: P


@dataclass(frozen=True, slots=True)
class Forked(Generic[P]):
    """A particle chosen more than once has been copied; the original goes on as its own first offspring."""

    boundary: int
    parent: P
    child: P


@dataclass(frozen=True, slots=True)
class Stopped:
    """Those that have ended are enough, and `reason` says why: whoever still runs is pruned, nobody is added."""

    boundary: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Grown:
    """Those that have ended are not enough: so many particles are added to the `started` ones."""

    started: int
    added: int


@dataclass(frozen=True, slots=True)
class Finished(Generic[P]):
    """The last event."""

    result: FilterResult[P]


Event: TypeAlias = (
    Barrier[P]
    | Advanced[P]
    | Scored[P]
    | Weighted[P]
    | Archived[P]
    | Collapsed[P]
    | Withheld[P]
    | Resampled[P]
    | Pruned[P]
    | Forked[P]
    | Stopped
    | Grown
    | Finished[P]
)
