"""Rewards that are given when a run is over: spans of their own in its trace, and scores of those they are about."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import langgraph_amc as amc
from langgraph_amc.evaluate.importing import import_logs
from langgraph_amc.evaluate.runner import Job, Outcome, run_jobs
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.telemetry import Score, SurvivorsOnly, names
from langgraph_amc.trajectories import TrajectoryStore
from tests.support.otlp_server import WireSpan

from .support import INPUT, above, agent, exporting, named, noise, nothing_leaks


class Kept:
    """A sink that keeps what it is handed."""

    def __init__(self) -> None:
        self.scores: list[Score] = []

    def send(self, scores: Sequence[Score]) -> None:
        self.scores += scores


async def evaluated(provider: TracerProvider, judge: Any, *, told: dict[str, Any] | None = None, **given: Any) -> Any:
    """The outcome of one task, run as an evaluation runs it."""
    app = agent()
    settings = read_settings(
        app,
        **{"particles": 3, "effects": {"*": "pure"}, "seed": 1, **given},
        telemetry=amc.Telemetry(tracer_provider=provider, **(told or {})),
    )
    job = Job(amc.Task("task", INPUT), 0, settings)
    [outcome] = [o async for o in run_jobs(app, [job], as_reward(judge), concurrency=1)]
    assert isinstance(outcome, Outcome)
    return outcome


def told(span: WireSpan) -> list[tuple[str, float]]:
    """The scores that are events of a span."""
    found = [facts for name, facts, _ in span.events if name == names.EVALUATION]
    return [(facts[names.EVALUATION_NAME], facts[names.EVALUATION_SCORE]) for facts in found]


async def test_true_rewards_are_spans_below_their_particles_and_scores_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Kept()
    given = iter([0.25, 0.5, 0.75])
    with nothing_leaks(caplog), exporting() as (server, provider):

        def reward(run: Any) -> float:
            with provider.get_tracer("user").start_as_current_span("judge"):
                return next(given)

        outcome = await evaluated(provider, reward, told={"scores": sink}, reward=lambda run: 0.125)
    [root] = named(server.spans, names.RUN)
    assert {span.trace for span in server.spans} == {root.trace}
    rewards = dict(zip((p.name for p in outcome.result.particles), outcome.rewards, strict=True))
    assert sorted(rewards.values()) == [0.25, 0.5, 0.75]
    lives = {s.attributes[names.PARTICLE_ID]: s for s in named(server.spans, names.PARTICLE)}
    after = [s for s in named(server.spans, names.REWARD) if s.start >= root.end]
    graded = {s.attributes[names.PARTICLE_ID]: s for s in after if s.parent != root.id}
    assert {name: told(s) for name, s in graded.items()} == {n: [("true_reward", r)] for n, r in rewards.items()}
    assert all(s.parent == lives[name].id for name, s in graded.items())
    for judge in named(server.spans, "judge"):
        assert above(server.spans, judge)[0] == names.REWARD
    winner = outcome.result.winner.name
    [answered] = [s for s in after if s.parent == root.id]
    assert (answered.attributes[names.PARTICLE_ID], told(answered)) == (winner, [("true_reward", rewards[winner])])
    # what the run itself observed is told as before, under another name
    assert all(told(life) == [("reward", 0.125)] for life in lives.values())
    scored = {(s.trace_id, s.span_id): s.value for s in sink.scores if s.name == "true_reward"}
    about = {n: (root.trace, lives[n].id) for n in lives}
    assert scored == {about[n]: r for n, r in rewards.items()} | {(root.trace, root.id): rewards[winner]}
    assert {s.name for s in sink.scores} == {"reward", "true_reward"}
    # other processes hand their results over
    assert pickle.loads(pickle.dumps(outcome.result)).trace == outcome.result.trace is not None


@pytest.mark.parametrize("detail", ["run", "generation"])
async def test_without_spans_of_particles_the_answers_is_told(detail: str) -> None:
    with exporting() as (server, provider):

        def reward(run: Any) -> float:
            with provider.get_tracer("user").start_as_current_span("judge"):
                return 0.5

        await evaluated(provider, reward, told={"detail": detail})
    [root] = named(server.spans, names.RUN)
    [after] = named(server.spans, names.REWARD)
    assert (after.parent, told(after)) == (root.id, [("true_reward", 0.5)])
    assert not named(server.spans, "judge")  # as all that others do inside a particle


async def test_a_reward_that_is_missing_says_why_and_survivors_keep_theirs() -> None:
    with exporting() as (server, provider):
        survivors = TracerProvider(resource=provider.resource, shutdown_on_exit=False)
        survivors.add_span_processor(SurvivorsOnly(provider._active_span_processor))
        calls = iter(range(10))

        def reward(run: Any) -> float:
            if next(calls) == 0:
                raise ZeroDivisionError("the judge divided")
            return 1.0

        given = {"particles": 4, "value": noise(), "resample": amc.every(1)}
        outcome = await evaluated(survivors, reward, **given)
    assert outcome.result.pruned
    assert outcome.missing
    [root] = named(server.spans, names.RUN)
    ids = {s.id for s in server.spans}
    rewards = [s for s in named(server.spans, names.REWARD) if s.parent != root.id]
    assert all(s.parent in ids for s in rewards)
    assert {s.attributes[names.PARTICLE_ID] for s in rewards} == {p.name for p in outcome.result.particles}
    [missing] = [s for s in rewards if s.error]
    assert told(missing) == []
    assert missing.attributes[names.ERROR] == "ZeroDivisionError"
    assert "divided" not in repr(server.spans)


class Breaking(SpanProcessor):
    """Raises where a reward is written down."""

    def on_end(self, span: Any) -> None:
        if span.name == names.REWARD:
            raise OSError("the disk is full")


async def test_a_trace_that_breaks_costs_no_reward() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Breaking())
    with pytest.warns(RuntimeWarning, match="tracing raised OSError") as warned:
        outcome = await evaluated(provider, lambda run: 0.5)
    assert outcome.rewards == (0.5,) * 3
    assert len([w for w in warned if "tracing raised" in str(w.message)]) == 1


async def test_they_come_back_with_the_trace(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(str(tmp_path / "traces.jsonl"))))
    given = iter([0.25, 0.5, 0.75])
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        outcome = await evaluated(provider, lambda run: next(given), reward=lambda run: 0.125)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        import_logs(store, tmp_path / "traces.jsonl", feedback="true_reward")
        found = {t.particle: t.outcome for t in store.trajectories()}
    assert found == {p.name: r for p, r in zip(outcome.result.particles, outcome.rewards, strict=True)}
