"""Going back to earlier states of an app: forks from where a particle once stood."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.smc import backtrack
from tests.runtime.support import ASK, THREAD, Roots, agent, by_hash, call, number, seeded, texts, turn_of

STEEP = {"tau": 0.05, "resample": amc.every(1), "value": by_hash, "particles": 4, "backtrack": backtrack(0.95)}


def wrapped(seed: int = 0, **settings: Any) -> Any:
    return amc.wrap(agent(seeded(5), **settings.pop("app", {})), **{**STEEP, "seed": seed, **settings})


def went_back(result: Any) -> list[tuple[str, str]]:
    """(child's parent, earlier state) of every slot that was filled from an earlier state."""
    return [
        (check.past[i - len(check.particles)], check.particles)
        for check in result.checks
        for i in check.ancestors
        if i >= len(check.particles)
    ]


def test_children_of_earlier_states_repeat_what_led_there_and_no_more() -> None:
    found = 0
    for seed in range(12):
        roots = Roots()
        result = wrapped(seed).invoke(ASK, {"callbacks": [roots]}).amc
        found += len(went_back(result))
        by_name = {t.particle: t for t in result.trajectories}
        for t in result.trajectories:
            if t.parent is None:
                continue
            parent, at = by_name[t.parent], t.forked_at
            assert t.segments[: at + 1] == parent.segments[: at + 1]
            assert t.segments != parent.segments[: len(t.segments)] or t.status == "pruned"
        assert not roots.errors
        assert roots.ended == set(roots.started)
        assert all("@" not in name for name in by_name)
    assert found > 3


async def test_async_and_sync_go_back_alike() -> None:
    for seed in range(4):
        one, two = wrapped(seed).invoke(ASK), await wrapped(seed).ainvoke(ASK)
        assert texts(one) == texts(two)
        assert went_back(one.amc) == went_back(two.amc)


def test_a_winner_that_came_from_an_earlier_state_is_committed_whole() -> None:
    won = 0
    for seed in range(12):
        saver = InMemorySaver()
        app = wrapped(seed, app={"saver": saver})
        out = app.invoke(ASK, THREAD)
        assert texts(app.get_state(THREAD).values) == texts(out)
        assert turn_of(out["messages"]) == 6
        past = {name.split("@")[0] for name, _ in went_back(out.amc)}
        won += out.amc.winner.trajectory.parent in past
    assert won


def test_what_is_shown_stays_true() -> None:
    for seed in range(6):
        app = wrapped(seed)
        shown = list(app.stream(ASK, stream_mode="values"))
        assert all(texts(shown[-1])[: len(texts(event))] == texts(event) for event in shown)


def test_sessions_go_back_too() -> None:
    """A counter that a stateful tool moves is, in every particle, what its own messages say."""

    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def snapshot(self) -> int:
            return self.n

        def restore(self, token: int) -> None:
            self.n = token

    counter = amc.Session(Counter)

    @amc.effect("stateful")
    def add(n: int) -> str:
        """Add a number."""
        counter.get().n += n
        return f"sum {counter.get().n}"

    from langchain_core.tools import tool

    def reply(messages: Any) -> Any:
        turn = turn_of(messages)
        if turn < 5:
            return call("add", turn, n=number(len(messages)))
        return call("add", turn, n=0) if turn == 5 else seeded(0)(messages)

    back = 0
    for seed in range(8):
        app = amc.wrap(agent(reply, tools=[tool(add)]), **{**STEEP, "seed": seed, "effects": {"add": "stateful"}})
        result = app.invoke(ASK).amc
        back += len(went_back(result))
        for particle in result.particles:
            messages = particle.output["messages"]
            added = [c["args"]["n"] for m in messages if m.type == "ai" for c in m.tool_calls]
            said = [int(m.content.split()[1]) for m in messages if m.type == "tool"]
            assert [s - s0 for s, s0 in zip(said, [said[0] - added[0], *said], strict=False)] == added
    assert back


@pytest.mark.parametrize("stop_at", [2, 4])
def test_a_run_with_a_journal_goes_on(tmp_path: Any, stop_at: int) -> None:
    back = 0
    for seed in range(4):
        calls = [0]

        def value(transcripts: Any) -> list[float]:
            calls[0] += 1  # noqa: B023
            if calls[0] == stop_at:  # noqa: B023
                raise OSError("away")
            return by_hash(transcripts)

        whole = wrapped(seed).invoke(ASK)
        app = wrapped(seed, value=value, journal=tmp_path / f"runs{seed}")
        with pytest.raises(OSError, match="away"):
            app.invoke(ASK)
        again = app.invoke(ASK)
        assert texts(again) == texts(whole)
        assert went_back(again.amc) == went_back(whole.amc)
        assert [t.segments for t in again.amc.trajectories] == [t.segments for t in whole.amc.trajectories]
        back += len(went_back(again.amc))
    assert back


def test_inside_a_subgraph() -> None:
    from langgraph.graph import START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("worker", agent(seeded(5)))
    graph.add_edge(START, "worker")
    back = 0
    for seed in range(8):
        app = amc.wrap(graph.compile(), **{**STEEP, "seed": seed, "boundary": "worker/model"})
        result = app.invoke(ASK).amc
        back += len(went_back(result))
        assert turn_of(result.winner.output["messages"]) == 6
    assert back


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value": None, "resample": amc.never()}, "value"),
        ({"backtrack": 0.9}, "backtrack"),
        ({"objective": "sample"}, "sample"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        wrapped(**settings)
