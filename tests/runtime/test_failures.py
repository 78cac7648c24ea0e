"""A failed particle is kept as a labelled failure and never answers; only if all fail does the run fail."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError

import langgraph_amc as amc
from langgraph_amc.runtime.run import AllParticlesFailedError
from tests.runtime.support import ASK, THREAD, Roots, agent, by_digits, call, seeded, turn_of


def index() -> int:
    particle = amc.current_particle.get()
    assert particle is not None
    return int(particle.particle[1:])


def failing(*which: int, turn: int = 1, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Any:
    def reply(messages: list[Any]) -> AIMessage:
        if index() in which and turn_of(messages) == turn:
            raise kinds[index() % len(kinds)](f"particle {index()} is down")
        return seeded(rounds=2)(messages)

    return reply


SETTINGS: list[dict[str, Any]] = [
    {},
    {"value": by_digits, "resample": amc.every(1)},
    {"value": by_digits, "resample": amc.every(1), "objective": "sample", "tau": 1.0},
    {"select": "sample"},
    {"reward": lambda run: 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_failed_particles_are_kept_and_never_chosen(settings: dict[str, Any], turn: int) -> None:
    seen = set[str]()
    for seed in range(4):
        out = amc.wrap(agent(failing(0, 2, turn=turn)), particles=4, seed=seed, **settings).invoke(ASK)
        failed = [p for p in out.amc.particles if p.trajectory.status == "failed"]
        for p in failed:
            assert p.trajectory.error == f"ValueError: particle {p.name[1:]} is down"
            assert p.trajectory.outcome is None
            assert len(p.trajectory.segments) == turn + 1
            assert p.log_weight == -float("inf")
        assert out.amc.winner.trajectory.status == "finished"
        warned = [w for w in out.amc.warnings if "particle(s) failed" in w]
        first = f", the first with {failed[0].trajectory.error}" if failed else ""
        assert warned == ([f"{len(failed)} particle(s) failed{first}"] if failed else [])
        seen |= {p.name for p in failed}
    assert seen == {"p0", "p2"}, "unless they were pruned before"


async def test_failed_particles_async() -> None:
    app = amc.wrap(agent(failing(0, 1, 2)), particles=4, seed=1, value=by_digits, resample=amc.every(1))
    out = await app.ainvoke(ASK)
    failed = {t.particle for t in out.amc.trajectories if t.status == "failed"}
    assert failed
    assert failed <= {"p0", "p1", "p2"}
    assert out.amc.winner.name not in failed


def test_all_fail_alike() -> None:
    saver = InMemorySaver()
    app = amc.wrap(agent(failing(0, 1, 2), saver=saver), particles=3)
    with pytest.raises(ValueError, match="is down") as caught:
        app.invoke(ASK, THREAD)
    assert any("all 3 particles" in note for note in caught.value.__notes__)
    record = amc.last_run(app)
    assert {p.trajectory.status for p in record.particles} == {"failed"}


def test_all_fail_differently() -> None:
    app = amc.wrap(agent(failing(0, 1, 2, 3, kinds=(ValueError, KeyError))), particles=4)
    with pytest.raises(AllParticlesFailedError, match="all 4 particles") as caught:
        app.invoke(ASK)
    assert [type(e) for e in caught.value.errors] == [ValueError, KeyError] * 2


async def test_all_fail_async() -> None:
    with pytest.raises(ValueError, match="is down"):
        await amc.wrap(agent(failing(0, 1, 2)), particles=3).ainvoke(ASK)


@pytest.mark.parametrize("particles", [1, 3])
def test_a_failed_run_leaves_the_thread_as_a_plain_one_does(particles: int) -> None:
    """So that invoke(None) can try again from the failed step."""

    def thread(app: Any, saver: InMemorySaver) -> Any:
        with pytest.raises(ValueError, match="down"):
            app.invoke(ASK, THREAD)
        state = app.get_state(THREAD)
        return state.next, [m.content for m in state.values["messages"]], [t.error for t in state.tasks]

    def reply(messages: list[Any]) -> AIMessage:
        if turn_of(messages) == 1:
            raise ValueError("down")
        return call("note", 0, n=3)

    saver = InMemorySaver()
    plain = agent(reply, saver=saver)
    other = InMemorySaver()
    assert thread(amc.wrap(agent(reply, saver=other), particles=particles), other) == thread(plain, saver)


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("resample", [amc.never(), amc.every(1)])
def test_recursion_limit_equals_plain(limit: int, resample: Any) -> None:
    def outcome(app: Any) -> Any:
        try:
            return len(app.invoke(ASK, {"recursion_limit": limit})["messages"])
        except GraphRecursionError as error:
            return str(error)

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        return call("note", turn, n=turn) if turn < 3 else AIMessage("done")

    better = amc.wrap(agent(reply), particles=3, value=by_digits, resample=resample, seed=1)
    forced = amc.wrap(
        agent(reply),
        particles=3,
        value=by_digits,
        resample=resample,
        resampler=lambda rng, log_weights, n: __import__("numpy").zeros(n, int),
        seed=1,
    )
    assert outcome(better) == outcome(forced) == outcome(agent(reply))


def test_traces_show_a_failed_particle_as_failed() -> None:
    roots = Roots()
    amc.wrap(agent(failing(1)), particles=3, seed=1).invoke(ASK, {"callbacks": [roots]})
    assert len(roots.ended) == 2
    assert {type(e) for _, e in roots.errors} == {ValueError}


def test_a_single_particle_raises_what_the_app_raises() -> None:
    with pytest.raises(ValueError, match="particle 0 is down"):
        amc.wrap(agent(failing(0)), particles=1).invoke(ASK)


@pytest.mark.parametrize("empty", [{}, None, {"messages": []}])
def test_empty_input_equals_plain(empty: Any) -> None:
    def outcome(app: Any) -> Any:
        try:
            return [m.content for m in app.invoke(empty)["messages"]]
        except Exception as error:
            return type(error), str(error)

    reply = lambda messages: AIMessage(f"got {len(messages)}")  # noqa: E731
    assert outcome(amc.wrap(agent(reply), particles=3)) == outcome(agent(reply))
