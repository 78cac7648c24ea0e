"""Stateful tools: every particle acts on its own copy of a session's object."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import langgraph_amc.runtime.effects as fx
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.outbox import MemoryOutbox
from langgraph_amc.tasks.environment import ReplayEnvironment
from tests.effects.support import ASK, drive, scope, thread
from tests.effects.test_commit import Log, agent

SYNC = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


class Desk:
    """A world without snapshots, which counts its copies."""

    made: int
    closed: int

    def __init__(self) -> None:
        self.notes: list[str] = []
        type(self).made += 1

    def write(self, note: str) -> str:
        self.notes.append(note)
        return f"{len(self.notes)} notes, last {note}"

    def close(self) -> None:
        type(self).closed += 1


def desk_class() -> type[Desk]:
    return type("CountedDesk", (Desk,), {"made": 0, "closed": 0})


class Copyable(Desk):
    def snapshot(self) -> list[str]:
        return list(self.notes)

    def restore(self, token: list[str]) -> None:
        self.notes = list(token)


def copyable_class() -> type[Copyable]:
    return type("CountedCopyable", (Copyable,), {"made": 0, "closed": 0})


def sessions() -> list[Any]:
    functions = {"snapshot": lambda d: copy.deepcopy(d.notes), "restore": _restored}
    return [
        pytest.param(lambda: fx.Session(desk_class()), id="replay"),
        pytest.param(lambda: fx.Session(copyable_class()), id="methods"),
        pytest.param(lambda: fx.Session(desk_class(), **functions), id="functions"),
    ]


def _restored(token: list[str]) -> Desk:
    desk = desk_class()()
    desk.notes = list(token)
    return desk


def writer(session: fx.Session[Any], *, asynchronous: bool = False) -> BaseTool:
    if asynchronous:

        @tool("write")
        @fx.effect("stateful")
        async def awrite(note: str) -> str:
            """Write a note."""
            await asyncio.sleep(0)
            return session.get().write(note)

        return awrite

    @tool
    @fx.effect("stateful")
    def write(note: str) -> str:
        """Write a note."""
        return session.get().write(note)

    return write


async def put(within: fx.EffectScope | None, write: BaseTool, note: str, *, sync: bool = True) -> str:
    """One call of the tool by a node, in a graph of its own."""

    async def aact(state: Log) -> dict[str, Any]:
        return {"log": [await write.ainvoke({"note": note})]}

    g = StateGraph(Log)
    g.add_node("act", (lambda s: {"log": [write.invoke({"note": note})]}) if sync else aact)
    g.add_edge(START, "act")
    app = g.compile(checkpointer=InMemorySaver())
    if within is not None:
        within.at_step(within.step + 1)
    return (await drive(app, {"log": []}, thread(), within, sync=sync))["log"][0]


@pytest.mark.parametrize("make", sessions())
@pytest.mark.parametrize(("sync", "asynchronous"), [(True, False), (False, False), (False, True)])
async def test_clones_have_their_own_object(make: Callable[[], Any], sync: bool, asynchronous: bool) -> None:
    session = make()
    write = writer(session, asynchronous=asynchronous)
    parent = scope({})
    assert await put(parent, write, "a", sync=sync) == "1 notes, last a"
    clone = parent.fork("p1")
    grandchild = clone.fork("p2")  # of a clone that did not use its object yet
    assert await put(parent, write, "b", sync=sync) == "2 notes, last b"
    assert await put(clone, write, "c", sync=sync) == "2 notes, last c"
    assert await put(clone, write, "d", sync=sync) == "3 notes, last d"
    assert await put(grandchild, write, "e", sync=sync) == "2 notes, last e"
    last = clone.fork("p3")
    assert await put(last, write, "f", sync=sync) == "4 notes, last f"
    assert await put(parent, write, "g", sync=sync) == "3 notes, last g"
    # nobody touched the object of plain runs
    assert await put(None, write, "x", sync=sync) == "1 notes, last x"


@pytest.mark.parametrize("make", sessions())
async def test_next_turn_goes_on_in_the_winners_world(make: Callable[[], Any]) -> None:
    session = make()
    write = writer(session)
    for turn in range(3):
        one, other = scope({}, "p0", run=f"r{turn}"), scope({}, "p1", run=f"r{turn}")
        assert await put(one, write, "lost") == f"{2 * turn + 1} notes, last lost"
        assert await put(other, write, "a") == f"{2 * turn + 1} notes, last a"
        clone = other.fork("p2")
        assert await put(clone, write, "b") == f"{2 * turn + 2} notes, last b"
        await put(other, write, "c")
        clone.adopt()
        for each in (one, other, clone):
            each.close()
    assert session.get().notes == ["a", "b"] * 3
    assert await put(None, write, "x") == "7 notes, last x"


@pytest.mark.parametrize("kind", [desk_class, copyable_class])
async def test_every_object_but_the_winners_is_closed(kind: Callable[[], type[Desk]]) -> None:
    desk = kind()
    session = fx.Session(desk)
    write = writer(session)
    scopes = [scope({}, f"p{k}") for k in range(4)]
    for each in scopes:
        await put(each, write, "a")
    scopes += [each.fork(f"c{k}") for k, each in enumerate(scopes)]
    for each in scopes:
        await put(each, write, "b")
    scopes.append(scopes[0].fork("unused"))
    scopes[5].adopt()
    for each in scopes:
        each.close()
        each.close()
    assert desk.closed == desk.made - 1
    assert session.get().notes == ["a", "b"]


async def test_adopting_an_unused_clone_brings_it_up_to_date() -> None:
    for asynchronous in (False, True):
        session = fx.Session(desk_class())
        write = writer(session, asynchronous=asynchronous)
        parent = scope({})
        await put(parent, write, "a", sync=not asynchronous)
        clone = parent.fork("p1")
        await put(parent, write, "b", sync=not asynchronous)
        if asynchronous:
            with pytest.raises(fx.SessionError, match="asynchronous"):
                clone.adopt()
            await clone.aadopt()
        else:
            clone.adopt()
        assert session.get().notes == ["a"]


async def test_a_world_that_answers_differently_is_an_error() -> None:
    numbers = iter(range(100))

    class Moody(Desk):
        made = closed = 0

        def write(self, note: str) -> str:
            return f"{note} {next(numbers)}"

    write = writer(fx.Session(Moody))
    parent = scope({})
    await put(parent, write, "a")
    clone = parent.fork("p1")
    with pytest.raises(fx.DivergenceError, match=r"'a 0'.*'a 1'") as caught:
        await put(clone, write, "b")
    assert (caught.value.tool, caught.value.step, caught.value.expected) == ("write", -1, "a 0")
    with pytest.raises(fx.DivergenceError):  # it stays behind, and says so again
        await put(clone, write, "b")


async def test_an_agent_does_not_swallow_a_divergence() -> None:
    numbers = iter(range(100))
    session = fx.Session(desk_class())

    @tool
    def write(note: str) -> str:
        """Write a note."""
        return session.get().write(f"{note} {next(numbers)}")

    app = agent("ToolNode", [write], [[("write", {"note": "a"})]])
    app.nodes["tools"].bound._handle_tool_errors = True
    parent = scope({"write": "stateful"})
    await put(parent, write, "a")
    with pytest.raises(fx.DivergenceError), parent.fork("p1").enter():
        app.invoke(ASK, thread())


async def test_errors_of_the_world_are_replayed_too() -> None:
    session = fx.Session(desk_class())

    @tool
    @fx.effect("stateful")
    def write(note: str) -> str:
        """Write a note, and fail at the second."""
        session.get().write(note)
        if len(session.get().notes) == 2:
            raise ValueError("the pen broke")
        return str(len(session.get().notes))

    parent = scope({})
    assert await put(parent, write, "a") == "1"
    with pytest.raises(ValueError, match="pen"):
        await put(parent, write, "b")
    assert await put(parent.fork("p1"), write, "c") == "3"


async def test_several_sessions_of_which_one_has_no_snapshot() -> None:
    first, second = fx.Session(copyable_class()), fx.Session(desk_class())

    @tool
    @fx.effect("stateful")
    def write(note: str) -> str:
        """Write a note at both desks, the second only for notes longer than a letter."""
        texts = [first.get().write(note)]
        if len(note) > 1:
            texts.append(second.get().write(note))
        return "; ".join(texts)

    parent = scope({})
    await put(parent, write, "a")
    clone = parent.fork("p1")  # by snapshot
    await put(clone, write, "bb")
    grandchild = clone.fork("p2")  # by replay, of both
    assert await put(grandchild, write, "cc") == "3 notes, last cc; 2 notes, last cc"
    assert await put(clone, write, "dd") == "3 notes, last dd; 2 notes, last dd"


async def test_unlogged_use_of_an_object_without_snapshots_is_an_error() -> None:
    session = fx.Session(desk_class())
    parent = scope({})
    with parent.enter():
        session.get().write("by a node")
    with pytest.raises(fx.SessionError, match="stateful"):
        parent.fork("p1")

    session.get().write("by a plain run")
    with pytest.raises(fx.SessionError, match="outside AMC runs"):
        await put(scope({}, run="next"), writer(session), "a")


async def test_a_lone_particle_acts_on_the_process_wide_object() -> None:
    desk = desk_class()
    session = fx.Session(desk)
    write = writer(session)
    await put(None, write, "plain")
    alone = scope({})
    alone.release_all()
    assert await put(alone, write, "a") == "2 notes, last a"
    alone.adopt()
    alone.close()
    assert (session.get().notes, desk.made, desk.closed) == (["plain", "a"], 1, 0)


async def test_a_fork_parts_a_lone_particle_from_the_process_wide_object() -> None:
    session = fx.Session(copyable_class())
    write = writer(session)
    parent = scope({})
    parent.release_all()
    await put(parent, write, "a")
    clone = parent.fork("p1")
    await put(parent, write, "b")
    await put(clone, write, "c")
    assert session.get().notes == ["a"]
    clone.adopt()
    assert session.get().notes == ["a", "c"]


@SYNC
async def test_a_super_step_that_is_run_again_does_not_write_again(sync: bool) -> None:
    """One node calls a stateful and then a commit tool: after the pause the whole node is run again."""
    session = fx.Session(desk_class())
    write, sent = writer(session), []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    g = StateGraph(Log)
    g.add_node("act", lambda s: {"log": [write.invoke({"note": "a"}), write.invoke({"note": "a"}), send.invoke("b")]})
    g.add_edge(START, "act")
    app, own = g.compile(checkpointer=InMemorySaver()), scope({"send": "commit"})
    await drive(app, {"log": []}, thread(), own, sync=sync)
    own.release()
    result = await drive(app, None, thread(), own, sync=sync)
    assert (result["log"], sent) == (["1 notes, last a", "2 notes, last a", "sent"], ["b"])
    own.adopt()
    assert session.get().notes == ["a", "a"]


@SYNC
async def test_parallel_calls_wait_for_the_copy(sync: bool) -> None:
    """While one call of a clone repeats the parent's calls, others must not see a half-made object."""
    session = fx.Session(desk_class())

    @tool
    @fx.effect("stateful")
    async def awrite(note: str) -> str:
        """Write a note."""
        await asyncio.sleep(0.01)
        return session.get().write(note)[:1]

    @tool
    @fx.effect("stateful")
    def write(note: str) -> str:
        """Write a note."""
        return session.get().write(note)[:1]

    made = write if sync else awrite
    parent = scope({})
    for note in "abc":
        await put(parent, made, note, sync=sync)
    clone = parent.fork("p1")
    app = agent("ToolNode", [made], [[(made.name, {"note": n}) for n in "xyz"]])
    result = await drive(app, ASK, thread(), clone, sync=sync)
    assert sorted(m.content for m in result["messages"] if m.type == "tool") == ["4", "5", "6"]


async def test_synchronous_use_of_an_asynchronously_made_state_is_an_error() -> None:
    session = fx.Session(desk_class())
    parent = scope({})
    await put(parent, writer(session, asynchronous=True), "a", sync=False)
    with pytest.raises(fx.SessionError, match="asynchronous"):
        await put(parent.fork("p1"), writer(session), "b")


async def test_a_session_survives_a_restart_by_replay() -> None:
    session = fx.Session(copyable_class())
    app = agent("ToolNode", [writer(session)], [[("write", {"note": "a"})], [("write", {"note": "b"})]])
    rules = fx.read_effects(None, app)
    assert rules is not None
    before = scope(rules)
    with before.enter():
        app.invoke(ASK, thread())
    kept = json.loads(json.dumps(before.state()))
    assert len(kept["calls"]) == 2

    fresh = fx.Session(copyable_class())  # another process
    again = fx.read_effects(None, agent("ToolNode", [writer(fresh)], []))
    assert again is not None
    after = fx.EffectScope.restored(again, "r", "p0", MemoryOutbox(), kept)
    assert await put(after, writer(fresh), "c") == "3 notes, last c"
    assert await put(after.fork("p1"), writer(fresh), "d") == "4 notes, last d"


async def test_a_restart_with_other_answers_is_a_divergence() -> None:
    session = fx.Session(desk_class())
    app = agent("ToolNode", [writer(session)], [[("write", {"note": "a"})]])
    rules = fx.read_effects(None, app)
    assert rules is not None
    before = scope(rules)
    with before.enter():
        app.invoke(ASK, thread())
    kept = json.loads(json.dumps(before.state()))
    kept["calls"][0]["arguments"] = {"note": "z"}
    after = fx.EffectScope.restored(rules, "r", "p0", MemoryOutbox(), kept)
    with pytest.raises(fx.DivergenceError):
        await put(after, writer(session), "c")


def two_desks(first: fx.Session[Any], second: fx.Session[Any]) -> BaseTool:
    @tool
    @fx.effect("stateful")
    def write(note: str) -> str:
        """Write a short note at the first desk, a long one at the second, and "both" at both."""
        desks = [first] * (len(note) == 1 or note == "both") + [second] * (len(note) > 1)
        return "; ".join(desk.get().write(note) for desk in desks)

    return write


@pytest.mark.parametrize("first_kind", [desk_class, copyable_class])
@pytest.mark.parametrize("second_kind", [desk_class, copyable_class])
async def test_several_sessions_over_several_turns(first_kind: Any, second_kind: Any) -> None:
    first, second = fx.Session(first_kind()), fx.Session(second_kind())
    write = two_desks(first, second)
    for turn in range(3):
        alone = scope({}, run=f"alone{turn}")
        alone.release_all()
        n = 3 * turn
        assert await put(alone, write, "both") == f"{n + 1} notes, last both; {n + 1} notes, last both"
        alone.adopt()
        alone.close()
        one, two = scope({}, "p0", run=f"r{turn}"), scope({}, "p1", run=f"r{turn}")
        await put(one, write, "lost")
        await put(two, write, "a")
        clone = two.fork("p2")
        await put(two, write, "x")
        assert await put(clone, write, "bb") == f"{3 * turn + 2} notes, last bb"
        again = clone.fork("p3")
        assert await put(again, write, "both") == f"{3 * turn + 3} notes, last both; {3 * turn + 3} notes, last both"
        again.adopt()
        for each in (one, two, clone, again):
            each.close()
    assert first.get().notes == ["both", "a", "both"] * 3
    assert second.get().notes == ["both", "bb", "both"] * 3


async def test_several_sessions_survive_a_restart() -> None:
    first, second = fx.Session(desk_class()), fx.Session(copyable_class())
    app = agent("ToolNode", [two_desks(first, second)], [[("write", {"note": n})] for n in ("a", "bb", "both")])
    rules = fx.read_effects(None, app)
    assert rules is not None
    before = scope(rules)
    with before.enter():
        app.invoke(ASK, thread())
    kept = json.loads(json.dumps(before.state()))

    fresh = two_desks(fx.Session(desk_class()), fx.Session(copyable_class()))
    again = fx.read_effects(None, agent("ToolNode", [fresh], []))
    assert again is not None
    after = fx.EffectScope.restored(again, "r", "p0", MemoryOutbox(), kept)
    assert await put(after, fresh, "c") == "3 notes, last c"
    clone = after.fork("p1")
    assert await put(clone, fresh, "both") == "4 notes, last both; 3 notes, last both"
    assert await put(after, fresh, "dd") == "3 notes, last dd"


async def test_environments_of_tasks_work_as_sessions() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def reset(self, task: Any) -> int:
            self.n = task
            return self.n

        def step(self, action: int) -> tuple[int, float, bool, dict[str, Any]]:
            self.n += action
            return self.n, 0.0, False, {}

        def close(self) -> None:
            self.n = -1

    def world() -> ReplayEnvironment:
        env = ReplayEnvironment(Counter())
        env.reset(10)
        return env

    session = fx.Session(world)

    @tool
    @fx.effect("stateful")
    def write(note: int) -> int:
        """Add."""
        return session.get().step(note)[0]

    parent = scope({})
    assert await put(parent, write, 1) == 11
    clone = parent.fork("p1")
    assert await put(parent, write, 5) == 16
    assert await put(clone, write, 2) == 13


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="together"):
        fx.Session(Desk, snapshot=lambda d: d)
    with pytest.raises(ConfigurationError, match="factory"):
        fx.Session("desk")  # type: ignore[arg-type]


def restored(tool_of: Callable[[fx.Session[Any]], BaseTool], session: fx.Session[Any], kept: Any) -> fx.EffectScope:
    """A scope that a journal brings back, in a process with sessions of its own."""
    rules = fx.read_effects(None, agent("ToolNode", [tool_of(session)], []))
    assert rules is not None
    return fx.EffectScope.restored(rules, "r", "p0", MemoryOutbox(), kept)


async def ended(write: BaseTool, notes: str, *, sync: bool) -> Any:
    """What a journal keeps of a particle that has written these notes and ended."""
    app = agent("ToolNode", [write], [[("write", {"note": n})] for n in notes])
    rules = fx.read_effects(None, app)
    assert rules is not None
    before = scope(rules)
    await drive(app, ASK, thread(), before, sync=sync)
    return json.loads(json.dumps(before.state()))


@pytest.mark.parametrize("kind", [desk_class, copyable_class])
@pytest.mark.parametrize(("sync", "asynchronous"), [(True, False), (False, False), (False, True)])
async def test_a_winner_that_a_journal_brought_back_hands_its_world_over(
    kind: Any, sync: bool, asynchronous: bool
) -> None:
    def tool_of(session: Any) -> BaseTool:
        return writer(session, asynchronous=asynchronous)

    kept = await ended(tool_of(fx.Session(kind())), "ab", sync=sync)
    fresh = fx.Session(kind())
    after = restored(tool_of, fresh, kept)
    await after.aadopt() if not sync else after.adopt()
    after.close()
    assert after.unrecovered is None
    assert fresh.get().notes == ["a", "b"]


@pytest.mark.parametrize("kind", [desk_class, copyable_class])
async def test_a_world_that_comes_back_behind_another_run_goes_on_from_its(kind: Any) -> None:
    def blind(session: Any) -> BaseTool:
        @tool
        @fx.effect("stateful")
        def write(note: str) -> str:
            """Write a note; the answer is the same whatever there is already."""
            session.get().write(note)
            return "written"

        return write

    kept = await ended(blind(fx.Session(kind())), "ab", sync=True)
    fresh = fx.Session(kind())
    first = scope({}, run="first")
    await put(first, blind(fresh), "x")
    first.adopt()
    after = restored(blind, fresh, kept)
    after.adopt()
    assert fresh.get().notes == ["x", "a", "b"]


@SYNC
async def test_a_world_that_cannot_come_back_is_told_and_does_not_take_the_answer_away(sync: bool) -> None:
    kept = await ended(writer(fx.Session(desk_class())), "ab", sync=sync)
    kept["calls"][1]["arguments"] = {"note": "z"}
    fresh = fx.Session(desk_class())
    after = restored(writer, fresh, kept)
    await after.aadopt() if not sync else after.adopt()
    after.close()
    assert isinstance(after.unrecovered, fx.DivergenceError)
    assert fresh.get().notes == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"close": 5},
        {"factory": lambda task: task},
        {"close": lambda: None},
        {"snapshot": 1, "restore": 2},
        {"snapshot": copy.deepcopy, "restore": lambda: None},
    ],
)
def test_functions_that_could_not_be_called_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Session: .*argument"):
        fx.Session(**{"factory": list, **arguments})


def test_functions_written_in_c_are_taken() -> None:
    assert fx.Session(dict, snapshot=dict, restore=dict, close=dict.clear).get() == {}
