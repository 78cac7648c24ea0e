"""Where a run of evolution stands, told on the way, and what there is to say of its course."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.evolving.identity import digest
from langgraph_amc.evaluate.evolving.replicas import Replicas
from langgraph_amc.evaluate.evolving.report import GenerationReport, HeldOut, ValidationReport, generation_report
from langgraph_amc.evaluate.evolving.rollouts import StoredRollouts
from langgraph_amc.evaluate.evolving.study import Study
from langgraph_amc.evaluate.statistics import estimate
from langgraph_amc.evolution.history import Record
from langgraph_amc.evolution.loop import Column
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.trajectories.store import TrajectoryStore

Floats = NDArray[np.float64]
_SURE = 4.0
"""Standard errors by which members must be worse than the base before that is put down to sigma."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, for whoever watches it.

    Attributes
    ----------
    doing: what is being run, of which ``done`` of ``total`` rollouts have ended.
    generation: the last finished one, ``None`` before the first. validation: the last one.
    tokens: of this call. seconds_left: of the generations that may come, ``None`` while nothing is known.
    """

    doing: str
    done: int
    total: int
    generations: int
    generation: GenerationReport | None
    validation: ValidationReport | None
    tokens: int
    seconds_left: float | None


@dataclass(slots=True)
class Watcher:
    """What has been seen so far, and how it is told."""

    study: Study
    told: Callable[[Standing], None]
    began: float = field(default_factory=time.perf_counter)
    generations: list[GenerationReport] = field(default_factory=list)
    validations: list[ValidationReport] = field(default_factory=list)
    fresh: int = 0
    tokens: Callable[[], int] = lambda: 0
    first: Record | None = None
    base: Floats | None = None

    def tell(self, doing: str, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` rollouts have ended."""
        last = self.generations[-1] if self.generations else None
        measured = self.validations[-1] if self.validations else None
        standing = Standing(
            doing, done, total, self.study.generations, last, measured, self.tokens(), self._seconds_left()
        )
        self.told(standing)

    def known(self, record: Record, columns: Sequence[Column]) -> None:
        """Note a generation that an earlier call ran."""
        self.first = self.first or record
        self.generations.append(generation_report(record, columns))

    def evolved(self, record: Record, columns: Sequence[Column]) -> None:
        """Note a generation; of the first one, say at once where sigma leaves nothing of the model."""
        self.known(record, columns)
        self.fresh += 1
        if len(self.generations) == 1 and (said := self.collapse()) is not None:
            warnings.warn(said, stacklevel=2)

    def validated(self, done: int, rewards: Floats) -> None:
        """Note a measurement [tasks, repeats]."""
        self.measured(rewards) if done == 0 else None
        self.validations.append(ValidationReport(done, estimate(rewards)))

    def measured(self, base: Floats) -> None:
        """Note rewards [tasks, repeats] of the base."""
        self.base = base if self.base is None else self.base

    def collapse(self) -> str | None:
        """What to say where the first generation's members have lost what the base can do."""
        if self.first is None or self.base is None or not collapsed(self.first.rewards, self.base):
            return None
        first, sigma = self.generations[0], self.first.update.generation.sigma
        return (
            f"the members of the first generation earned {first.reward.mean:.3f} on average and {first.best:.3f} at "
            f"best, the base {np.nanmean(self.base):.3f}: sigma {sigma:g} is far too large for this model, try a tenth"
        )

    def remarks(self, best: int, held_out: HeldOut | None, *, moved: bool) -> tuple[str, ...]:
        """What a reader of the result has to know, the tuned weights being those after ``best`` generations."""
        found = [self.collapse()]
        if not moved and not any(g.step for g in self.generations):
            found.append(
                "nothing moved: the tuned model is the base. In every generation all rewards were equal or missing: "
                "sigma is too small for members to differ, too large for any to succeed, or the reward says nothing"
            )
        elif not moved:
            why = "no validation was better than the base's" if best == 0 else "all steps together come to nothing"
            found.append(f"nothing was gained: the tuned model is the base, since {why}")
        elif held_out is not None and held_out.difference.low <= 0 <= held_out.difference.high:
            found.append("the difference on held-out tasks may be chance: its interval includes 0")
        return tuple(said for said in found if said is not None)

    def _seconds_left(self) -> float | None:
        if not self.fresh:
            return None
        each = (time.perf_counter() - self.began) / self.fresh
        return each * max(0, self.study.generations - len(self.generations))


def collapsed(members: Floats, base: Floats) -> bool:
    """Whether members do so much worse than the base that neither chance nor other tasks explain it.

    Even the best member, flattered by having been chosen, is below the base's interval; the mean has lost more than
    half of what the base is above 0, or above the worst reward; and that is more than four standard errors.

    Parameters
    ----------
    members: rewards [members, columns]. base: rewards [tasks, repeats], of other tasks. NaN is missing.
    """
    known = ~np.isnan(members)
    if not known.any() or np.isnan(base).all():
        return False
    means = np.where(known, members, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    level, mean = float(np.nanmean(base)), float(np.nanmean(members))
    worst = min(0.0, float(np.nanmin(base)), float(np.nanmin(members)))
    error = float(np.sqrt((np.nanvar(base) + np.nanvar(members)) / known.sum()))
    lost = level - mean > max(0.5 * (level - worst), _SURE * error)
    return lost and float(means[known.any(axis=1)].max()) < estimate(base, resamples=1000).low


def watched_rollouts(
    replicas: Replicas,
    store: TrajectoryStore,
    settings: Settings,
    study: Study,
    concurrency: int,
    watcher: Watcher,
    ran: Mapping[str, Any],
) -> StoredRollouts:
    """The rollouts of a study, which tell the watcher; ``ran``: see `identity.identities`."""
    validation, held_out = study.measures()
    rollouts = StoredRollouts(
        replicas,
        store,
        settings,
        tasks=study.tasks,
        validation=validation,
        held_out=held_out,
        seed=study.strategy.seed,
        common=study.common_noise,
        concurrency=concurrency,
        progress=watcher.tell,
        ran=digest(ran),
    )
    rollouts.tally.found = store.counts().trajectories
    watcher.tokens = lambda: rollouts.tally.usage.tokens
    return rollouts
