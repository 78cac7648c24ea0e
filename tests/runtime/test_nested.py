"""Particles inside a node of another graph, beside a plain subgraph: interrupts, streams, memory, new processes."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import langgraph_amc as amc
from tests.runtime.equality import CONFIG, MODES, described, numbered
from tests.support.cases import ALL, writes
from tests.support.graphs import Log, _inner, _node

ROOT = Path(__file__).parents[2]


def asking(checkpointer: Any = None, **options: Any) -> Any:
    """Asks twice in one node, and once more in a subgraph of its own."""
    deep = StateGraph(Log)
    deep.add_node("d1", _node("d1-"))
    deep.add_node("d2", lambda s: {"log": [f"deep {interrupt('third?')}"]})
    deep.add_edge(START, "d1")
    deep.add_edge("d1", "d2")
    g = StateGraph(Log)
    g.add_node("s1", _node("s1-"))
    g.add_node("ask", lambda s: {"log": [f"{interrupt('first?')}-{interrupt('second?')}"]})
    g.add_node("deep", deep.compile())
    g.add_node("s3", _node("s3-"))
    for one, other in ((START, "s1"), ("s1", "ask"), ("ask", "deep"), ("deep", "s3")):
        g.add_edge(one, other)
    return g.compile(checkpointer=checkpointer, **options)


def asks_at_once() -> Any:
    g = StateGraph(Log)
    g.add_node("left", lambda s: {"log": [f"left {interrupt('left?')}"]})
    g.add_node("right", lambda s: {"log": [f"right {interrupt('right?')}"]})
    g.add_edge(START, "left")
    g.add_edge(START, "right")
    return g.compile()


def stops() -> Any:
    g = StateGraph(Log)
    for name in ("s1", "s2", "s3"):
        g.add_node(name, _node(f"{name}-"))
    for one, other in ((START, "s1"), ("s1", "s2"), ("s2", "s3")):
        g.add_edge(one, other)
    return g.compile(interrupt_before=["s2"], interrupt_after=["s2"])


def around(node: Any, saver: Any = None, rounds: int = 1) -> Any:
    g = StateGraph(Log)
    g.add_node("a", _node("a"))
    g.add_node("in", node)
    g.add_node("b", _node("b"))
    g.add_edge(START, "a")
    g.add_edge("a", "in")
    g.add_edge("in", "b")
    g.add_conditional_edges("b", lambda s: END if sum(x[0] == "b" for x in s["log"]) >= rounds else "a", ["a", END])
    return g.compile(checkpointer=saver)


def in_a_function(inner: Any) -> Callable[[Log], Any]:
    def call(s: Log) -> Any:
        inner.invoke({"log": [], "n": 0})  # the first of two calls: it does not take the second one's place
        return inner.invoke(s)

    return call


SETTINGS: dict[str, Any] = {"particles": 3, "boundary": "step", "seed": 1}
KINDS: dict[str, Callable[[Any], Any]] = {
    "AMCNode": lambda app: amc.AMCNode(app, **SETTINGS),
    "wrap": lambda app: amc.wrap(app, **SETTINGS),
    "one": lambda app: amc.AMCNode(app, particles=1),
}
START_LOG = {"log": [], "n": 0}


def told(app: Any, *inputs: Any) -> list[str]:
    return numbered((described(app.invoke(copy.deepcopy(given), CONFIG)) for given in inputs), ordered=False)


async def atold(app: Any, *inputs: Any) -> list[str]:
    return numbered([described(await app.ainvoke(copy.deepcopy(given), CONFIG)) for given in inputs], ordered=False)


ANSWERS = tuple(Command(resume=x) for x in "ABCDEF")
DIALOGUES: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "answers": (asking, (START_LOG, *ANSWERS[:3])),
    "unanswered": (asking, (START_LOG, None, ANSWERS[0], ANSWERS[1], None, ANSWERS[2])),
    "breakpoints": (stops, (START_LOG, None, None)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_interrupts_go_outward_and_answers_inward(kind: str, dialogue: str) -> None:
    build, inputs = DIALOGUES[dialogue]
    want = told(around(build(), InMemorySaver(), rounds=1), *inputs)
    assert told(around(KINDS[kind](build()), InMemorySaver()), *inputs) == want
    assert await atold(around(KINDS[kind](build()), InMemorySaver()), *inputs) == want
    assert "interrupt" in want[0] or dialogue == "breakpoints"


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_is_visited_again_asks_again(kind: str) -> None:
    inputs = (START_LOG, *ANSWERS)
    want = told(around(asking(), InMemorySaver(), rounds=2), *inputs)
    assert told(around(KINDS[kind](asking()), InMemorySaver(), rounds=2), *inputs) == want
    assert "'deep F'" in want[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use_async", [False, True])
async def test_several_interrupts_at_once(kind: str, use_async: bool) -> None:
    app = around(KINDS[kind](asks_at_once()), InMemorySaver())

    async def invoke(given: Any) -> Any:
        return await app.ainvoke(given, CONFIG) if use_async else app.invoke(given, CONFIG)

    asked = {i.value: i.id for i in (await invoke(copy.deepcopy(START_LOG)))["__interrupt__"]}
    assert set(asked) == {"left?", "right?"}
    with pytest.raises(RuntimeError, match="interrupt id"):
        await invoke(Command(resume="which"))
    first = await invoke(Command(resume={asked["left?"]: "L"}))
    assert [i.value for i in first["__interrupt__"]] == ["right?"]
    out = await invoke(Command(resume={asked["right?"]: "R"}))
    assert out["log"][-3:] == ["left L", "right R", "b1"]


@pytest.mark.parametrize(("kind", "left"), [("AMCNode", 0), ("wrap", 1)])
def test_no_particles_are_saved_there(kind: str, left: int) -> None:
    """Of a run that has finished nothing, or where its node may do more than run it, the answer."""
    saver = InMemorySaver()
    app = around(KINDS[kind](_inner(None)), saver)
    app.invoke(START_LOG, CONFIG)
    assert len([t for t in saver.list(None) if t.config["configurable"]["checkpoint_ns"]]) == left
    app = around(KINDS[kind](asking()), saver)
    app.invoke(START_LOG, CONFIG)
    spaces = {t.config["configurable"]["checkpoint_ns"].partition(":")[0] for t in saver.list(None)}
    assert spaces == {"", "in"}
    assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == {"t"}


def test_the_state_of_a_paused_winner_is_seen_from_outside() -> None:
    apps = [around(node, InMemorySaver()) for node in (asking(), KINDS["wrap"](asking()))]
    for app in apps:
        app.invoke(START_LOG, CONFIG)
    plain, wrapped = (app.get_state(CONFIG, subgraphs=True).tasks[0].state for app in apps)
    assert (wrapped.values, wrapped.next) == (plain.values, plain.next)


@pytest.mark.parametrize("use_async", [False, True])
async def test_an_answer_that_a_human_approves_is_the_one_given(use_async: bool) -> None:
    """The node runs again on resume; particles must not, or another one could win."""
    runs = 0

    def count(s: Log) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        return {"log": [f"run {runs}"]}

    g = StateGraph(Log)
    g.add_node("count", count)
    g.add_edge(START, "count")
    inner = amc.wrap(g.compile(), **SETTINGS)

    def propose(s: Log) -> dict[str, Any]:
        return {"log": [inner.invoke({"log": [], "n": 0})["log"][0], interrupt("fine?")]}

    async def apropose(s: Log) -> dict[str, Any]:
        return {"log": [(await inner.ainvoke({"log": [], "n": 0}))["log"][0], interrupt("fine?")]}

    saver = InMemorySaver()
    app = around(apropose if use_async else propose, saver)
    await app.ainvoke(START_LOG, CONFIG) if use_async else app.invoke(START_LOG, CONFIG)
    approval: Any = Command(resume="yes")
    out = await app.ainvoke(approval, CONFIG) if use_async else app.invoke(approval, CONFIG)
    assert runs == 3
    assert out["log"][2] == "yes"
    assert len([t for t in saver.list(None) if t.config["configurable"]["checkpoint_ns"]]) == 1


def test_two_calls_in_one_node_keep_apart() -> None:
    want = told(around(in_a_function(asks_in_order()), InMemorySaver()), START_LOG, *ANSWERS[:2])
    inner = amc.wrap(asks_in_order(), **SETTINGS)
    assert told(around(in_a_function(inner), InMemorySaver()), START_LOG, *ANSWERS[:2]) == want


def asks_in_order() -> Any:
    g = StateGraph(Log)
    g.add_node("ask", lambda s: {"log": [f"told {interrupt(len(s['log']))}"]})
    g.add_edge(START, "ask")
    return g.compile()


def test_states_are_mapped_on_resume() -> None:
    node = amc.AMCNode(
        asking(),
        to_inner=lambda s: {"log": ["inner"], "n": 0},
        to_outer=lambda out: {"log": [f"{len(out['log'])} lines"]},
        **SETTINGS,
    )
    app = around(node, InMemorySaver())
    for given in (START_LOG, *ANSWERS[:3]):
        out = app.invoke(given, CONFIG)
    assert out["log"][0] == "a0"
    assert out["log"][1].endswith("lines")


def test_a_subgraph_with_a_memory_of_its_own_keeps_it() -> None:
    inputs = (START_LOG, START_LOG, {"log": ["x"], "n": 5})
    want = told(around(_inner(True), InMemorySaver()), *inputs)
    got = told(around(amc.wrap(_inner(True), **SETTINGS), InMemorySaver()), *inputs)
    assert got == want


def test_without_a_saver_around_it_is_refused_with_advice() -> None:
    app = around(amc.AMCNode(asking(), **SETTINGS))
    with pytest.raises(amc.AMCError, match="checkpointer"):
        app.invoke(START_LOG)


@pytest.mark.parametrize("mode", [*MODES, [m for m in MODES if m not in ("checkpoints", "debug")]])
@pytest.mark.parametrize("kind", ["AMCNode", "wrap"])
@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("subgraphs", [True, False])
async def test_the_winner_streams_through_the_graph_around(kind: str, mode: Any, subgraphs: bool, saver: bool) -> None:
    """As the subgraph would: custom events, tokens and states, under its namespace."""
    options = {"stream_mode": mode, "subgraphs": subgraphs}

    def seen(node: Any) -> list[str]:
        app = around(node, InMemorySaver() if saver else None)
        return numbered(map(described, app.stream(START_LOG, CONFIG, **options)), ordered=False)

    async def aseen(node: Any) -> list[str]:
        app = around(node, InMemorySaver() if saver else None)
        events = [described(e) async for e in app.astream(START_LOG, CONFIG, **options)]
        return numbered(events, ordered=False)

    if mode in ("checkpoints", "debug"):
        # AMC's runs inside are roots, without parents in their metadata; only wrap is known to be a subgraph
        if kind == "wrap" and saver:
            got = seen(KINDS[kind](writes(None)))
            assert len(got) == len(seen(writes(None)))
            assert all("amc-" not in event for event in got)
        return
    for build in (lambda: writes(None), lambda: ALL["subgraph_inherited"].build(None)):
        assert sorted(seen(KINDS[kind](build()))) == sorted(seen(build()))
        assert sorted(await aseen(KINDS[kind](build()))) == sorted(await aseen(build()))


PROGRAM = """
import sys
sys.path[:0] = [{root!r}]
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from tests.runtime.test_nested import KINDS, START_LOG, CONFIG, around, asking
with SqliteSaver.from_conn_string({path!r}) as saver:
    app = around(KINDS[{kind!r}](asking()), saver)
    out = app.invoke(START_LOG if {answer!r} is None else Command(resume={answer!r}), CONFIG)
    print([i.value for i in out.get("__interrupt__", [])] or out["log"])
"""


@pytest.mark.parametrize("kind", ["AMCNode"])
def test_a_new_process_goes_on(kind: str, tmp_path: Path) -> None:
    def process(answer: str | None) -> str:
        program = PROGRAM.format(root=str(ROOT), path=str(tmp_path / "saver.db"), kind=kind, answer=answer)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [process(None), process("A")] == ["['first?']", "['second?']"]
    with SqliteSaver.from_conn_string(str(tmp_path / "saver.db")) as saver:
        app = around(KINDS[kind](asking()), saver)
        assert [i.value for i in app.invoke(Command(resume="B"), CONFIG)["__interrupt__"]] == ["third?"]
        assert "A-B" in app.invoke(Command(resume="C"), CONFIG)["log"]


CRASH = """
import os, sys, time
sys.path[:0] = [{root!r}]
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
import langgraph_amc as amc
from tests.runtime.test_nested import CONFIG, START_LOG, around
from tests.support.graphs import Log

def step(s):
    time.sleep(0.1)
    with open({calls!r}, "a") as file:
        file.write("x")
    if {kill} and os.path.getsize({calls!r}) >= {kill}:  # particles run side by side: the size may step over it
        os._exit(9)
    return {{"log": [f"step {{s['n']}}"], "n": s["n"] + 1}}

g = StateGraph(Log)
g.add_node("step", step)
g.add_edge(START, "step")
g.add_conditional_edges("step", lambda s: END if s["n"] > 5 else "step", ["step", END])
node = amc.AMCNode(g.compile(), particles=3, boundary="step", resample=amc.every(1), seed=1, journal={journal!r})
with SqliteSaver.from_conn_string({path!r}) as saver:
    print(around(node, saver).invoke(START_LOG if {kill} else None, CONFIG)["log"])
"""


def test_a_killed_process_goes_on_where_it_was(tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("calls", "journal", "path")}

    def process(kill: int) -> Any:
        program = CRASH.format(root=str(ROOT), kill=kill, **names)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert process(10).returncode == 9
    before = Path(names["calls"]).stat().st_size
    done = process(0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(["a0", "a0", *(f"step {n}" for n in range(1, 6)), "b6"])
    assert Path(names["calls"]).stat().st_size - before < 15, "as many as a run from the start takes"


async def test_async_sqlite(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        app = around(KINDS["AMCNode"](asking()), saver)
        want = told(around(asking(), InMemorySaver()), START_LOG, *ANSWERS[:3])
        assert await atold(app, START_LOG, *ANSWERS[:3]) == want


def test_particles_around_particles() -> None:
    """An outer particle's interrupted inner winner is part of that particle."""
    inputs = (START_LOG, *ANSWERS[:3])
    want = told(around(asking(), InMemorySaver()), *inputs)
    outer = amc.wrap(around(amc.AMCNode(asking(), **SETTINGS), InMemorySaver()), particles=2, boundary="step", seed=2)
    assert told(outer, *inputs) == want
