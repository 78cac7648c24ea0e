"""A world with known truth: a reward that is a formula of weights, skills, task and luck, behind the loop's Protocol.

Nothing of the library is replaced but the app: design, estimates, gate, history and replay are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.history import Record
from langgraph_amc.evolution.loop import Column
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.policy.seeds import mix
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Edit, Evidence, Proposal, Rejected
from langgraph_amc.trajectories.types import Trajectory

SIZE = 6
EFFECT = {"helpful": 0.4, "useful": 0.3, "idle": 0.0, "vain": 0.0, "harmful": -0.4, "wrong": -0.3}
"""What each rule does to the reward; the names are the sections of the one skill."""


class Killed(BaseException):
    """As if the process had been killed: nothing of the library catches it."""


class World:
    """Rewards = quality of the weights + effects of the rules + the task's level + luck of (seed, task, generation).

    ``calls`` counts rollouts by name; ``lives`` is after how many of them the process dies.
    """

    def __init__(self, *, weighty: bool = True, noise: float = 0.2, lives: int | None = None) -> None:
        self.weighty = weighty
        self.theta = np.zeros(SIZE)
        self.goal = np.full(SIZE, 0.5)
        self.noise = noise
        self.lives = lives
        self.ran: list[tuple[Any, ...]] = []
        self.proposed = 0

    @asynccontextmanager
    async def serving(self, generation: Generation) -> AsyncIterator[None]:
        yield

    async def rewards(
        self, generation: Generation, columns: Sequence[Column], libraries: Sequence[SkillLibrary], arms: Any
    ) -> Any:
        rows = []
        for row, member in enumerate(generation.members):
            rows.append([self._one(generation, member, c, libraries[arms[row, i]]) for i, c in enumerate(columns)])
        return np.array(rows)

    def _one(self, generation: Generation, member: Member, column: Column, library: SkillLibrary) -> float:
        if self.lives is not None and len(self.ran) >= self.lives:
            raise Killed
        self.ran.append((generation.number, member, column))
        moved = self.theta
        if self.weighty:
            moved = moved + member.sign * generation.sigma * direction(generation, member.pair)
        key = (generation.number, column.task, column.repeat) if self.weighty else (generation.number, column, member)
        luck = np.random.default_rng(mix("luck", key)).normal(0, self.noise)
        level = np.random.default_rng(mix("level", column.task)).normal(0, 1)
        return float(level - np.sum((moved - self.goal) ** 2) + effect_of(library) + luck)

    async def evidence(self, log: Sequence[Record], champion: SkillLibrary) -> Evidence:
        return Evidence(failures=(Trajectory("run", "p0", ("a task",), task_id="t"),)) if log else Evidence()

    async def validate(self, weights: str, library: SkillLibrary) -> Any:
        return np.array([[np.nan]])

    async def validated(self, weights: str, library: SkillLibrary) -> Any:
        return np.array([[np.nan]])

    async def apply(self, update: Update) -> str:
        for pair, q in enumerate(update.coefficients):
            self.theta = self.theta + update.scale * q * direction(update.generation, pair)
        return self.hash()

    async def restore(self, updates: Sequence[Update]) -> str:
        self.theta = np.zeros(SIZE)
        for update in updates:
            await self.apply(update)
        return self.hash()

    def hash(self) -> str:
        return self.theta.tobytes().hex()[:32] if self.weighty else "none"


class Pool:
    """Proposes the rules in an order of its own, those that were not tried; it knows nothing of their worth."""

    name = "pool"

    def __init__(self, seed: int = 0, rules: Sequence[str] = tuple(EFFECT)) -> None:
        self.order = [str(r) for r in np.random.default_rng(seed).permutation(list(rules))]

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        tried = {edit.section for r in rejected for edit in r.proposal.edits} | set(rules_of(library))
        left = [rule for rule in self.order if rule not in tried]
        return tuple(Proposal((edit_of(rule, library),), self.name) for rule in left[:limit])


def edit_of(rule: str, library: SkillLibrary) -> Edit:
    """The edit that adds a rule."""
    if "rules" not in library:
        return Edit("create skill", "rules", rule, f"Do what is {rule}.", description="Rules for the world.")
    return Edit("add section", "rules", rule, f"Do what is {rule}.")


def rules_of(library: SkillLibrary) -> list[str]:
    """The rules that a library holds."""
    return [rule for rule in EFFECT if f"## {rule}\n" in "".join(skill.body + "\n" for skill in library)]


def effect_of(library: SkillLibrary) -> float:
    """What its rules do together."""
    return sum(EFFECT[rule] for rule in rules_of(library))


def direction(generation: Generation, pair: int) -> Any:
    """The pair's direction, of +1 and -1."""
    rng = np.random.default_rng([generation.seed, generation.number, pair])
    return rng.integers(0, 2, SIZE) * 2.0 - 1
