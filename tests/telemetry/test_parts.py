"""Traces of what is not a run of particles, or only a part of one: effects, shared requests, training, evolution."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry import trace

import langgraph_amc as amc
from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.evolution import Strategy
from langgraph_amc.evolution.history import Header, History
from langgraph_amc.evolution.loop import Course, Rollouts, evolve
from langgraph_amc.policy.coalesce import gather_async, gather_sync
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.telemetry import names, span
from langgraph_amc.telemetry.spans import current
from tests.support.graphs import ScriptedModel

from .support import INPUT, SECRET, above, agent, check_trace, exporting, named, noise, nothing_leaks


@pytest.mark.parametrize("asynchronous", [False, True])
def test_effects(asynchronous: bool, caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    with nothing_leaks(caplog), exporting() as (server, provider):

        @tool
        def add(a: int, b: int) -> int:
            """Add, and send it somewhere."""
            with provider.get_tracer("user").start_as_current_span("sending"):
                done.append(a)
            return a + b

        app = amc.wrap(
            create_agent(ScriptedModel(rounds=1), [add], checkpointer=InMemorySaver()),
            particles=3,
            value=noise(),
            effects={"add": "commit"},
            telemetry=amc.Telemetry(tracer_provider=provider),
            seed=1,
        )
        config = {"configurable": {"thread_id": "t"}}
        asyncio.run(app.ainvoke(INPUT, config)) if asynchronous else app.invoke(INPUT, config)
    root = check_trace(server.spans)
    assert root.attributes[names.SESSION] == "t"
    effects = named(server.spans, names.EFFECT)
    states = [e.attributes[names.EFFECT_STATE] for e in effects]
    assert (states.count("held"), states.count("committed"), states.count("dropped")) == (6, 2, 4)
    assert len(done) == 2
    for effect in effects:
        assert f"{names.PARTICLE} {effect.attributes[names.PARTICLE_ID]}" in above(server.spans, effect)
    assert not any(e.error for e in effects)
    for sending in named(server.spans, "sending"):
        assert above(server.spans, sending)[0] == "amc.effect add"
    # the chosen particle goes on behind its effects as another span, linked to where it paused
    chosen = {e.attributes[names.PARTICLE_ID] for e in effects if e.attributes[names.EFFECT_STATE] == "committed"}
    [name] = chosen
    lives = [s for s in named(server.spans, names.PARTICLE) if s.attributes[names.PARTICLE_ID] == name]
    assert [s.attributes[names.OUTCOME] for s in lives] == ["interrupted", "finished"]
    assert [x.attributes[names.LINK_TYPE] for x in lives[1].links] == ["continues"]


def test_an_effect_that_fails() -> None:
    with exporting() as (server, provider):

        @tool
        def add(a: int, b: int) -> int:
            """Add, and send it somewhere."""
            raise RuntimeError(SECRET)

        app = amc.wrap(
            create_agent(ScriptedModel(rounds=1), [add]),
            particles=2,
            effects={"add": "commit"},
            telemetry=amc.Telemetry(tracer_provider=provider),
            seed=1,
        )
        with pytest.raises(RuntimeError):
            app.invoke(INPUT)
    check_trace(server.spans)
    failed = [e for e in named(server.spans, names.EFFECT) if e.attributes[names.EFFECT_STATE] == "failed"]
    assert failed
    assert all(e.error and e.attributes[names.ERROR] == "RuntimeError" for e in failed)
    assert SECRET not in repr(server.spans)


async def test_requests_that_are_shared() -> None:
    with exporting() as (server, provider):
        tracer = provider.get_tracer("user")

        async def run(count: int) -> list[int]:
            with tracer.start_as_current_span("request"):
                return list(range(count))

        async def call(i: int) -> int:
            with current(tracer.start_span(f"caller {i}"), provider) as _:
                try:
                    return await gather_async("k", 0.01, run)
                finally:
                    trace.get_current_span().end()

        assert sorted(await asyncio.gather(*[call(i) for i in range(3)])) == [0, 1, 2]
        assert await call(9) == 0
    _check_shared(server.spans, callers=3)


def test_requests_that_threads_share() -> None:
    with exporting() as (server, provider):
        tracer = provider.get_tracer("user")

        def run(count: int) -> list[int]:
            with tracer.start_as_current_span("request"):
                return list(range(count))

        def call(i: int) -> None:
            with current(tracer.start_span(f"caller {i}"), provider):
                gather_sync("k", 0.1, run)
                trace.get_current_span().end()

        threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        call(9)
    _check_shared(server.spans, callers=3)


def _check_shared(spans: Any, callers: int) -> None:
    by_id = {s.id: s for s in spans}
    [shared] = named(spans, names.COALESCED)
    assert shared.attributes[names.COALESCED_CALLS] == callers
    assert sorted(by_id[x.span].name for x in shared.links) == [f"caller {i}" for i in range(callers)]
    assert {x.attributes[names.LINK_TYPE] for x in shared.links} == {"caller"}
    requests = named(spans, "request")
    assert sorted(above(spans, r)[0].split(" ")[0] for r in requests) == [names.COALESCED, "caller"]


async def test_runs_of_an_evaluation_are_traces_of_their_own() -> None:
    with exporting() as (server, provider):
        app = agent()
        settings = read_settings(
            app, particles=2, effects={"*": "pure"}, telemetry=amc.Telemetry(tracer_provider=provider)
        )
        jobs = [Job(amc.Task(f"task{i}", INPUT), 0, settings) for i in range(2)]
        with provider.get_tracer("user").start_as_current_span("evaluation") as around:
            async for _ in run_jobs(app, jobs, as_reward(lambda run: 1.0), concurrency=2):
                pass
        own = around.get_span_context()
    runs = named(server.spans, names.RUN)
    assert sorted(r.attributes[names.TASK] for r in runs) == ["task0", "task1"]
    assert len({r.trace for r in runs} | {f"{own.trace_id:032x}"}) == 3
    for run in runs:
        assert not run.parent
        assert [(x.span, x.attributes[names.LINK_TYPE]) for x in run.links] == [(f"{own.span_id:016x}", "evaluation")]
        assert run.attributes[names.LINKED_SPAN] == f"{own.span_id:016x}"
        inside = [s for s in server.spans if s.trace == run.trace and s is not run]
        assert len(named(inside, names.PARTICLE)) == 2


class Counting(Rollouts):
    """Members whose reward is how far up they go; weights are a count of steps."""

    def __init__(self) -> None:
        self.steps = 0

    @asynccontextmanager
    async def serving(self, generation: Any) -> Any:
        yield

    async def rewards(self, generation: Any, rows: Any, columns: Any) -> Any:
        signs = np.array([[generation.members[row].sign for _ in columns] for row in rows], dtype=np.float64)
        return np.where(np.arange(len(columns)) == 0, np.nan, signs)

    async def validate(self, weights: str) -> Any:
        return np.zeros((1, 1))

    async def validated(self, weights: str) -> Any:
        return np.full((1, 1), np.nan)

    async def apply(self, update: Any) -> str:
        self.steps += 1
        return f"w{self.steps}"

    async def restore(self, updates: Any) -> str:
        self.steps = len(updates)
        return f"w{self.steps}"


async def test_generations_of_evolution(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    course = Course(tasks=("a", "b", "c"), generations=2, batch=3, validate_every=0)
    header = Header(Strategy(population=4, seed=1), "all", "layout", "w0")
    with nothing_leaks(caplog), exporting() as (server, provider):
        root = provider.get_tracer("user").start_span("evolve")
        with current(root, provider), History(tmp_path / "history", header) as history:
            async for _ in evolve(course, Counting(), history):
                assert trace.get_current_span() is root
        root.end()
        records = history.log.records
    check_trace(server.spans)
    generations = named(server.spans, names.ES_GENERATION)
    assert [g.attributes[names.ES_GENERATION_NUMBER] for g in generations] == [0, 1]
    assert [g.attributes[names.WEIGHTS] for g in generations] == [r.weights for r in records] == ["w1", "w2"]
    for generation in generations:
        assert generation.attributes[names.ES_POPULATION] == 4
        assert generation.attributes[names.ES_FITNESS_BEST] == 1.0
        assert generation.attributes[names.ES_FITNESS_MEAN] == 0.0
        members = [s for s in named(server.spans, names.ES_MEMBER) if s.parent == generation.id]
        found = {m.attributes[names.ES_MEMBER_ID]: m.attributes[names.ES_FITNESS] for m in members}
        assert found == {"0+": 1.0, "0-": -1.0, "1+": 1.0, "1-": -1.0}


def test_spans_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """What other rooms open with `span`: skills, gates."""
    about = {names.SKILL_NAME: "plan", names.SKILL_GATE_GAIN: float("nan")}
    with nothing_leaks(caplog), exporting() as (server, provider):
        around = provider.get_tracer("user").start_span("around")
        with current(around, provider), span(names.SKILL_PROPOSAL, about), span(names.SKILL_GATE) as gate:
            gate.set_attribute(names.SKILL_GATE_PASSED, True)
        with current(around, provider), pytest.raises(ValueError, match="treasure"), span(names.SKILL_GATE):
            raise ValueError(SECRET)
        around.end()
    proposal, failed = named(server.spans, names.SKILL_PROPOSAL)[0], named(server.spans, names.SKILL_GATE)[1]
    assert proposal.attributes == {names.SKILL_NAME: "plan"}
    assert above(server.spans, named(server.spans, names.SKILL_GATE)[0]) == [names.SKILL_PROPOSAL, "around"]
    assert failed.error
    assert SECRET not in repr(server.spans)
