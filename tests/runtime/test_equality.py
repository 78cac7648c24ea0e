"""With a deterministic app and any N, AMC is indistinguishable from a plain run."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.runtime.equality import CONFIG, wrapped
from tests.support.cases import ALL


class Plain:
    """Values with everything random about them (message ids, timestamps) replaced by its order."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, BaseMessage):
            dump = value.model_dump(exclude={"id"})
            return (type(value).__name__, self.ids.setdefault(value.id or "", len(self.ids)), repr(dump))
        if isinstance(value, dict):
            return {k: in_order(self(v)) if k == "__interrupt__" else self(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self(v) for v in value]
        if hasattr(value, "value") and type(value).__name__ == "Interrupt":
            return ("interrupt", self(value.value))
        return value


def in_order(interrupts: list[Any]) -> list[Any]:
    """Tasks that run at once interrupt in any order."""
    return sorted(interrupts, key=repr)


def snapshots(history: list[Any]) -> Any:
    plain = Plain()
    return [
        (
            plain(s.values),
            s.next,
            s.metadata["step"],
            s.metadata["source"],
            [(t.name, bool(t.error), plain(list(t.interrupts))) for t in s.tasks],
        )
        for s in reversed(history)
    ]


def converse(app: Any, inputs: tuple[Any, ...]) -> list[Any]:
    out: list[Any] = []
    for given in inputs:
        result = app.invoke(copy.deepcopy(given), CONFIG)
        state = app.get_state(CONFIG, subgraphs=True)
        out.append((Plain()(result), snapshots([state]), snapshots(list(app.get_state_history(CONFIG)))))
    return out


async def aconverse(app: Any, inputs: tuple[Any, ...]) -> list[Any]:
    out: list[Any] = []
    for given in inputs:
        result = await app.ainvoke(copy.deepcopy(given), CONFIG)
        state = await app.aget_state(CONFIG, subgraphs=True)
        history = [s async for s in app.aget_state_history(CONFIG)]
        out.append((Plain()(result), snapshots([state]), snapshots(history)))
    return out


RACY = ("join", "mutating")
"""Plain synchronous runs save these from a background thread while the next super-step already edits the
value being saved, so their history is a matter of luck; the asynchronous plain run has no such race."""


def plain_history(name: str) -> list[Any]:
    case = ALL[name]
    if name in RACY:
        return asyncio.run(aconverse(case.build(InMemorySaver()), case.inputs))
    return converse(case.build(InMemorySaver()), case.inputs)


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_sync_equals_plain(name: str, particles: int) -> None:
    case = ALL[name]
    want = plain_history(name)
    got = converse(wrapped(case.build(InMemorySaver()), case, particles), case.inputs)
    if particles == 1 and name in RACY:  # a single particle is a plain run, its race included
        got, want = [turn[0] for turn in got], [turn[0] for turn in want]
    assert got == want


@pytest.mark.parametrize("name", ALL)
async def test_async_equals_plain(name: str) -> None:
    case = ALL[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    app = wrapped(case.build(InMemorySaver()), case, 3)
    assert await aconverse(app, case.inputs) == want


@pytest.mark.parametrize("name", ALL)
def test_sync_sqlite(name: str) -> None:
    case = ALL[name]
    with SqliteSaver.from_conn_string(":memory:") as saver:
        assert converse(wrapped(case.build(saver), case, 2), case.inputs) == plain_history(name)


@pytest.mark.parametrize("name", ALL)
async def test_async_sqlite(name: str) -> None:
    case = ALL[name]
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        got = await aconverse(wrapped(case.build(saver), case, 2), case.inputs)
    assert got == await aconverse(case.build(InMemorySaver()), case.inputs)


@pytest.mark.parametrize("name", ["conditional", "subgraph_true", "send"])
@pytest.mark.parametrize("step", [1, 2])
def test_time_travel_equals_plain(name: str, step: int) -> None:
    case = ALL[name]

    def travel(app: Any) -> Any:
        app.invoke(copy.deepcopy(case.inputs[0]), CONFIG)
        past = next(s for s in app.get_state_history(CONFIG) if s.metadata["step"] == step)
        result = app.invoke(None, past.config)
        return Plain()(result), snapshots(list(app.get_state_history(CONFIG)))

    assert travel(wrapped(case.build(InMemorySaver()), case, 3)) == travel(case.build(InMemorySaver()))
