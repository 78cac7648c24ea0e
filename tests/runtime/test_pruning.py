"""A particle that is dropped leaves no error in the user's traces, and nothing behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, Roots, agent, by_digits, by_hash, call, other_tasks, seeded, turn_of


def wrapped(app: Any, **settings: Any) -> Any:
    return amc.wrap(app, **{"particles": 6, "value": by_digits, "resample": amc.every(1), "seed": 5, **settings})


def nested_app(saver: Any = None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("before", lambda s: {})
    graph.add_node("agent", agent(seeded()))
    graph.add_edge(START, "before")
    graph.add_edge("before", "agent")
    return graph.compile(checkpointer=saver)


def assert_clean(roots: Roots, threads: set[threading.Thread]) -> None:
    assert roots.errors == []
    assert roots.ended == set(roots.started)
    left = [t for t in set(threading.enumerate()) - threads if t.name.startswith("amc-particle")]
    assert not left


@pytest.mark.parametrize("saver", [None, InMemorySaver])
def test_pruned_particles_end_cleanly(saver: Any) -> None:
    roots, threads = Roots(), set(threading.enumerate())
    out = wrapped(agent(seeded(), saver=saver and saver())).invoke(ASK, {**THREAD, "callbacks": [roots]})
    assert out.amc.pruned
    assert len(roots.started) == len(out.amc.trajectories)
    assert_clean(roots, threads)


async def test_pruned_particles_end_cleanly_async() -> None:
    roots, threads = Roots(), set(threading.enumerate())
    app = wrapped(agent(seeded(), saver=InMemorySaver()))
    out = await app.ainvoke(ASK, {**THREAD, "callbacks": [roots]})
    assert out.amc.pruned
    assert not other_tasks()
    assert_clean(roots, threads)


@pytest.mark.parametrize("mode", ["messages", "custom", "values"])
def test_pruned_particles_end_cleanly_with_waiters(mode: str) -> None:
    """Streaming messages, custom events or subgraphs makes LangGraph wait on its queue in one more thread."""
    roots, threads = Roots(), set(threading.enumerate())
    app = wrapped(nested_app(), boundary="step")
    list(app.stream(ASK, {"callbacks": [roots]}, stream_mode=mode, subgraphs=True))
    assert_clean(roots, threads)


async def test_pruned_particles_end_cleanly_with_waiters_async() -> None:
    roots = Roots()
    app = wrapped(agent(seeded()))
    async for _ in app.astream(ASK, {"callbacks": [roots]}, stream_mode=["messages", "custom"], subgraphs=True):
        pass
    assert not other_tasks()
    assert_clean(roots, set(threading.enumerate()))


@pytest.fixture
def llm_cache() -> Any:
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


def test_closing_a_stream_early_prunes_everything(llm_cache: Any) -> None:
    roots, threads, saver = Roots(), set(threading.enumerate()), InMemorySaver()
    app = wrapped(agent(seeded(), saver=saver), value=by_hash, tau=1e-4)
    events = app.stream(ASK, {**THREAD, "callbacks": [roots]}, stream_mode="values")
    next(events)
    events.close()
    assert len(roots.started) >= 6
    assert get_llm_cache() is llm_cache
    assert saver.get_tuple(THREAD) is None, "nothing is committed"
    assert_clean(roots, threads)


def test_breaking_out_of_a_stream_prunes_everything(llm_cache: Any) -> None:
    roots = Roots()
    for _ in wrapped(agent(seeded()), value=by_hash, tau=1e-4).stream(ASK, {"callbacks": [roots]}):
        break
    assert_clean(roots, set(threading.enumerate()))
    assert get_llm_cache() is llm_cache


async def test_closing_a_stream_early_prunes_everything_async(llm_cache: Any) -> None:
    roots, saver = Roots(), InMemorySaver()
    app = wrapped(agent(seeded(), saver=saver), value=by_hash, tau=1e-4)
    events = app.astream(ASK, {**THREAD, "callbacks": [roots]}, stream_mode="values")
    await anext(events)
    await events.aclose()
    assert not other_tasks()
    assert_clean(roots, set(threading.enumerate()))
    assert get_llm_cache() is llm_cache
    assert saver.get_tuple(THREAD) is None


async def test_cancelling_mid_model_call(llm_cache: Any) -> None:
    reached = asyncio.Event()
    cancelled = 0

    async def reply(messages: list[Any]) -> AIMessage:
        nonlocal cancelled
        if turn_of(messages) == 1:
            reached.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
                raise
        return call("note", turn_of(messages), n=1)

    saver = InMemorySaver()
    app = wrapped(agent(reply, saver=saver))
    task = asyncio.create_task(app.ainvoke(ASK, THREAD))
    await reached.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == 6
    assert get_llm_cache() is llm_cache
    assert saver.get_tuple(THREAD) is None
    assert not other_tasks()
    with pytest.raises(amc.ConfigurationError):
        amc.last_run(app)


@pytest.mark.parametrize("particles", [1, 4])
async def test_timeout_around_a_run(particles: int) -> None:
    async def reply(messages: list[Any]) -> AIMessage:
        await asyncio.sleep(60)
        return AIMessage("late")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await wrapped(agent(reply), particles=particles).ainvoke(ASK)
    assert not other_tasks()


@pytest.mark.parametrize("particles", [1, 4])
def test_keyboard_interrupt(llm_cache: Any, particles: int) -> None:
    """Raised in a model call, as Ctrl-C is while a single particle runs in the caller's thread."""
    saver = InMemorySaver()

    def reply(messages: list[Any]) -> AIMessage:
        if turn_of(messages) == 1:
            raise KeyboardInterrupt
        return seeded()(messages)

    with pytest.raises(KeyboardInterrupt):
        wrapped(agent(reply, saver=saver), particles=particles).invoke(ASK, THREAD)
    assert get_llm_cache() is llm_cache
    left = [t for t in threading.enumerate() if t.name.startswith("amc-particle")]
    assert not left
    if particles > 1:
        assert saver.get_tuple(THREAD) is None


def test_control_c_in_the_main_thread_stops_all_particles(llm_cache: Any) -> None:
    calls = 0
    main = threading.main_thread().ident
    assert main is not None

    def reply(messages: list[Any]) -> AIMessage:
        nonlocal calls
        calls += 1
        if calls == 9:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.01)
        return call("note", turn_of(messages), n=1)

    saver, roots = InMemorySaver(), Roots()
    app = wrapped(agent(reply, saver=saver), particles=4, value=None)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(ASK, {**THREAD, "callbacks": [roots], "recursion_limit": 200})
    assert calls < 30, "nobody ran on to the end of 400 calls"
    assert saver.get_tuple(THREAD) is None
    assert get_llm_cache() is llm_cache
    assert_clean(roots, set())


def test_a_value_function_that_raises_prunes_everything(llm_cache: Any) -> None:
    roots = Roots()

    def value(transcripts: Any) -> list[float]:
        raise RuntimeError("judge is down")

    with pytest.raises(RuntimeError, match="judge is down"):
        wrapped(agent(seeded()), value=value).invoke(ASK, {"callbacks": [roots]})
    assert_clean(roots, set(threading.enumerate()))
    assert get_llm_cache() is llm_cache


async def test_a_value_function_that_raises_prunes_everything_async(llm_cache: Any) -> None:
    roots = Roots()

    def value(transcripts: Any) -> list[float]:
        raise RuntimeError("judge is down")

    with pytest.raises(RuntimeError, match="judge is down"):
        await wrapped(agent(seeded()), value=value).ainvoke(ASK, {"callbacks": [roots]})
    assert not other_tasks()
    assert_clean(roots, set(threading.enumerate()))
    assert get_llm_cache() is llm_cache


def test_a_predicate_that_raises_is_the_users_error() -> None:
    def boundary(edge: amc.Edge) -> bool:
        raise LookupError("no such key")

    with pytest.raises(LookupError, match="no such key"):
        wrapped(agent(seeded()), boundary=boundary).invoke(ASK)


def test_breaking_out_of_a_stream_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    async def first() -> Any:
        async for event in amc.wrap(agent(seeded()), particles=4).astream(ASK):
            return event

    assert asyncio.run(first()) is not None
    gc.collect()
    assert "Error" not in capfd.readouterr().err
