"""What a model is asked for: a new function, from scratch or from parents (the operators of EoH, arXiv 2401.02051)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph_amc.context import RolloutNoise, current_member, rollout_noise
from langgraph_amc.heuristics.problems import Problem

OPERATORS = {
    "start": (0, "Write such a function."),
    "differ": (2, "Write a function whose idea is as different from these as you can make it."),
    "combine": (2, "Find the idea that these have in common, and write a function that builds on it in a new way."),
    "change": (1, "Write a changed form of this function that may do better."),
    "tune": (1, "Keep this function's form, and choose its numbers anew: others may do better."),
}
"""Name: how many parents, and what is asked. In EoH they are i1, e1, e2, m1 and m2."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model.

    Attributes
    ----------
    operator, parents: how the prompt came about. member: whose weights answer; ``None``: the model as it is.
    noise: key of the random numbers that it samples with; members that share it differ by their weights alone.
    """

    operator: str
    parents: tuple[str, ...]
    prompt: str
    member: Hashable | None = None
    noise: tuple[Hashable, ...] = ()


class Writer(Protocol):
    """Answers requests."""

    @property
    def name(self) -> str:
        """How it is called in histories."""
        ...

    async def write(self, request: Request) -> str:
        """The model's whole answer. Raises what its model raises."""
        ...


class ModelWriter:
    """Any model that LiteLLM knows; of a local one (``amc-local/…``) the member that the request names.

    Parameters
    ----------
    options: of `policy.chat.chat_model`, e.g. ``temperature``, ``max_tokens``, ``api_base``.
    """

    def __init__(self, model: str, **options: Any) -> None:
        from langgraph_amc.policy.chat import chat_model

        self._model = chat_model(model, **{"temperature": 1.0, "max_tokens": 768, **options})
        self._name = model

    @property
    def name(self) -> str:
        """LiteLLM's name of the model."""
        return self._name

    async def write(self, request: Request) -> str:
        """Ask, as this member and with this noise."""
        as_member = current_member.set(request.member)
        with_noise = rollout_noise.set(RolloutNoise(request.noise))
        try:
            answer = await self._model.ainvoke(request.prompt)
        finally:
            current_member.reset(as_member)
            rollout_noise.reset(with_noise)
        return str(answer.text)


def prompt_of(problem: Problem, operator: str, parents: Sequence[tuple[str, float]]) -> str:
    """The question; parents are (source, score)."""
    signature = f"def {problem.function}({', '.join(problem.arguments)}):"
    shown = "\n".join(f"Score {score:.4f}, higher is better:\n```python\n{source}```" for source, score in parents)
    parts = [
        problem.about,
        f"{signature}\n{problem.meaning} It returns a finite number.",
        shown,
        OPERATORS[operator][1],
        "Answer with the Python code of the function alone, in one block. It may import math and nothing else.",
    ]
    return "\n\n".join(part for part in parts if part)
