"""Where a run of optimising stands, put together for whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from langgraph_amc.evaluate.evolving.tally import Tally
from langgraph_amc.evaluate.optimizing.history import Trial
from langgraph_amc.evaluate.optimizing.spending import Plan
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.skills.edits import describe
from langgraph_amc.skills.types import Proposal
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, for whoever watches it.

    Attributes
    ----------
    doing: what is being run, of which ``done`` of ``total`` rollouts have ended.
    plan: what the run may take and what the budget buys, ``None`` before the first task has run.
    round: under way, from 1; 0 before the first. rounds: the most.
    trials: proposals that were dealt with. waiting: those of this round that were not yet, the one being tried first.
    champion: on the validation tasks, with its 95 % interval.
    usage: of the rollouts of this call. seconds_left: if all that may be run is, ``None`` while nothing is known.
    """

    doing: str
    done: int
    total: int
    plan: Plan | None
    round: int
    rounds: int
    trials: tuple[Trial, ...]
    waiting: tuple[Proposal, ...]
    champion: Estimate | None
    usage: Usage
    seconds_left: float | None

    @property
    def tried(self) -> int:
        """Proposals that were dealt with."""
        return len(self.trials)

    @property
    def accepted(self) -> int:
        """Of them, those that were taken."""
        return sum(trial.outcome == "accepted" for trial in self.trials)

    @property
    def tokens(self) -> int:
        """Of the rollouts of this call."""
        return self.usage.tokens


@dataclass(slots=True)
class Watcher:
    """What has been seen so far, and how it is told."""

    told: Callable[[Standing], None]
    rounds: int
    tally: Tally = field(default_factory=Tally)
    plan: Plan | None = None
    round: int = 0
    proposals: tuple[Proposal, ...] = ()
    trials: list[Trial] = field(default_factory=list)
    old: Estimate | None = None
    new: Estimate | None = None
    at: tuple[str, int, int] = ("", 0, 0)
    began: float = field(default_factory=time.perf_counter)

    def tell(self, doing: str, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` rollouts have ended."""
        self.at = doing, done, total
        here = sum(trial.round == self.round - 1 for trial in self.trials)
        self.told(
            Standing(
                *self.at,
                self.plan,
                self.round,
                self.rounds,
                tuple(self.trials),
                self.proposals[here:],
                self.new,
                self.tally.usage,
                self._seconds_left(),
            )
        )

    def again(self) -> None:
        """Tell of what is new although no rollout has ended."""
        self.tell(*self.at)

    def proposed(self, number: int, proposals: tuple[Proposal, ...]) -> None:
        """A round's proposals are there."""
        self.round, self.proposals = number + 1, proposals
        self.again()

    def _seconds_left(self) -> float | None:
        if self.plan is None or not self.tally.run:
            return None
        each = (time.perf_counter() - self.began) / self.tally.run
        return each * max(0, self.plan.rollouts - self.tally.run - self.tally.found)


def said_of(trial: Trial) -> str:
    """What was proposed and what became of it, in a line."""
    return f"{edits_of(trial.proposal)}: {trial.outcome}, {trial.reason}"


def edits_of(proposal: Proposal) -> str:
    """What was proposed, in a few words."""
    return " and ".join(describe(edit) for edit in proposal.edits)
