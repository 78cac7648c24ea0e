"""What branching costs: CPU time per super-step and particle, beside as many plain runs with the app's saver.

    python benchmarks/runtime.py [--quick]

The app is a ``create_agent`` loop with a model and a tool that answer at once, so that only the runtime is
measured; at a second per model call all of this is below one per cent. Arms are interleaved and the median of the
ratios of many turns counts. The last line is JSON: ``overhead_max`` (InMemorySaver), ``overhead_sqlite_max``
(SQLite on disk), ``fork_ratio`` (fork at 1,000 messages over fork at 10).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import STEPS, Instant, add, history, interleaved, ratio, thread
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from rich.console import Console
from rich.table import Table

import langgraph_amc as amc
from langgraph_amc.runtime.saver import ParticleSaver


async def plain(app: Any, messages: int, n: int) -> None:
    await asyncio.gather(*[app.ainvoke(history(messages), thread()) for _ in range(n)])


def amc_run(app: Any, n: int) -> Any:
    """Weighed and resampled every three steps; a quarter or so of the particles is replaced each time."""
    import numpy as np

    noise = np.random.default_rng(0)
    return amc.wrap(app, particles=n, value=lambda t: noise.random(len(t)), resample=amc.every(3), seed=0)


async def overheads(saver: Any, sizes: list[int], counts: list[int], repeats: int, table: Table, label: str) -> float:
    worst = 0.0
    app = create_agent(Instant(), [add], checkpointer=saver)
    for messages in sizes:
        for n in counts:
            wrapped = amc_run(app, n)
            times = await interleaved(
                repeats * max(2, 12 // n),
                {
                    "plain": lambda m=messages, n=n: plain(app, m, n),
                    "amc": lambda m=messages, w=wrapped: w.ainvoke(history(m), thread()),
                },
            )
            overhead = ratio(times["amc"], times["plain"])
            worst = max(worst, overhead)
            us = [f"{statistics.median(times[k]) / n / STEPS * 1e6:,.0f}" for k in ("plain", "amc")]
            table.add_row(label, str(messages), str(n), *us, f"{overhead:.2f}")
            if isinstance(saver, InMemorySaver):
                saver.storage.clear(), saver.writes.clear(), saver.blobs.clear()
    return worst


async def fork_seconds(messages: int) -> float:
    """Seconds to fork the saver of a particle that stands at a boundary."""
    saver = ParticleSaver(None)
    app = create_agent(Instant(), [add], checkpointer=saver)
    await app.ainvoke(history(messages), thread())
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            saver.fork()
        best = min(best, (time.perf_counter() - began) / 200)
    return best


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    quick = parser.parse_args().quick
    sizes, counts, repeats = ([1, 100], [1, 8], 3) if quick else ([1, 100, 400], [1, 8, 32], 5)
    table = Table("saver", "history", "N", "plain us", "AMC us", "ratio", title="CPU per super-step and particle")
    memory = await overheads(InMemorySaver(), sizes, counts, repeats, table, "memory")
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / "bench.sqlite")) as saver:
            sqlite = await overheads(saver, sizes, counts, max(2, repeats - 2), table, "sqlite")
    short, long = await fork_seconds(10), await fork_seconds(1000)
    Console().print(table)
    print(f"fork at 10 messages {short * 1e6:.1f} us, at 1,000 messages {long * 1e6:.1f} us")
    print(json.dumps({"overhead_max": memory, "overhead_sqlite_max": sqlite, "fork_ratio": long / short}))


if __name__ == "__main__":
    asyncio.run(main())
