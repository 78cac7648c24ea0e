"""What a run of optimising is about, checked before anything is spent, and compared with what a folder holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, TypedDict

from langgraph_amc.checks import check_whole, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.iterate import TaskOverlapError
from langgraph_amc.policy.seeds import mix
from langgraph_amc.skills.gate import fewest_tasks
from langgraph_amc.tasks.task import TaskSet

HISTORY, STORE, ANSWERS = "history.jsonl", "trajectories.sqlite", "answers.sqlite"
SKILLS, CHANGES, RESULT = "skills", "changes.md", "result.json"
"""Names in a run's folder."""
MAY_CHANGE = ("rounds", "patience")
"""What a run may be gone on with differently: it changes nothing that was done."""


class StudyOptions(TypedDict, total=False):
    """Keyword arguments of `optimize` that are fields of `Study`."""

    rounds: int
    candidates: int
    batch: int
    repeats: int
    measured: int
    alpha: float
    patience: int | None
    screen: float
    success: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class Study:
    """Tasks and settings of a run; the splits share no task.

    Attributes
    ----------
    tasks: whose runs proposers see. validation: candidates and champion are compared on them. held_out: the first and
        the last library are compared on them, once, at the end.
    rounds: of collecting, proposing and trying; the most. candidates: proposals tried in a round.
    batch: training tasks of a round, each run ``repeats`` times: a contrast needs two runs of one task.
    measured: runs of each validation and held-out task per library.
    alpha: chance that any of the candidates of a run that are no better is taken, shared evenly among all that may be
        tried.
    patience: rounds without a new champion after which it stops, ``None`` for never.
    screen: share of the validation tasks on which a candidate that is worse there is given up; 1 for none.
    success: the return of a run that cannot be bettered; ``None``: 1 where all rewards are from 0 to 1.
    """

    tasks: TaskSet
    validation: TaskSet
    held_out: TaskSet = field(default_factory=TaskSet)
    rounds: int = 4
    candidates: int = 4
    batch: int = 16
    repeats: int = 2
    measured: int = 2
    alpha: float = 0.1
    patience: int | None = 2
    screen: float = 0.34
    success: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        splits = {"propose from": self.tasks, "validate on": self.validation, "hold out": self.held_out}
        for name, given in splits.items():
            if not isinstance(given, TaskSet):
                raise ConfigurationError(
                    f"the tasks to {name} are a TaskSet, not {type(given).__name__}: TaskSet.from_iterable(…)"
                )
        for (one, first), (other, second) in combinations(splits.items(), 2):
            if both := set(first.ids) & set(second.ids):
                raise TaskOverlapError(
                    f"{len(both)} task(s) are to {one} and to {other}, the first {min(both)!r}: give disjoint splits"
                )
        if not len(self.tasks):
            raise ConfigurationError("there is no task to propose from: check the file, the split and the limit")
        for name in ("rounds", "candidates", "batch", "repeats", "measured"):
            check_whole(name, getattr(self, name), 1)
        check_whole("patience", 1 if self.patience is None else self.patience, 1)
        check_whole("seed", self.seed)
        for name, share in (("alpha", self.alpha), ("screen", self.screen)):
            if not is_number(share) or not 0 < share <= 1:
                raise ConfigurationError(f"{name} is a share above 0 and at most 1, got {share!r}")
        if self.success is not None and not is_number(self.success):
            raise ConfigurationError(f"success is the return of a run that cannot be bettered, got {self.success!r}")
        if len(self.validation) < (need := fewest_tasks(self.level)):
            raise ConfigurationError(
                f"on {len(self.validation)} validation tasks no candidate can be shown to be better, however good it "
                f"is: at alpha {self.alpha:g} shared by {self.trials} candidates it takes {need} at least; give more "
                "tasks, fewer rounds or candidates, or a larger alpha"
            )

    @property
    def trials(self) -> int:
        """How many candidates may be tried: each round's, and one that joins two of them."""
        return self.rounds * (self.candidates + 1)

    @property
    def level(self) -> float:
        """What one candidate's p has to come below."""
        return self.alpha / self.trials

    @property
    def collected(self) -> int:
        """Rollouts of training tasks in a round."""
        return min(self.batch, len(self.tasks)) * self.repeats

    @property
    def screened(self) -> int:
        """Validation tasks on which a candidate is looked at first."""
        return min(len(self.validation), math.ceil(self.screen * len(self.validation)))

    def training(self, number: int) -> tuple[tuple[str, int], ...]:
        """A round's (training task, repeat): all tasks in a shuffled order before any comes again, and then anew."""
        size = min(self.batch, len(self.tasks))
        ids = self.tasks.ids
        found: dict[str, int] = {}
        for at in range(number * size, (number + 1) * size):
            epoch, place = divmod(at, len(ids))
            found.setdefault(_shuffled(ids, self.seed, epoch)[place], epoch)
        return tuple((task, epoch * self.repeats + i) for task, epoch in found.items() for i in range(self.repeats))

    def validating(self) -> tuple[str, ...]:
        """The validation tasks, those to screen on first."""
        return tuple(_shuffled(self.validation.ids, self.seed, "validation"))

    def about(self) -> dict[str, Any]:
        """What the history says of the run."""
        splits = {"tasks": self.tasks, "validation tasks": self.validation, "held-out tasks": self.held_out}
        names = ("rounds", "candidates", "batch", "repeats", "measured", "alpha", "patience", "screen", "success")
        return {
            **{name: _digest(tasks) for name, tasks in splits.items()},
            **{name: getattr(self, name) for name in (*names, "seed")},
        }


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: object) -> None:
    """Raise ConfigurationError where a folder holds a run of other tasks or settings."""
    for name, value in new.items():
        if name not in MAY_CHANGE and old.get(name) != value:
            raise ConfigurationError(
                f"{folder} holds a run with other {name} ({old.get(name)!r}, now {value!r}): repeat its options to go "
                "on with it, or give another folder"
            )


def _shuffled(ids: tuple[str, ...], seed: int, epoch: object) -> list[str]:
    return sorted(ids, key=lambda task: mix(seed, epoch, task))


def _digest(tasks: TaskSet) -> str:
    """Which tasks, in which order, and how many."""
    said = json.dumps([asdict(task) for task in tasks], sort_keys=True, default=repr).encode("utf-8", "surrogatepass")
    return f"{len(tasks)}:{hashlib.blake2b(said, digest_size=8).hexdigest()}"
