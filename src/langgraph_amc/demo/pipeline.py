"""``amc demo``: collect, train, compare, on the crafting world, through the same functions the commands use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph_amc.demo import agent_file, policy_folder
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.compare import Comparison, compare
from langgraph_amc.evaluate.runner import Progress
from langgraph_amc.files import write_whole
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore

Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a demo does.

    Attributes
    ----------
    train: tasks to collect on, ``particles`` runs each.
    test: held-out tasks of the world with finite stock; unlimited: of the world without.
    seeds: runs of every test task.
    """

    train: int
    test: int
    unlimited: int
    seeds: int
    epochs: int
    particles: int = 8
    concurrency: int = 8
    same_tokens: bool = True


QUICK = Scale(train=16, test=6, unlimited=0, seeds=1, epochs=2, same_tokens=False)
STANDARD = Scale(train=56, test=20, unlimited=8, seeds=1, epochs=3)
FULL = Scale(train=200, test=100, unlimited=50, seeds=3, epochs=3)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo leaves in its folder, and how long it took."""

    comparisons: tuple[Comparison, ...]
    value_report: str
    value_quality: dict[str, Any]
    collected: int
    mean_reward: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return {
            "comparisons": [c.to_json() for c in self.comparisons],
            "value": self.value_quality,
            "collected": self.collected,
            "mean_reward": self.mean_reward,
            "seconds": self.seconds,
        }


def run_demo(out: Path, scale: Scale, *, seed: int, bar: Bar) -> DemoResult:
    """Run the whole study and keep its trajectories, value model and figures in ``out``."""
    from langgraph_amc.policy.litellm_setup import load_litellm
    from langgraph_amc.value import train_value

    load_litellm()  # before the agent imports it: the demo looks nothing up in the network
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    agent = str(agent_file())
    app, reward = load_app(f"{agent}:graph"), load_reward(f"{agent}:solved")

    def tasks(split: str, n: int, stock: str = "finite") -> Any:
        return load_tasks(f"{agent}:tasks", **{split: n}, stock=stock).split(split)

    store_file = out / "trajectories.sqlite"
    store_file.unlink(missing_ok=True)
    with TrajectoryStore(store_file) as store:
        with bar("collecting on training tasks") as progress:
            collected = asyncio.run(
                collect(
                    app,
                    tasks("train", scale.train),
                    reward,
                    store,
                    read_settings(app, particles=scale.particles),
                    seeds=(seed,),
                    concurrency=scale.concurrency,
                    progress=progress,
                )
            )
        trajectories = list(store.trajectories())
    with bar("training the value function") as progress:
        report = train_value(
            trajectories,
            policy_folder(),
            out=out / "value",
            epochs=scale.epochs,
            seed=seed,
            progress=lambda p: progress(min(p.step, p.steps), p.steps),
        )
    settings = read_settings(app, particles=scale.particles, value=out / "value")
    comparisons: list[Comparison] = []
    for stock, n in (("finite", scale.test), ("unlimited", scale.unlimited)):
        if not n:
            continue
        with bar(f"comparing, {stock} stock") as progress:
            comparisons.append(
                asyncio.run(
                    compare(
                        app,
                        tasks("test", n, stock),
                        reward,
                        settings,
                        seeds=tuple(range(seed, seed + scale.seeds)),
                        concurrency=scale.concurrency,
                        same_tokens=scale.same_tokens,
                        label=f"{stock} stock",
                        progress=progress,
                    )
                )
            )
    result = DemoResult(
        tuple(comparisons),
        report.to_text(),
        report.to_dict(),
        collected.runs,
        collected.mean_reward,
        time.perf_counter() - began,
    )
    write_whole(out / "result.json", json.dumps(result.to_json(), indent=1))
    return result
