"""From a problem and a model to a function: the search in a folder that it can be gone on with, and a comparison."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langgraph_amc.checks import check_path
from langgraph_amc.errors import AMCError
from langgraph_amc.evaluate.designing.weights import LocalWeights, NoWeights
from langgraph_amc.evaluate.evolving.kept import HISTORY, RESULT
from langgraph_amc.evaluate.evolving.opening import in_a_loop, made, model_path
from langgraph_amc.evaluate.evolving.study import check_same
from langgraph_amc.evaluate.optimizing.answers import paid_answers
from langgraph_amc.evaluate.statistics import Estimate, estimate, paired
from langgraph_amc.evolution.history import Header, History
from langgraph_amc.evolution.members import Scope
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.files import write_whole
from langgraph_amc.heuristics.asking import ModelWriter
from langgraph_amc.heuristics.judging import judge
from langgraph_amc.heuristics.problems import Problem
from langgraph_amc.heuristics.sandbox import check_sandbox
from langgraph_amc.heuristics.search import Candidate, Search, Searched, run_identity, search
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.usage import LOCAL_PROVIDER
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Skill

ANSWERS, SKILLS = "answers.sqlite", "skills"
_HELD_OUT = 1_000_003
"""Added to the search's seed for instances that play no part in it."""


class NoHeuristicError(AMCError):
    """Not one function ran."""


@dataclass(frozen=True, slots=True)
class Designed:
    """A finished search.

    Attributes
    ----------
    best: the function with the highest score in the search. held_out, known, difference: it, the well-known heuristic,
        and it less that, on instances that played no part; 95 % intervals over instances.
    answers: of the model. failures: how many of them failed, by kind. curve: best score after each generation.
    weights: hash of the model's after the search, ``"none"`` where they were not tuned.
    """

    problem: str
    best: Candidate
    held_out: Estimate
    known: Estimate
    difference: Estimate
    answers: int
    failures: dict[str, int]
    curve: tuple[float | None, ...]
    weights: str
    folder: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self)

    def to_text(self) -> str:
        """Lines for a terminal."""
        d = self.difference
        failed = ", ".join(f"{count} {kind}" for kind, count in self.failures.items()) or "none"
        return "\n".join(
            [
                f"{self.problem}: {self.answers:,} answers, failed: {failed}",
                f"best, of generation {self.best.generation + 1}, by {self.best.operator!r}:",
                self.best.source.rstrip(),
                "on instances that played no part, mean score with 95 % interval:",
                f"  best   {self.held_out}",
                f"  known  {self.known}",
                f"  best − known  {d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]",
                f"kept in {self.folder}",
            ]
        )


def design(problem: Problem, model: str, *, out: str | Path, **settings: Any) -> Designed:
    """`adesign`, to be called where no event loop runs."""
    if in_a_loop():
        raise AMCError("an event loop runs here already: await adesign(…) instead")
    return asyncio.run(adesign(problem, model, out=out, **settings))


async def adesign(
    problem: Problem,
    model: str,
    *,
    out: str | Path,
    settings: Search | None = None,
    strategy: Strategy | None = None,
    tune: bool = True,
    scope: Scope = "all",
    budget: Budget | None = None,
    options: dict[str, Any] | None = None,
    held_out: int = 16,
    progress: Callable[[Searched], None] | None = None,
) -> Designed:
    """Have a model write functions for a problem, and keep the best; of a local model tune the weights on the way.

    Parameters
    ----------
    model: LiteLLM's name. Of ``amc-local/<folder>`` each generation's members are perturbed, and every answer is a
        candidate and a sample for the step of the weights; ``tune=False``, and any other model: candidates only.
    out: folder for the history, the best function as a file and as a skill; a search that is there is gone on with.
    settings, strategy: of the search and the population. scope: what of a local model is perturbed.
    budget: for all calls. options: of `chat_model`. held_out: instances to compare on.

    Raises
    ------
    SandboxUnavailableError, MissingExtraError: functions cannot be confined here. ConfigurationError: ``out`` holds
        another search. NoHeuristicError: none of the model's functions ran.
    """
    await asyncio.to_thread(check_sandbox)
    load_litellm()
    chosen, population = settings or Search(), strategy or Strategy(population=16)
    folder = made(check_path("out", out))
    weighty = tune and model.startswith(f"{LOCAL_PROVIDER}/")
    seen: list[Searched] = []
    with nullcontext() if budget is None else budget.open(), paid_answers(folder / ANSWERS):
        async with _weights(model, scope, population, weighty) as weights:
            writer = ModelWriter(model, **(options or {}))
            about = run_identity(problem, chosen, writer)
            header = Header(population, scope, weights.layout, await weights.restore([]), about)
            with History(folder / HISTORY, header) as history:
                check_same(history.log, _unchanging(about), history.path, accept=False)
                async with aclosing(search(problem, chosen, writer, weights, history)) as generations:
                    async for searched in generations:
                        seen.append(searched)
                        if progress is not None:
                            progress(searched)
    found = await asyncio.to_thread(_result, problem, chosen, seen, folder, held_out)
    write_whole(folder / RESULT, json.dumps(found.to_json(), indent=1))
    return found


@asynccontextmanager
async def _weights(
    model: str, scope: Scope, strategy: Strategy, weighty: bool
) -> AsyncIterator[LocalWeights | NoWeights]:
    if not weighty:
        yield NoWeights()
        return
    from langgraph_amc.evaluate.evolving.replica import Replica  # PyTorch
    from langgraph_amc.evaluate.evolving.replicas import Tuning

    tuning = Tuning(model_path(model), scope, strategy.decay > 0)
    replica = await asyncio.to_thread(Replica, tuning)
    try:
        yield LocalWeights(replica)
    finally:
        await asyncio.to_thread(replica.close)


def _unchanging(about: dict[str, Any]) -> dict[str, Any]:
    """All but what a search may be gone on with differently."""
    return {name: value for name, value in about.items() if name != "generations"}


def _result(problem: Problem, settings: Search, seen: list[Searched], folder: Path, held_out: int) -> Designed:
    """Write the best function down, and compare it with the known one on instances that played no part."""
    failures: Counter[str] = Counter()
    for searched in seen:
        failures.update(searched.failures)
    population = seen[-1].population
    if not population:
        told = next((j for s in seen for row in s.judged for j in row if j.failure), None)
        why = "" if told is None else f"; the first: {told.failure}, {told.detail}"
        raise NoHeuristicError(f"none of the model's functions ran{why}")
    best = population[0]
    instances = problem.instances(settings.seed + _HELD_OUT, held_out)
    ours, known = (
        np.array([[_score(problem, source, instance, settings)] for instance in instances])
        for source in (best.source, problem.known)
    )
    write_whole(folder / f"{problem.name}.py", best.source)
    SkillLibrary((as_skill(problem, best),)).write(folder / SKILLS)
    return Designed(
        problem.name,
        best,
        estimate(ours),
        estimate(known),
        paired(ours, known),
        sum(len(row) for s in seen for row in s.judged),
        dict(sorted(failures.items())),
        tuple(s.population[0].score if s.population else None for s in seen),
        seen[-1].record.weights,
        str(folder),
    )


def _score(problem: Problem, source: str, instance: Any, settings: Search) -> float:
    """NaN where it fails on an instance that it has not seen."""
    found = judge(problem, source, [instance], settings.limits).score
    return float("nan") if found is None else found


def as_skill(problem: Problem, best: Candidate) -> Skill:
    """The function as an Agent Skill: what it is for, how it did, and the code, beside it as a file."""
    body = f"{problem.about}\n\n{problem.meaning}\n\n```python\n{best.source}```"
    return Skill(
        f"{problem.name}-heuristic",
        f"A heuristic for {problem.name}, found by search (score {best.score:.4f}). Use it to decide step by step.",
        body,
        files={"scripts/heuristic.py": best.source.encode()},
    )
