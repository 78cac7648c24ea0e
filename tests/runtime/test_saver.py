"""The copy-on-write saver, and handing a winner over to the app's own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.runtime.commit import ConcurrentWriteError
from langgraph_amc.runtime.saver import ParticleSaver
from tests.runtime.support import ASK, THREAD, agent, by_hash, seeded, texts


@pytest.mark.parametrize("over", [False, True])
async def test_conformance(over: bool) -> None:
    """LangGraph's own suite for savers; a particle has a single path, one test puts two roots in a thread."""

    @checkpointer_test(name="ParticleSaver")
    async def saver() -> AsyncIterator[BaseCheckpointSaver]:
        yield ParticleSaver(InMemorySaver() if over else None)

    report = await validate(saver)
    wanted = {"put", "put_writes", "get_tuple", "delete_thread", "list"}
    results = {name: r for name, r in report.results.items() if name in wanted}
    assert set(results) == wanted
    failures = [f for r in results.values() for f in r.failures]
    assert [f.split(":")[0] for f in failures] == ["test_list_metadata_custom_keys"]


def config(checkpoint_id: str | None = None) -> Any:
    configurable: dict[str, Any] = {"thread_id": "t", "checkpoint_ns": ""}
    if checkpoint_id:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def put(saver: ParticleSaver, parent: str | None, version: int, **values: Any) -> str:
    checkpoint = empty_checkpoint()
    checkpoint["id"] = f"{version:04d}"
    checkpoint["channel_values"] = dict(values)
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    versions = dict.fromkeys(values, version)
    saver.put(config(parent), checkpoint, {"source": "loop", "step": version, "parents": {}}, versions)
    return checkpoint["id"]


def value(saver: ParticleSaver, name: str, checkpoint_id: str | None = None) -> Any:
    found = saver.get_tuple(config(checkpoint_id))
    assert found is not None
    return found.checkpoint["channel_values"][name]


@pytest.mark.parametrize("make", [lambda: {"a": [1]}, lambda: [[1]], lambda: [HumanMessage("x", id="1")]])
def test_forks_are_independent_under_mutation(make: Any) -> None:
    saver = ParticleSaver()
    live = make()
    put(saver, None, 1, bag=live)
    fork = saver.fork()
    spoil(live)
    spoil(value(saver, "bag"))
    spoil(value(fork, "bag"))
    assert value(saver, "bag") == make()
    assert value(fork, "bag") == make()


def spoil(bag: Any) -> None:
    if isinstance(bag, dict):
        bag["a"].append(2)
    elif isinstance(bag[0], list):
        bag[0].append(2)
    else:
        bag[0].content = "spoilt"
        bag.append(AIMessage("more"))


def test_a_message_edited_in_place_is_saved_anew() -> None:
    saver = ParticleSaver()
    messages = [HumanMessage("x", id="1"), HumanMessage("y", id="2")]
    first = put(saver, None, 1, messages=messages)
    messages = [*value(saver, "messages"), AIMessage("z", id="3")]
    messages[0].content = "edited"
    second = put(saver, first, 2, messages=messages)
    assert [m.content for m in value(saver, "messages", first)] == ["x", "y"]
    assert [m.content for m in value(saver, "messages", second)] == ["edited", "y", "z"]


def test_forks_write_apart() -> None:
    saver = ParticleSaver()
    first = put(saver, None, 1, n=1)
    fork = saver.fork()
    saver.put_writes(config(first), [("n", "mine")], "task")
    fork.put_writes(config(first), [("n", "theirs")], "task")
    put(saver, first, 2, n=2)
    put(fork, first, 3, n=3)
    assert (value(saver, "n"), value(fork, "n")) == (2, 3)
    for one, written in ((saver, "mine"), (fork, "theirs")):
        found = one.get_tuple(config(first))
        assert found is not None
        assert found.pending_writes == [("task", "n", written)]


def test_late_writes_land_on_the_edge_they_belong_to() -> None:
    saver = ParticleSaver()
    first = put(saver, None, 1, n=1)
    second = put(saver, first, 2, n=2)
    fork = saver.fork()
    saver.put_writes(config(first), [("n", "late")], "task")
    third = put(saver, second, 3, n=3)
    writes = {i: saver.get_tuple(config(i)).pending_writes for i in (first, second, third)}  # type: ignore[union-attr]
    assert writes == {first: [("task", "n", "late")], second: [], third: []}
    assert [n.edge != {} for n in saver.lineage()] == [False, True, False]
    assert fork.lineage()[:2] == saver.lineage()[:2]


def test_values_that_cannot_be_copied_are_reported() -> None:
    saver = ParticleSaver()
    put(saver, None, 1, f=lambda: 1, n=1)
    assert saver.shared_channels() == {"f"}


def test_the_apps_saver_is_never_written_by_particles() -> None:
    base = InMemorySaver()
    app = agent(seeded(), saver=base)
    app.invoke(ASK, THREAD)
    before = len(list(base.list(THREAD)))
    counts: list[int] = []

    def scored(transcripts: Any) -> list[float]:
        counts.append(len(list(base.list(THREAD))))
        return by_hash(transcripts)

    amc.wrap(app, particles=3, value=scored, resample=amc.every(1)).invoke(ASK, THREAD)
    assert set(counts) == {before}
    assert len(list(base.list(THREAD))) > before


# -- handing over --------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("use_async", [False, True])
def test_a_concurrent_write_is_refused_and_nothing_committed(existing: bool, use_async: bool) -> None:
    base = InMemorySaver()
    app = agent(seeded(), saver=base)
    if existing:
        app.invoke(ASK, THREAD)
    done = False

    def meddle(transcripts: Any) -> list[float]:
        nonlocal done
        if not done:
            done = True
            app.update_state(THREAD, {"messages": [HumanMessage("meddling", id="m")]})
        return by_hash(transcripts)

    better = amc.wrap(app, particles=3, value=meddle, resample=amc.every(1))
    with pytest.raises(ConcurrentWriteError, match="nothing was committed"):
        asyncio.run(better.ainvoke(ASK, THREAD)) if use_async else better.invoke(ASK, THREAD)
    assert texts(app.get_state(THREAD).values)[-1] == "meddling"
    with pytest.raises(amc.ConfigurationError):
        amc.last_run(better)


def test_only_the_winner_is_committed_with_its_own_ids() -> None:
    base = InMemorySaver()
    better = amc.wrap(agent(seeded(), saver=base), particles=4, value=by_hash, resample=amc.every(1), seed=1)
    out = better.invoke(ASK, THREAD)
    history = list(better.get_state_history(THREAD))
    assert texts(history[0].values) == texts(out)
    assert [s.metadata["step"] for s in history] == list(range(len(history) - 2, -2, -1))
    ids = [s.config["configurable"]["checkpoint_id"] for s in history]
    assert ids == sorted(ids, reverse=True)
    for newer, older in itertools.pairwise(history):
        assert newer.parent_config["configurable"]["checkpoint_id"] == older.config["configurable"]["checkpoint_id"]


def test_time_travel_and_branching_off() -> None:
    better = amc.wrap(agent(seeded(), saver=InMemorySaver()), particles=3, value=by_hash, resample=amc.every(1), seed=1)
    out = better.invoke(ASK, THREAD)
    past = next(s for s in better.get_state_history(THREAD) if s.next == ("tools",))
    again = better.invoke(None, past.config)
    assert texts(again)[: len(past.values["messages"])] == texts(past.values)
    edited = better.update_state(past.config, {"messages": [HumanMessage("other way", id="o")]})
    third = better.invoke(None, edited)
    assert "other way" in texts(third)
    assert texts(better.get_state(THREAD).values) == texts(third)
    assert texts(out)[0] == "go"


def test_another_thread_is_not_disturbed() -> None:
    better = amc.wrap(agent(seeded(), saver=InMemorySaver()), particles=3, seed=1)
    for name in "ab":
        better.invoke({"messages": [("user", name)]}, {"configurable": {"thread_id": name}})
    assert texts(better.get_state({"configurable": {"thread_id": "a"}}).values)[0] == "a"
