"""The record of a run: lineages, trajectories, rewards, usage; each caller gets its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import GraphOutput

import langgraph_amc as amc
from langgraph_amc.runtime.result import AMCOutput
from tests.runtime.support import ASK, THREAD, agent, by_digits, by_hash, call, number, seeded, texts, turn_of


def run(**settings: Any) -> Any:
    app = amc.wrap(
        agent(seeded(), saver=InMemorySaver()),
        **{"particles": 6, "value": by_hash, "resample": amc.every(1), "seed": 4, "tau": 0.2, **settings},
    )
    return app.invoke(ASK, THREAD)


def test_lineages_are_consistent() -> None:
    result = run().amc
    by_name = {t.particle: t for t in result.trajectories}
    assert len(by_name) == len(result.trajectories)
    assert {p.name for p in result.particles} | {p.name for p in result.pruned} == set(by_name)
    assert {t.status for t in result.trajectories} == {"finished", "pruned"}
    for name, trajectory in by_name.items():
        line = result.lineage(name)
        assert line[-1] == name
        assert by_name[line[0]].parent is None
        if trajectory.parent is None:
            assert trajectory.forked_at is None
            continue
        parent = by_name[trajectory.parent]
        shared = trajectory.forked_at + 1
        assert trajectory.segments[:shared] == parent.segments[:shared]
        assert len(trajectory.segments) >= shared
    for check in result.checks:
        assert len(check.particles) == len(check.log_weights) == len(check.values)
        assert all(0 <= a < len(check.particles) for a in check.ancestors)
        forked = [t for t in result.trajectories if t.forked_at == check.boundary]
        names = {check.particles[a] for a in check.ancestors}
        assert {t.parent for t in forked} <= names
        if check.resampled:
            assert len(forked) == len(check.ancestors) - len(names)
            dropped = set(check.particles) - names
            assert dropped <= {p.name for p in result.pruned}
            assert {len(by_name[d].segments) for d in dropped} <= {check.boundary + 1}
    assert result.winner.name in {p.name for p in result.particles}


def test_trajectories_are_valid() -> None:
    result = run().amc
    fingerprint = amc.Transcript().fingerprint
    for trajectory in result.trajectories:
        assert len(trajectory.rewards) == len(trajectory.segments) - 1
        assert len(trajectory.values) in (0, len(trajectory.segments))
        assert trajectory.fingerprint == fingerprint
        assert trajectory.run_id == result.run_id
        assert all(trajectory.segments)
    whole = "".join(result.winner.trajectory.segments)
    assert whole == amc.Transcript().render(result.winner.output["messages"])
    for particle in result.particles:
        prefixes = [particle.trajectory.segments[: i + 1] for i in range(len(particle.trajectory.segments))]
        for prefix, value in list(zip(prefixes, particle.trajectory.values, strict=True))[1:]:
            assert value == by_hash([prefix])[0]


def test_usage_is_the_sum_over_particles() -> None:
    result = run().amc
    assert result.usage == sum((t.usage for t in result.trajectories), amc.Usage())
    assert result.usage.calls * 10 == result.usage.input_tokens
    new_steps = sum(len(t.segments) - 1 - (t.forked_at or 0) for t in result.trajectories)
    assert result.usage.calls == new_steps
    assert result.usage.cost is None, "nobody knows this model's price"


def test_values_are_kept_where_the_last_state_was_not_scored() -> None:
    result = run(reward=lambda finished: float(len(finished.messages))).amc
    scored = {(name, c.boundary): v for c in result.checks for name, v in zip(c.particles, c.values, strict=True)}
    for report in (*result.particles, *result.pruned):
        values = report.trajectory.values
        assert len(values) == len(report.trajectory.segments)
        own = {t: v for (name, t), v in scored.items() if name == report.name}
        assert {t: values[t] for t in own} == own
    assert result.winner.trajectory.values[-1] is None, "the reward of the end is observed, not estimated"


def test_step_rewards_from_tools() -> None:
    @tool(response_format="content_and_artifact")
    def dig(n: int) -> tuple[str, dict[str, float]]:
        """Dig."""
        return f"found {n}", {"reward": n / 1000}

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        return call("dig", turn, n=number(turn)) if turn < 3 else AIMessage("done")

    app = amc.wrap(agent(reply, [dig], InMemorySaver()), particles=4, seed=1, resample=amc.every(1), tau=0.1)
    for _ in range(2):  # rewards of the first turn are not booked again in the second
        out = app.invoke(ASK, THREAD)
        for particle in out.amc.particles:
            found = [c["args"]["n"] / 1000 for m in particle.output["messages"][-8:] for c in calls_of(m)]
            assert particle.trajectory.rewards == pytest.approx((*found, 0.0))
            assert particle.trajectory.outcome is None
        assert any(len(set(c.ancestors)) < 4 for c in out.amc.checks), "rewards alone steer"


def calls_of(message: Any) -> list[Any]:
    return message.tool_calls if message.type == "ai" else []


def test_observed_return_adds_steps_and_outcome() -> None:
    @tool(response_format="content_and_artifact")
    def dig(n: int) -> tuple[str, dict[str, float]]:
        """Dig."""
        return f"found {n}", {"reward": 0.25}

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        return call("dig", turn, n=number(turn)) if turn < 2 else AIMessage("done")

    out = amc.wrap(agent(reply, [dig]), particles=3, seed=1, reward=lambda run: 2.0).invoke(ASK)
    assert [p.reward for p in out.amc.particles] == [2.5] * 3
    assert out.amc.winner.trajectory.returns() == (2.5, 2.25, 2.0, 2.0)


def test_output_is_a_dict() -> None:
    out = run()
    assert isinstance(out, AMCOutput)
    assert out == dict(out)
    assert dict(out) == out.amc.winner.output
    assert json.dumps(sorted(out)) == '["messages"]'
    assert {**out}.keys() == {"messages"}


def test_v2_output_carries_the_record() -> None:
    app = amc.wrap(agent(seeded()), particles=3, seed=1)
    out = app.invoke(ASK, version="v2")
    assert isinstance(out, GraphOutput)
    assert out.value.amc is amc.last_run(app)
    assert out.interrupts == ()


def test_last_run() -> None:
    app = amc.wrap(agent(seeded()), particles=2, seed=1)
    with pytest.raises(amc.ConfigurationError, match="not finished"):
        amc.last_run(app)
    with pytest.raises(amc.ConfigurationError):
        amc.last_run({})
    out = app.invoke(ASK)
    assert amc.last_run(app) is out.amc
    for _ in app.stream(ASK):
        pass
    assert amc.last_run(app) is not out.amc


@pytest.mark.parametrize("shared_thread", [False, True])
async def test_concurrent_runs_each_get_their_own_record(shared_thread: bool) -> None:
    app = amc.wrap(
        agent(seeded(), saver=None if shared_thread else InMemorySaver()),
        particles=3,
        value=by_digits,
        resample=amc.every(1),
    )

    async def one(i: int) -> Any:
        config = {"configurable": {"thread_id": f"t{i}"}}
        out = await app.ainvoke({"messages": [("user", f"question {i}")]}, config)
        return i, out

    outs = await asyncio.gather(*(one(i) for i in range(20)))
    assert len({out.amc.run_id for _, out in outs}) == 20
    for i, out in outs:
        assert texts(out)[0] == f"question {i}"
        assert all(f"question {i}<" in t.segments[0] for t in out.amc.trajectories)
        assert out.amc.winner.output == dict(out)


def test_ess_is_in_particles() -> None:
    result = run().amc
    assert all(1 <= c.ess <= 6 for c in result.checks)
