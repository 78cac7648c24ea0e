"""The patched methods: untouched behaviour outside particles and for pure tools, and every way a call can take."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException, tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Command
from pydantic import BaseModel

import langgraph_amc.runtime.effects as fx
from tests.effects.support import scope

CALL = {"type": "tool_call", "name": "t", "args": {"n": 1}, "id": "c1"}


class Events(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.seen.append(("start", serialized["name"], input_str, kwargs["inputs"]))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.seen.append(("end", getattr(output, "content", output)))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.seen.append(("error", type(error).__name__))


class AsyncEvents(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.seen.append(("start", serialized["name"], input_str, kwargs["inputs"]))


def pair(n: int) -> tuple[str, dict[str, int]]:
    """A pair."""
    return str(n), {"n": n}


async def apair(n: int) -> tuple[str, dict[str, int]]:
    """A pair."""
    return str(n), {"n": n}


def fails(n: int) -> str:
    """Fails."""
    raise ToolException("bad")


def tools() -> list[BaseTool]:
    return [
        StructuredTool.from_function(pair, apair, name="t", response_format="content_and_artifact"),
        StructuredTool.from_function(fails, name="t", handle_tool_error=True),
        StructuredTool.from_function(lambda n: Command(update={"n": n}), name="t", description="t"),
        StructuredTool.from_function(lambda n: [{"type": "text", "text": "x"}], name="t", description="t"),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("input", [CALL, {"n": 1}], ids=["call", "arguments"])
@pytest.mark.parametrize("policy", ["pure", "stateful", "commit"])
async def test_the_same_answer_and_callbacks_as_without_a_scope(number: int, input: Any, policy: Any) -> None:
    made = tools()[number]
    plain, gated = Events(), Events()
    expected = made.invoke(input, {"callbacks": [plain]})
    for asynchronous in (False, True):
        gated.seen.clear()
        own = scope({"t": policy})
        own.release_all()
        config: Any = {"callbacks": [gated]}
        with own.enter():
            found = await made.ainvoke(input, config) if asynchronous else made.invoke(input, config)
        assert found == expected
        assert type(found) is type(expected)
        assert gated.seen == plain.seen


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("input", [CALL, {"n": 1}], ids=["call", "arguments"])
async def test_recorded_answers_are_the_same(number: int, input: Any) -> None:
    made = tools()[number]
    first = scope({"t": "commit"})
    first.release_all()
    with first.enter():
        expected = made.invoke(input)
    for asynchronous in (False, True):
        again = scope({"t": "commit"}, outbox=first.outbox)
        again.release_all()
        events = Events()
        config: Any = {"callbacks": [events]}
        with again.enter():
            found = await made.ainvoke(input, config) if asynchronous else made.invoke(input, config)
        if isinstance(expected, Command):  # LangGraph's serialiser turns the empty goto from a tuple into a list
            found = Command(update=found.update, goto=tuple(found.goto))
        assert found == expected
        assert type(found) is type(expected)
        assert events.seen == []


async def test_a_result_that_cannot_be_stored_is_known_to_have_taken_place() -> None:
    class Receipt:
        pass

    receipt = Receipt()
    made = StructuredTool.from_function(lambda n: receipt, name="t", description="t")
    own = scope({"t": "commit"})
    own.release_all()
    with own.enter():
        assert made.invoke({"n": 1}) is receipt
    again = scope({"t": "commit"}, outbox=own.outbox)
    again.release_all()
    with again.enter(), pytest.raises(fx.EffectUnknownError, match=r"took place.*Receipt"):
        made.invoke({"n": 1})


def test_a_held_call_calls_back_nobody() -> None:
    events = Events()
    with scope({"t": "commit"}).enter(), pytest.raises(GraphInterrupt):
        tools()[0].invoke(CALL, {"callbacks": [events]})
    assert events.seen == []


def test_invalid_arguments_are_refused_by_the_tool() -> None:
    own = scope({"t": "commit"})
    own.release_all()
    with pytest.raises(ValueError, match="validation") as plain:
        tools()[0].invoke({"n": "x"})
    with own.enter(), pytest.raises(type(plain.value), match="validation"):
        tools()[0].invoke({"n": "x"})


def test_signature_and_identity_are_kept() -> None:
    scope({})
    assert list(inspect.signature(BaseTool.run).parameters)[:2] == ["self", "tool_input"]
    assert "tool_call_id" in inspect.signature(BaseTool.arun).parameters
    assert inspect.iscoroutinefunction(BaseTool.arun)
    run = BaseTool.run
    scope({})
    assert BaseTool.run is run


def test_nothing_is_patched_before_the_first_scope() -> None:
    code = (
        "from langchain_core.tools import BaseTool; before = BaseTool.run, BaseTool.arun\n"
        "import langgraph_amc, langgraph_amc.runtime.effects as fx\n"
        "fx.effect('commit')(lambda: 1)\n"
        "assert (BaseTool.run, BaseTool.arun) == before\n"
        "from langgraph_amc.runtime.outbox import MemoryOutbox\n"
        "fx.EffectScope(fx.EffectRules(), 'r', 'p', MemoryOutbox())\n"
        "assert BaseTool.run is not before[0] and BaseTool.arun is not before[1]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_every_kind_of_tool_is_gated() -> None:
    class Arguments(BaseModel):
        n: int = 1

    class Own(BaseTool):
        name: str = "t"
        description: str = "t"
        args_schema: Any = Arguments

        def _run(self, n: int = 1) -> str:
            raise AssertionError("must not run")

    class Overrides(Own):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("must not run")

        async def arun(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("must not run")

    def refuse(*args: Any, **kwargs: Any) -> str:
        raise AssertionError("must not run")

    async def arefuse(n: int) -> str:
        raise AssertionError("must not run")

    kinds: list[BaseTool] = [
        Own(),
        Overrides(),
        Tool("t", refuse, "t"),
        StructuredTool.from_function(lambda n: refuse(), name="t", description="t"),
        StructuredTool.from_function(coroutine=arefuse, name="t", description="t"),
        StructuredTool(name="t", description="t", func=refuse, args_schema={"type": "object", "properties": {"n": {}}}),
    ]
    for made in kinds:
        rules = fx.EffectRules(named={"t": "commit"}, tools={"t": made})
        for input in (CALL, {"n": 1}):
            own = scope(rules)
            with own.enter(), pytest.raises(GraphInterrupt):
                await made.ainvoke(input)
            if getattr(made, "coroutine", None) is None:
                with own.enter(), pytest.raises(GraphInterrupt):
                    made.invoke(input)
                with own.enter(), pytest.raises(GraphInterrupt):
                    made.run({"n": 1})
            assert own.held[0].arguments == {"n": 1}


async def test_scopes_follow_contexts_into_threads_and_tasks() -> None:
    @tool
    def t(n: int) -> str:
        """A tool."""
        return "ran"

    own = scope({"t": "commit"})
    with own.enter(), ThreadPoolExecutor(4) as pool:
        with pytest.raises(GraphInterrupt):
            pool.submit(copy_context().run, t.invoke, {"n": 1}).result()
        with pytest.raises(GraphInterrupt):
            await asyncio.create_task(t.ainvoke({"n": 2}))
        with pytest.raises(GraphInterrupt):
            await asyncio.to_thread(t.invoke, {"n": 3})
    assert [h.arguments["n"] for h in own.held] == [1, 2, 3]
    assert t.invoke({"n": 4}) == "ran"


async def test_particles_at_the_same_time_do_not_mix() -> None:
    seen: list[tuple[str, str | None]] = []

    @tool
    async def t(n: int) -> str:
        """A tool."""
        await asyncio.sleep(0.001)
        current = fx.current_effects.get()
        assert current is not None
        seen.append((current.particle, fx.current_effect.get()))
        return "ran"

    async def particle(name: str) -> None:
        own = scope({"t": "commit"}, name)
        own.release_all()
        with own.enter():
            await asyncio.gather(*(t.ainvoke({"n": k}) for k in range(5)))
        assert {r.particle for r in own.records} == {name}
        assert len(own.records) == 5

    await asyncio.gather(*(particle(f"p{k}") for k in range(20)))
    assert len({key for _, key in seen}) == 100


async def test_cancelled_effects_are_unknown_not_repeated() -> None:
    started = asyncio.Event()

    @tool
    async def t(n: int) -> str:
        """A tool."""
        started.set()
        await asyncio.sleep(30)
        return "ran"

    own = scope({"t": "commit"})
    own.release_all()
    with own.enter():
        job = asyncio.create_task(t.ainvoke(CALL))
        await started.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        with pytest.raises(fx.EffectUnknownError):
            await t.ainvoke(CALL)
    assert [r.state for r in own.records] == ["unknown"]
