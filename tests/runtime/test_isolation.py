"""What particles must not share: store, caches, seeds, run ids, inputs, and the user's own objects."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy

import langgraph_amc as amc
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.llm_cache import SaltedCache
from tests.runtime.support import (
    ASK,
    THREAD,
    ReplyModel,
    Roots,
    agent,
    by_digits,
    call,
    number,
    seeded,
    texts,
    turn_of,
)


def wrapped(app: Any, **settings: Any) -> Any:
    return amc.wrap(app, **{"particles": 4, "value": by_digits, "resample": amc.every(1), "seed": 1, **settings})


# -- store -------------------------------------------------------------------------------------------


@tool
def remember(n: int) -> str:
    """Count, and keep a note."""
    store = get_store()
    seen = store.get(("count",), "n")
    store.put(("count",), "n", {"value": 1 if seen is None else seen.value["value"] + 1})
    store.put(("notes", amc.current_particle.get().particle), f"note-{n}", {"n": n})
    store.delete(("old",), "x")
    found = sorted(i.value["n"] for i in store.search(("notes",)))
    return f"{store.get(('count',), 'n').value['value']} {found} {store.list_namespaces(prefix=('notes',))}"


@tool
async def aremember(n: int) -> str:
    """Count, and keep a note."""
    store = get_store()
    seen = await store.aget(("count",), "n")
    await store.aput(("count",), "n", {"value": 1 if seen is None else seen.value["value"] + 1})
    await store.aput(("notes", amc.current_particle.get().particle), f"note-{n}", {"n": n})
    await store.adelete(("old",), "x")
    found = sorted(i.value["n"] for i in await store.asearch(("notes",)))
    value = (await store.aget(("count",), "n")).value["value"]
    return f"{value} {found} {await store.alist_namespaces(prefix=('notes',))}"


def remembering(name: str) -> Any:
    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        return call(name, turn, n=1000 * turn + number(turn)) if turn < 3 else AIMessage("done")

    return reply


def full_store() -> InMemoryStore:
    store = InMemoryStore()
    store.put(("old",), "x", {"n": 0})
    return store


def check_store(store: InMemoryStore, out: Any) -> None:
    assert store.get(("count",), "n").value == {"value": 3}, "each of three steps counted once"
    assert store.get(("old",), "x") is None
    lineage = out.amc.lineage(out.amc.winner.name)
    assert {i.namespace for i in store.search(("notes",))} <= {("notes", name) for name in lineage}
    calls = [c["args"]["n"] for m in out["messages"] if m.type == "ai" for c in m.tool_calls]
    assert sorted(i.value["n"] for i in store.search(("notes",))) == calls
    tools = [m.content for m in out["messages"] if m.type == "tool"]
    for turn, content in enumerate(tools):
        assert content.startswith(f"{turn + 1} {calls[: turn + 1]}"), "a particle reads its own writes"


def test_store_writes_of_the_winner_only() -> None:
    store = full_store()
    out = wrapped(agent(remembering("remember"), [remember], store=store)).invoke(ASK)
    assert any(c.resampled for c in out.amc.checks)
    check_store(store, out)


async def test_store_writes_of_the_winner_only_async() -> None:
    store = full_store()
    out = await wrapped(agent(remembering("aremember"), [aremember], store=store)).ainvoke(ASK)
    check_store(store, out)


def test_store_is_untouched_while_particles_run() -> None:
    store = full_store()
    seen: list[Any] = []

    def value(transcripts: Any) -> list[float]:
        seen.append((store.get(("count",), "n"), store.get(("old",), "x").value))
        return by_digits(transcripts)

    wrapped(agent(remembering("remember"), [remember], store=store), value=value).invoke(ASK)
    assert seen
    assert all(s == (None, {"n": 0}) for s in seen)


def test_overlay_agrees_with_a_store_that_was_written_to() -> None:
    base, real = InMemoryStore(), InMemoryStore()

    def write(store: BaseStore, part: int) -> None:
        for i in range(part * 6, part * 6 + 6):
            store.put(("a", str(i % 3)), f"k{i % 8}", {"i": i, "even": i % 2 == 0})
        store.delete(("a", "1"), f"k{part}")

    def looks(store: BaseStore) -> Any:
        search = [
            sorted((x.namespace, x.key, x.value["i"]) for x in store.search(prefix, filter=f, limit=limit))
            for prefix in [("a",), ("a", "1"), ("b",), ()]
            for f in [None, {"even": True}, {"i": {"$gt": 3}}]
            for limit in [100]
        ]
        names = [
            sorted(store.list_namespaces(prefix=p, suffix=s, max_depth=d))
            for p in [None, ("a",), ("*", "1")]
            for s in [None, ("2",)]
            for d in [None, 1]
        ]
        return search, names, store.get(("a", "0"), "k0"), len(store.search(("a",), limit=2, offset=1))

    for store in (base, real):
        write(store, 0)
    overlay = OverlayStore(base)
    for store in (overlay, real):
        write(store, 1)
    got, want = looks(overlay), looks(real)
    assert got[:2] == want[:2]
    assert got[3] == want[3]
    assert looks(overlay.fork())[:2] == want[:2]


def test_overlay_store_gives_copies() -> None:
    overlay = OverlayStore(InMemoryStore())
    value = {"list": [1]}
    overlay.put(("a",), "k", value)
    fork = overlay.fork()
    overlay.get(("a",), "k").value["list"].append(2)
    value["list"].append(3)
    assert fork.get(("a",), "k").value == {"list": [1]}


def test_items_of_a_store_in_memory_are_not_edited_in_place() -> None:
    @tool
    def count(n: int) -> str:
        """Count the usual way."""
        item = get_store().get(("count",), "n")
        item.value["value"] += 1
        get_store().put(("count",), "n", item.value)
        return str(item.value["value"])

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        return call("count", turn, n=number(turn)) if turn < 2 else AIMessage("done")

    store = InMemoryStore()
    store.put(("count",), "n", {"value": 0})
    out = wrapped(agent(reply, [count], store=store)).invoke(ASK)
    assert [m.content for m in out["messages"] if m.type == "tool"] == ["1", "2"]
    assert store.get(("count",), "n").value == {"value": 2}


# -- caches --------------------------------------------------------------------------------------------


@pytest.fixture
def llm_cache() -> Iterator[InMemoryCache]:
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


def test_llm_cache_is_salted_per_particle_and_restored(llm_cache: InMemoryCache) -> None:
    calls = Counter[str]()
    lock = threading.Lock()

    def reply(messages: list[Any]) -> AIMessage:
        with lock:
            calls["model"] += 1
            return AIMessage(f"answer {calls['model']}")

    app = wrapped(agent(reply), particles=4)
    first = app.invoke({"messages": [HumanMessage("go", id="h")]})
    assert calls["model"] == 4, "every particle asked the model itself"
    assert len({p.output["messages"][-1].content for p in first.amc.particles}) == 4
    assert get_llm_cache() is llm_cache
    again = app.invoke({"messages": [HumanMessage("go", id="h")]})
    assert calls["model"] == 4, "the same seed finds its own answers again"
    assert texts(again) == texts(first)
    wrapped(agent(reply), particles=4, seed=2).invoke({"messages": [HumanMessage("go", id="h")]})
    assert calls["model"] == 8


async def test_llm_cache_is_restored_after_concurrent_runs(llm_cache: InMemoryCache) -> None:
    app = wrapped(agent(seeded()))
    await asyncio.gather(*(app.ainvoke(ASK) for _ in range(5)))
    assert get_llm_cache() is llm_cache


def test_llm_cache_is_restored_after_a_failure(llm_cache: InMemoryCache) -> None:
    def reply(messages: list[Any]) -> AIMessage:
        assert isinstance(get_llm_cache(), SaltedCache)
        raise ValueError("down")

    with pytest.raises(ValueError, match="down"):
        wrapped(agent(reply)).invoke(ASK)
    assert get_llm_cache() is llm_cache


def test_node_cache_does_not_make_particles_equal() -> None:
    graph = StateGraph(MessagesState)
    model = ReplyModel(reply=lambda messages: AIMessage(f"answer {uuid.uuid4()}"))
    graph.add_node("act", lambda s: {"messages": [model.invoke(s["messages"])]}, cache_policy=CachePolicy())
    graph.add_edge(START, "act")
    cache = NodeCache()
    app = graph.compile(cache=cache)
    given = {"messages": [HumanMessage("go", id="h")]}
    plain = texts(app.invoke(given))
    assert texts(app.invoke(given)) == plain, "the cache works in plain runs"
    out = wrapped(app).invoke(given)
    assert len({p.output["messages"][-1].content for p in out.amc.particles}) == 4
    assert app.cache is cache


# -- identity ------------------------------------------------------------------------------------------


def test_a_given_run_id_is_not_shared() -> None:
    roots, run_id = Roots(), uuid.uuid4()
    wrapped(agent(seeded())).invoke(ASK, {"run_id": run_id, "callbacks": [roots]})
    assert len(roots.started) >= 4


def test_current_particle_is_visible_everywhere_and_its_seed_reproducible() -> None:
    def run() -> set[tuple[str, str, int]]:
        seen: set[tuple[str, str, int]] = set()

        def see(where: str) -> None:
            particle = amc.current_particle.get()
            seen.add((where, particle.particle, particle.seed))

        @tool
        def look(n: int) -> str:
            """Look around."""
            see("tool")
            return "looked"

        def reply(messages: list[Any]) -> AIMessage:
            see("model")
            return call("look", 0, n=1) if turn_of(messages) < 1 else AIMessage("done")

        def node(state: Any) -> dict[str, Any]:
            see("node")
            return {}

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_node("agent", agent(reply, [look]))
        graph.add_edge(START, "node")
        graph.add_edge("node", "agent")
        wrapped(graph.compile(), particles=3, value=None).invoke(ASK)
        return seen

    seen = run()
    assert {where for where, _, _ in seen} == {"node", "model", "tool"}
    assert {name for _, name, _ in seen} == {"p0", "p1", "p2"}
    assert len({s for _, _, s in seen}) == 3
    assert run() == seen
    assert amc.current_particle.get() is None


async def test_current_particle_in_async_nodes_and_threads() -> None:
    seen: set[tuple[str, str]] = set()

    async def anode(state: Any) -> dict[str, Any]:
        seen.add(("async", amc.current_particle.get().particle))
        await asyncio.to_thread(lambda: seen.add(("thread", amc.current_particle.get().particle)))
        await asyncio.sleep(0)
        return {"messages": [AIMessage(amc.current_particle.get().particle)]}

    def node(state: Any) -> dict[str, Any]:
        seen.add(("sync", amc.current_particle.get().particle))
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("anode", anode)
    graph.add_node("node", node)
    graph.add_edge(START, "anode")
    graph.add_edge("anode", "node")
    out = await wrapped(graph.compile(), particles=3, value=None).ainvoke(ASK)
    assert seen == {(w, f"p{i}") for w in ("async", "thread", "sync") for i in range(3)}
    assert [p.output["messages"][-1].content for p in out.amc.particles] == ["p0", "p1", "p2"]
    assert amc.current_particle.get() is None


def test_callbacks_see_a_root_run_per_particle() -> None:
    roots = Roots()
    out = wrapped(agent(seeded()), value=None).invoke(ASK, {"callbacks": [roots]})
    assert len(roots.started) == len(roots.ended) == 4
    assert not roots.errors
    assert roots.nested > 4
    assert out.amc.usage.calls == 16


def test_the_input_is_not_mutated_nor_shared() -> None:
    graph = StateGraph(dict)

    def spoil(state: Any) -> dict[str, Any]:
        state["list"].append(amc.current_particle.get().particle)
        return state

    graph.add_node("spoil", spoil)
    graph.add_edge(START, "spoil")
    given = {"list": ["mine"]}
    out = wrapped(graph.compile(), value=None).invoke(given)
    assert given == {"list": ["mine"]}
    assert [p.output["list"] for p in out.amc.particles] == [["mine", f"p{i}"] for i in range(4)]


def test_messages_of_the_input_get_no_ids_from_particles() -> None:
    message = HumanMessage("go")
    wrapped(agent(seeded())).invoke({"messages": [message]})
    assert message.id is None


@pytest.mark.parametrize("particles", [1, 3])
def test_the_users_app_is_unchanged(particles: int) -> None:
    app = agent(seeded(), saver=InMemorySaver(), store=InMemoryStore(), cache=NodeCache())
    before = dict(vars(app))
    kind = type(app)
    better = wrapped(app, particles=particles)
    better.invoke(ASK, THREAD)
    better.with_config(tags=["x"]).invoke(ASK, THREAD)
    assert vars(app) == before
    assert type(app) is kind
    assert not isinstance(app, type(better))
