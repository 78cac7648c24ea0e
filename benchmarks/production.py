"""What effects, a budget and a journal cost: CPU time per super-step and particle, beside the same AMC run without.

    python benchmarks/production.py [--quick]

Both arms run AMC over a SQLite saver on disk, weighed and resampled every three steps; the second has a policy for
every tool, a budget that no call exceeds, and a journal in a SQLite file of its own. Arms are interleaved and the
median of the ratios of many turns counts. The last line is JSON: ``overhead_max``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import STEPS, Instant, add, history, interleaved, ratio, thread
from langchain.agents import create_agent
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from rich.console import Console
from rich.table import Table

import langgraph_amc as amc


def wrapped(saver: Any, n: int, **production: Any) -> Any:
    app = create_agent(Instant(), [add], checkpointer=saver)
    noise = np.random.default_rng(0)
    return amc.wrap(app, particles=n, value=lambda t: noise.random(len(t)), resample=amc.every(3), seed=0, **production)


async def measure(folder: Path, sizes: list[int], counts: list[int], repeats: int, table: Table) -> float:
    worst = 0.0
    with amc.Journal(folder / "runs.sqlite") as journal:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "app.sqlite")) as saver:
            for messages in sizes:
                for n in counts:
                    bare = wrapped(saver, n)
                    safe = wrapped(
                        saver,
                        n,
                        effects={"add": "pure"},
                        budget=amc.Budget(tokens=10**12, calls=10**9, seconds=3600, output_tokens=1000),
                        journal=journal,
                    )
                    times = await interleaved(
                        repeats * 6,
                        {
                            "bare": lambda m=messages, w=bare: w.ainvoke(history(m), thread()),
                            "safe": lambda m=messages, w=safe: w.ainvoke(history(m), thread()),
                        },
                    )
                    overhead = ratio(times["safe"], times["bare"])
                    worst = max(worst, overhead)
                    us = [f"{statistics.median(times[k]) / n / STEPS * 1e6:,.0f}" for k in ("bare", "safe")]
                    table.add_row(str(messages), str(n), *us, f"{overhead:.2f}")
    return worst


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    quick = parser.parse_args().quick
    sizes, counts, repeats = ([1, 100], [2, 8], 2) if quick else ([1, 100, 400], [2, 8, 32], 4)
    title = "CPU per super-step and particle"
    table = Table("history", "N", "AMC us", "with effects, budget, journal us", "ratio", title=title)
    with tempfile.TemporaryDirectory() as folder:
        worst = await measure(Path(folder), sizes, counts, repeats, table)
    Console().print(table)
    print(json.dumps({"overhead_max": worst}))


if __name__ == "__main__":
    asyncio.run(main())
