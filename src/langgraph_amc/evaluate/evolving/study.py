"""What a run of evolution is about, checked before anything is spent, and compared with what a folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, TypedDict

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.identity import PARTS, check_identities, digest
from langgraph_amc.evaluate.evolving.rollouts import Measured
from langgraph_amc.evaluate.iterate import TaskOverlapError
from langgraph_amc.evolution.checks import one_of, whole
from langgraph_amc.evolution.history import Header, Log
from langgraph_amc.evolution.loop import Course
from langgraph_amc.evolution.members import SCOPES, Scope
from langgraph_amc.evolution.racing import Racing
from langgraph_amc.evolution.schedules import Automatic
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.tasks.task import TaskSet

_MAY_CHANGE = ("generations", "validate_every", "patience")
"""What a run may be gone on with differently: it changes no rollout."""


class StudyOptions(TypedDict, total=False):
    """Keyword arguments of `evolve` that are fields of `Study`."""

    validation: TaskSet
    held_out: TaskSet
    strategy: Strategy
    generations: int
    batch: int
    repeats: int
    validate_every: int
    patience: int | None
    measured: int
    racing: Racing | None
    common_noise: bool
    scope: Scope


@dataclass(frozen=True, slots=True)
class Study:
    """Tasks and settings of a run; the splits share no task.

    Attributes
    ----------
    tasks: trained on. validation: measured every few generations, to stop in time and to pick the best weights.
    held_out: base and tuned weights are compared on them at the end.
    generations, batch, repeats, validate_every, patience, racing: see `evolution.loop.Course`.
    measured: runs of each validation and held-out task. common_noise: whether members sample with the same random
        numbers. scope: what of the model is perturbed.
    """

    tasks: TaskSet
    validation: TaskSet = field(default_factory=TaskSet)
    held_out: TaskSet = field(default_factory=TaskSet)
    strategy: Strategy = field(default_factory=Strategy)
    generations: int = 50
    batch: int = 16
    repeats: int = 1
    validate_every: int = 5
    patience: int | None = 3
    measured: int = 4
    racing: Racing | None = None
    common_noise: bool = True
    scope: Scope = "all"

    def __post_init__(self) -> None:
        for name, given in (("tasks", self.tasks), ("validation", self.validation), ("held_out", self.held_out)):
            if not isinstance(given, TaskSet):
                raise ConfigurationError(f"{name} is a TaskSet, not {type(given).__name__}: TaskSet.from_iterable(…)")
        splits = {"train on": self.tasks, "validate on": self.validation, "hold out": self.held_out}
        for (one, first), (other, second) in combinations(splits.items(), 2):
            if both := set(first.ids) & set(second.ids):
                raise TaskOverlapError(
                    f"{len(both)} task(s) are to {one} and to {other}, the first {min(both)!r}: give disjoint splits"
                )
        if isinstance(self.measured, bool) or not isinstance(self.measured, int) or self.measured < 1:
            raise ConfigurationError(f"measured is how often a task is run, at least 1, got {self.measured!r}")
        one_of("common_noise", self.common_noise, (True, False))
        whole("validate_every", self.validate_every, 0)
        if self.scope not in SCOPES:
            raise ConfigurationError(f"scope is one of {', '.join(SCOPES)}, got {self.scope!r}")
        if not isinstance(self.strategy, Strategy):
            raise ConfigurationError(f"strategy is a Strategy, e.g. Strategy(population=32), got {self.strategy!r}")
        if self.racing is not None and not isinstance(self.racing, Racing):
            raise ConfigurationError(f"racing is Racing(margin=0.25), or None, got {self.racing!r}")
        if self.racing is not None and isinstance(self.strategy.schedule, Automatic):
            raise ConfigurationError(
                "the automatic schedule goes by the noise of rewards, which racing hides: use another schedule"
            )
        self.course()

    def course(self) -> Course:
        """The loop's part."""
        every = self.validate_every if len(self.validation) else 0
        return Course(self.tasks.ids, self.generations, self.batch, self.repeats, every, self.patience, self.racing)

    def measures(self) -> tuple[Measured, Measured]:
        """The validation and the held-out tasks, as they are measured."""
        return Measured(self.validation, self.measured), Measured(self.held_out, self.measured)

    def about(self, model: str) -> dict[str, Any]:
        """What the history says of the run, beside the strategy."""
        return {
            "model": model,
            "tasks": _digest(self.tasks),
            "validation tasks": _digest(self.validation),
            "held-out tasks": _digest(self.held_out),
            "generations": self.generations,
            "batch": self.batch,
            "repeats": self.repeats,
            "validate_every": self.validate_every,
            "patience": self.patience,
            "measured": self.measured,
            "racing": None if self.racing is None else asdict(self.racing),
            "common_noise": self.common_noise,
        }

    def header(self, model: str, layout: str, weights: str, ran: Mapping[str, Any]) -> Header:
        """The first line of the history; ``ran``: see `identity.identities`."""
        return Header(self.strategy, self.scope, layout, weights, {**self.about(model), **ran})


def check_same(log: Log, about: Mapping[str, Any], path: Path, *, accept: bool) -> None:
    """Raise ConfigurationError where a folder holds a run of other tasks or settings, another app or reward.

    ``accept``: that the app, the reward or the effects are others.
    """
    check_identities(log.header.about, about, path.parent, accept=accept)
    for name, new in about.items():
        old = log.header.about.get(name)
        if name not in (*_MAY_CHANGE, *PARTS, "model") and old != new:
            raise ConfigurationError(
                f"{path.parent} holds a run with other {name} ({old!r:.60}, now {new!r:.60}): repeat its options to go "
                "on with it, or give another folder"
            )


def _digest(tasks: TaskSet) -> str:
    """Which tasks, in which order, and how many."""
    return f"{len(tasks)}:{digest([asdict(task) for task in tasks])}"
