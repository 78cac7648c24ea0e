"""Which value function, which schedule, how many particles: the crafting agent on held-out tasks.

    python benchmarks/value_study.py --out study [--tasks 40] [--seeds 3] [--config amc.json]
    python benchmarks/value_study.py --out study --judge http://127.0.0.1:8080/v1 --judge-model smollm2 --judge-tasks 6

Everything is kept in --out, so it can be stopped and called again; the table is of what is there. All value functions
are trained on the same runs on other tasks. Best-of-N is the expectation over all subsets of N of the same pool of
64 independent runs per task and seed, with the answer chosen by the V trained with bce. *chosen by V*: honest.
*oracle*: the best true reward among the runs. The last line is JSON: mean rewards by arm, and the paired difference
of AMC with 8 particles to best-of-32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from langgraph_amc.demo import agent_file, policy_folder
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.runner import Job, Outcome, run_jobs
from langgraph_amc.evaluate.statistics import Scores, estimate, paired
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.runtime.config import RunConfig
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.smc import best_value, never
from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.value import as_value

POOL = 64
BEST_OF = (1, 4, 8, 16, 32, 64)
LOSSES = ("bce", "mse", "hl_gauss")
TASK_WORDS = (
    "An agent crafts a goal item. It may get base items, of which there is a finite stock, and craft by the given "
    "commands. It succeeds if it makes the goal item before its steps or the stock run out."
)
CRITERIA = "The goal item is made in the end. What was got or crafted needlessly uses up stock and steps."


@dataclass(frozen=True)
class World:
    """The agent, its reward and held-out tasks."""

    app: Any
    reward: Any
    tasks: Any
    concurrency: int

    async def run(self, settings: Any, seed: int, tasks: Any = None) -> list[dict[str, Any]]:
        """One row per task: scores of V and true rewards of the runs, and what they cost."""
        jobs = [Job(task, seed, replace(settings, select=best_value)) for task in (tasks or self.tasks)]
        rows: dict[str, dict[str, Any]] = {}
        async with aclosing(run_jobs(self.app, jobs, self.reward, concurrency=self.concurrency)) as outcomes:
            async for outcome in outcomes:
                rows[outcome.job.task.id] = _row(outcome)
        return [rows[job.task.id] for job in jobs]


def _row(outcome: Outcome) -> dict[str, Any]:
    usages = [r.trajectory.usage for r in (*outcome.result.particles, *outcome.result.pruned)]
    chosen = next(i for i, r in enumerate(outcome.result.particles) if r.name == outcome.result.winner.name)
    return {
        "selected": outcome.rewards[chosen],
        "oracle": max((r for r in outcome.rewards if r is not None), default=math.nan),
        "values": [r.value for r in outcome.result.particles],
        "rewards": outcome.rewards,
        "tokens": sum(u.tokens for u in usages),
        "missing": sum("score" in w for w in outcome.result.warnings),
    }


def best_of(n: int, row: dict[str, Any]) -> tuple[float, float, float]:
    """Expected (chosen by V, oracle, tokens) of n runs drawn from the pool without replacement."""
    pool = len(row["rewards"])
    rewards = np.array([math.nan if r is None else r for r in row["rewards"]], dtype=float)
    values = np.array([-math.inf if v is None else v for v in row["values"]], dtype=float)
    # the i-th of the order is the best of the subset with this chance
    chances = np.array([math.comb(pool - 1 - i, n - 1) / math.comb(pool, n) for i in range(pool)])
    selected = chances @ np.nan_to_num(rewards[np.argsort(-values, kind="stable")])
    oracle = chances @ np.sort(np.nan_to_num(rewards))[::-1]
    return float(selected), float(oracle), row["tokens"] * n / pool


async def prepare(out: Path, train: int, values: Sequence[tuple[str, str, str]], console: Console) -> None:
    """Collect on training tasks and train each V (its name, loss and calibration), unless that was done before."""
    from langgraph_amc.value import train_value

    agent = str(agent_file())
    app, store = load_app(f"{agent}:graph"), out / "trajectories.sqlite"
    if not (out / "collected").exists():
        store.unlink(missing_ok=True)
        tasks = load_tasks(f"{agent}:tasks", train=train, stock="finite").split("train")
        with TrajectoryStore(store) as opened:
            await collect(app, tasks, load_reward(f"{agent}:solved"), opened, read_settings(app), seeds=(0,))
        (out / "collected").touch()
    for name, loss, calibrate in values:
        if not (out / f"value-{name}" / "amc_value.json").exists():
            with TrajectoryStore(store) as opened:
                runs = list(opened.trajectories())
            report = train_value(
                runs, policy_folder(), out=out / f"value-{name}", loss=loss, calibrate=calibrate, seed=0
            )
            (out / f"value-{name}.txt").write_text(report.to_text())
            console.print(f"trained {name}", style="dim")


async def study(args: argparse.Namespace, console: Console) -> None:
    agent = str(agent_file())
    app = load_app(f"{agent}:graph")
    tasks = load_tasks(f"{agent}:tasks", test=args.tasks, stock="finite").split("test")
    world = World(app, load_reward(f"{agent}:solved"), tasks, args.concurrency)
    for name, seed, settings, held_out in arms(args, app, tasks):
        path = args.out / "arms" / f"{name}-{seed}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        rows = await world.run(settings(), seed, held_out)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}))
        console.print(f"{name}, seed {seed}: {time.perf_counter() - began:.0f} s", style="dim")


def arms(args: argparse.Namespace, app: Any, tasks: Any) -> list[tuple[str, int, Callable[[], Any], Any]]:
    """(name, seed, settings, tasks) of every arm; a judge's arms are alone in their call, as it takes long."""
    values = {loss: str(args.out / f"value-{loss}") for loss in LOSSES}

    def settings(n: int, value: Any, **more: Any) -> Callable[[], Any]:
        return lambda: read_settings(app, particles=n, value=value, **more)

    todo: list[tuple[str, int, Callable[[], Any], Any]] = []
    seeds = range(args.seeds)
    if args.judge:
        few = tasks[: args.judge_tasks]
        for seed in seeds:
            todo += [("some-AMC-8-bce", seed, settings(8, values["bce"]), few)]
            todo += [("some-pool", seed, settings(8, values["bce"], resample=never()), few)]
        return todo + [(name, seed, settings(8, value), few) for seed in seeds for name, value in judges(args).items()]
    for seed in seeds:
        todo.append(("AMC-8-bce", seed, settings(8, values["bce"]), tasks))
        todo.append(("pool", seed, settings(POOL, values["bce"], resample=never()), tasks))
    for seed in seeds:
        todo += [(f"AMC-{n}-bce", seed, settings(n, values["bce"]), tasks) for n in (4, 16)]
    for seed in seeds:
        todo += [(f"AMC-8-{loss}", seed, settings(8, values[loss]), tasks) for loss in LOSSES[1:]]
    calibrated = str(args.out / "value-calibrated")
    todo += [("AMC-8-bce-calibrated", seed, settings(8, calibrated), tasks) for seed in seeds]
    todo += [("AMC-8-bce-unheeded", seed, settings(8, _Unheeded(calibrated)), tasks) for seed in seeds]
    if args.config:
        chosen = RunConfig.load(args.config)
        more = {"resample": chosen.resample, "tau": chosen.tau, "boundary": chosen.boundary}
        todo += [("AMC-8-bce-tuned", seed, settings(8, values["bce"], **more), tasks) for seed in seeds]
    return todo


class _Unheeded:
    """A value function that does not tell how sure it is."""

    def __init__(self, folder: str) -> None:
        self._value = as_value(folder)

    def score(self, transcripts: Any) -> Any:
        return self._value.score(transcripts)


def judges(args: argparse.Namespace) -> dict[str, Any]:
    from langgraph_amc import chat_model
    from langgraph_amc.value.judges import Example, foa_judge, judge

    model = chat_model(f"openai/{args.judge_model}", api_base=args.judge, api_key="none", max_tokens=24)
    examples = [
        Example("get 2 oak log -> Got 2 oak log; craft oak planks -> Crafted; goal: oak planks", 10, "It is made."),
        Example("get 9 stick -> Could not find item; get 9 stick -> Could not find item; goal: ladder", 2, "Stuck."),
    ]
    options: dict[str, Any] = {"task": TASK_WORDS, "criteria": CRITERIA, "concurrency": 8}
    return {
        "AMC-8-judge": judge(model, scale=(0, 10), **options),
        "AMC-8-foa": foa_judge(model, examples=examples, votes=3, **options),
    }


def grid(out: Path, name: str, seeds: Sequence[int], read: Callable[[dict[str, Any]], float]) -> Scores | None:
    files = [out / "arms" / f"{name}-{seed}.json" for seed in seeds]
    if not all(file.exists() for file in files):
        return None
    columns = [[read(row) for row in json.loads(file.read_text())["rows"]] for file in files]
    return np.array(columns, dtype=float).T


def table(out: Path, seeds: Sequence[int], names: dict[str, str], pool: str, console: Console) -> dict[str, Any]:
    """Print every arm that is complete; the means by name, and the grids chosen by V."""
    shown = Table("method", "chosen by V (honest)", "oracle", "tokens", title=f"{len(seeds)} seed(s)")
    honest: dict[str, Scores] = {}

    def add(label: str, selected: Scores, oracle: Scores, tokens: float) -> None:
        honest[label] = selected
        shown.add_row(label, str(estimate(selected)), str(estimate(oracle)), f"{tokens:,.0f}")

    most = POOL if pool == "pool" else 8
    for n in (n for n in BEST_OF if n <= most):
        parts = [grid(out, pool, seeds, lambda row, n=n, k=k: best_of(n, row)[k]) for k in range(3)]
        if parts[0] is not None:
            add("one run" if n == 1 else f"best-of-{n}", parts[0], parts[1], float(np.mean(parts[2])))  # type: ignore[arg-type]
    for name, label in names.items():
        selected = grid(out, name, seeds, lambda row: _number(row["selected"]))
        if selected is not None:
            oracle, tokens = (grid(out, name, seeds, lambda row, k=k: _number(row[k])) for k in ("oracle", "tokens"))
            add(label, selected, oracle, float(np.mean(tokens)))  # type: ignore[arg-type]
    console.print(shown)
    return honest


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--train", type=int, default=200, help="tasks that V learns from, 8 runs each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--config", help="what amc tune wrote: an arm with its schedule")
    parser.add_argument("--judge", help="URL of an OpenAI-compatible server: the arms of judges, and nothing else")
    parser.add_argument("--judge-model", default="judge")
    parser.add_argument("--judge-tasks", type=int, default=6)
    args = parser.parse_args()
    load_litellm()
    console = Console()
    args.out.mkdir(parents=True, exist_ok=True)
    values = [(loss, loss, "none") for loss in LOSSES] + [("calibrated", "bce", "auto")]
    await prepare(args.out, args.train, values[:1] if args.judge else values, console)  # beside judges: bce's only
    await study(args, console)
    seeds = range(args.seeds)
    names = {f"AMC-{n}-bce": f"AMC, N = {n}, bce" for n in (4, 8, 16)}
    names |= {f"AMC-8-{loss}": f"AMC, N = 8, {loss}" for loss in LOSSES[1:]}
    names |= {"AMC-8-bce-calibrated": "AMC, N = 8, bce, calibrated", "AMC-8-bce-unheeded": "  its uncertainty unheeded"}
    names |= {"AMC-8-bce-tuned": "AMC, N = 8, bce, tuned schedule"}
    honest = table(args.out, seeds, names, "pool", console)
    some = {
        "some-AMC-8-bce": "AMC, N = 8, bce",
        "AMC-8-judge": "AMC, N = 8, judge",
        "AMC-8-foa": "AMC, N = 8, FoA judge",
    }
    if (args.out / "arms" / "some-pool-0.json").exists():
        console.print("the tasks that were judged by a language model:")
        honest |= {
            f"{label} (few tasks)": of for label, of in table(args.out, seeds, some, "some-pool", console).items()
        }
    result: dict[str, Any] = {name: estimate(scores).mean for name, scores in honest.items()}
    for n in (8, 16, 32, 64):
        if {"AMC, N = 8, bce", f"best-of-{n}"} <= honest.keys():
            difference = paired(honest["AMC, N = 8, bce"], honest[f"best-of-{n}"])
            result[f"AMC-8 - best-of-{n}"] = [difference.mean, difference.low, difference.high]
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
