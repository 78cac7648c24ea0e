"""What tracing costs: CPU time of a run that is traced, beside the same run that is not.

    python benchmarks/tracing.py [--quick]

N = 16 particles make T = 20 steps of a ``create_agent`` loop and are weighed and resampled every three. *off* is a run
of which nobody is told: as if this library knew nothing of OpenTelemetry. *no SDK* is what everybody has who installed
nothing; *batch* has an SDK with a batch processor whose exporter encodes every span for the wire and drops it. The
model's answers take no time at all, so that all of this is below one per cent of a run at a second per call. The last
line is JSON: ``with_sdk`` and ``without_sdk``, ratios to *off*.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import common
import numpy as np
from common import Instant, add, history, interleaved, ratio, thread
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from rich.console import Console
from rich.table import Table

import langgraph_amc as amc
from langgraph_amc.runtime import setup

PARTICLES, STEPS = 16, 20


class Encoding(SpanExporter):
    """Does to each span what sending it takes of this process, and counts them."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def app(saver: Any, **telemetry: Any) -> Any:
    """Resampled every three steps; a quarter or so of the particles is replaced each time."""
    noise = np.random.default_rng(0)
    return amc.wrap(
        create_agent(Instant(), [add], checkpointer=saver),
        particles=PARTICLES,
        value=lambda t: noise.random(len(t)),
        resample=amc.every(3),
        effects={"*": "pure"},
        telemetry=amc.Telemetry(**telemetry),
        seed=0,
    )


def unwatched() -> AbstractContextManager[Any]:
    """Runs of which nobody is told anything."""
    return patch.object(setup, "listen", lambda *args, **kwargs: None)


async def measure(repeats: int) -> tuple[dict[str, list[float]], int]:
    """CPU seconds of a run in each arm, export included, and the spans of a traced one."""
    saver = InMemorySaver()
    exporter = Encoding()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=65536, schedule_delay_millis=100))
    plain, traced = app(saver), app(saver, tracer_provider=provider)

    def arm(wrapped: Any, how: Callable[[], AbstractContextManager[Any]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            with how():
                await wrapped.ainvoke(history(1), thread())
            provider.force_flush()
            saver.storage.clear(), saver.writes.clear(), saver.blobs.clear()

        return run

    arms = {"off": arm(plain, unwatched), "no SDK": arm(plain, nullcontext), "batch": arm(traced, nullcontext)}
    for run in arms.values():
        await run()
    exporter.spans = 0
    times = await interleaved(repeats, arms)
    provider.shutdown()
    return times, exporter.spans // repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    common.ROUNDS = STEPS - 1
    began = time.perf_counter()
    times, spans = asyncio.run(measure(6 if quick else 24))
    table = Table("tracing", "ms per run", "ratio", title=f"CPU of a run, N = {PARTICLES}, T = {STEPS}")
    for name, seconds in times.items():
        table.add_row(name, f"{statistics.median(seconds) * 1e3:,.1f}", f"{ratio(seconds, times['off']):.3f}")
    Console().print(table)
    print(f"{spans} spans per traced run; {time.perf_counter() - began:.0f} s")
    ratios = {name: ratio(times[arm], times["off"]) for name, arm in (("with_sdk", "batch"), ("without_sdk", "no SDK"))}
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
