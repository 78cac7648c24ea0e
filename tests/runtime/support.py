"""Models whose answers a test decides, and recorders of what an app's user would see."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from langgraph_amc.context import current_particle
from langgraph_amc.policy.seeds import mix

ASK: dict[str, Any] = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "t"}}


class ReplyModel(BaseChatModel):
    """Answers with ``reply(messages)``; an async ``reply`` makes it a model without a synchronous path."""

    reply: Callable[[list[BaseMessage]], Any]
    temperature: float | None = None
    seed: int | None = None

    @property
    def _llm_type(self) -> str:
        return "reply"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        settings = {"temperature": self.temperature, "seed": self.seed}
        return {k: v for k, v in settings.items() if v is not None}

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return result(self.reply(messages))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if inspect.iscoroutinefunction(self.reply):
            return result(await self.reply(messages))
        return await super()._agenerate(messages, stop, run_manager, **kwargs)


def result(message: AIMessage) -> ChatResult:
    message.usage_metadata = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    return ChatResult(generations=[ChatGeneration(message=message)])


def turn_of(messages: Sequence[BaseMessage]) -> int:
    """How often the model has answered since the user last spoke."""
    last = max((i for i, m in enumerate(messages) if m.type == "human"), default=0)
    return sum(m.type == "ai" for m in messages[last:])


def number(salt: Any) -> int:
    """A number below 1000 that follows from the particle's seed."""
    particle = current_particle.get()
    return mix(0 if particle is None else particle.seed, salt) % 1000


def call(name: str, turn: int, **args: Any) -> AIMessage:
    """A model's answer that calls one tool."""
    return AIMessage(f"step {turn}", tool_calls=[{"name": name, "args": args, "id": f"call-{turn}"}])


def seeded(rounds: int = 3) -> Callable[[list[BaseMessage]], AIMessage]:
    """A policy that is deterministic given the particle's seed, and differs among particles."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        turn = turn_of(messages)
        n = number(len(messages))
        return call("note", turn, n=n) if turn < rounds else AIMessage(f"answer {n}")

    return reply


@tool
def note(n: int) -> str:
    """Write a number down."""
    return f"noted {n}"


def agent(
    reply: Callable[[list[BaseMessage]], Any], tools: Sequence[Any] = (note,), saver: Any = None, **options: Any
) -> Any:
    return create_agent(ReplyModel(reply=reply), list(tools), checkpointer=saver, **options)


def digits_of(segments: Sequence[str]) -> float:
    """A value function for `seeded`: the sum of all digits written so far."""
    return float(sum(int(c) for text in segments for c in text if c.isdigit()))


def by_hash(transcripts: Sequence[Sequence[str]]) -> list[float]:
    """Values in [0, 1) that differ for different states; with a tiny ``tau`` one particle takes all."""
    return [mix("".join(t)) / 2**63 for t in transcripts]


def by_digits(transcripts: Sequence[Sequence[str]]) -> list[float]:
    return [digits_of(t) / 100 for t in transcripts]


class Roots(BaseCallbackHandler):
    """How the runs that have no parent began and ended."""

    run_inline = True

    def __init__(self) -> None:
        self.started: dict[UUID, dict[str, Any]] = {}
        self.ended: set[UUID] = set()
        self.errors: list[tuple[UUID, BaseException]] = []
        self.nested = 0

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if parent_run_id is None:
            self.started[run_id] = kwargs
        else:
            self.nested += 1

    def on_chain_end(self, outputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        if parent_run_id is None:
            self.ended.add(run_id)

    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self.errors.append((run_id, error))


def texts(output: Any) -> list[str]:
    return [m.content for m in output["messages"]]


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
