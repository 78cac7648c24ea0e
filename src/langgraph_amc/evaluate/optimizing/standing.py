"""Where a run of optimising stands, put together for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from langgraph_amc.evaluate.optimizing.history import Trial
from langgraph_amc.evaluate.optimizing.spending import Plan
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.skills.edits import describe


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, for whoever watches it.

    Attributes
    ----------
    doing: what is being run, of which ``done`` of ``total`` rollouts have ended.
    plan: what the run may take and what the budget buys, ``None`` before the first task has run.
    tried, accepted: proposals so far. last: what became of the last one. champion: its mean on the validation tasks.
    """

    doing: str
    done: int
    total: int
    plan: Plan | None
    tried: int
    accepted: int
    last: str
    champion: float | None
    tokens: int


@dataclass(slots=True)
class Watcher:
    """What has been seen so far, and how it is told."""

    told: Callable[[Standing], None]
    tokens: Callable[[], int] = lambda: 0
    plan: Plan | None = None
    trials: list[Trial] = field(default_factory=list)
    old: Estimate | None = None
    new: Estimate | None = None
    at: tuple[str, int, int] = ("", 0, 0)

    def tell(self, doing: str, done: int, total: int) -> None:
        self.at = doing, done, total
        accepted = sum(trial.outcome == "accepted" for trial in self.trials)
        mean = None if self.new is None else self.new.mean
        last = _told(self.trials[-1]) if self.trials else ""
        self.told(Standing(*self.at, self.plan, len(self.trials), accepted, last, mean, self.tokens()))

    def again(self) -> None:
        """Tell of what is new although no rollout has ended."""
        self.tell(*self.at)


def _told(trial: Trial) -> str:
    what = " and ".join(describe(edit) for edit in trial.proposal.edits)
    return f"{what}: {trial.outcome}, {trial.reason}"
