"""Does DPO on siblings make a small policy better? The crafting agent on held-out tasks, before and after.

    python benchmarks/dpo_siblings.py --out dpo [--quick] [--seeds 3] [--train 100] [--held-out 100]

The policy that ships with the package errs by the step. For each seed: AMC with 8 particles collects on training tasks
of that seed's own, under one cheap V that was trained on other tasks; siblings become pairs
(`langgraph_amc_trl.sibling_pairs`), DPO trains the policy on them through TRL, and the tuned folder is served by the
batch engine on held-out tasks, sampled at T = 1 and greedily, with the same random numbers as the policy as it was.
What is compared in a pair, learning rate and beta are chosen once, on seed 0's pairs and validation tasks (T = 1).
SFT on each task's best run is measured beside it, swept the same way.

Intervals are 95 %, over tasks and seeds (`evaluate.statistics`). Everything is kept in --out, so it can be stopped and
called again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from kept import read, same, write
from langgraph_amc_trl import DPO, SFT, selected_runs, sibling_pairs, train_on_pairs, train_on_runs
from langgraph_amc_trl.rendering import check_seen
from rich.console import Console
from rich.table import Table

from langgraph_amc.demo import CraftingEnv, CraftingTask, agent_file, make_tasks, policy_folder
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.statistics import Scores, estimate, paired
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory

PARTICLES, REPEATS = 8, 4
DPO_GRID: list[dict[str, Any]] = [
    {"completion": completion, "learning_rate": rate, "beta": beta, "epochs": 2}
    for completion, (rate, beta) in product(("step", "rest"), ((1e-4, 0.1), (1e-4, 1.0), (3e-4, 1.0)))
]
SFT_GRID: list[dict[str, Any]] = [{"learning_rate": rate, "epochs": 2} for rate in (1e-4, 3e-4)]
MEASURES = {"T = 1": 1.0, "greedy": 0.0}


def collected(out: Path, name: str, split: str, first: int, count: int, value: Path | None, seed: int) -> Path:
    """A store of runs on some tasks, as AMC under V or as plain runs; what is there is kept."""
    agent, store = str(agent_file()), out / f"{name}.sqlite"
    if not (out / f"{name}.done").exists():
        store.unlink(missing_ok=True)
        app = load_app(f"{agent}:graph")
        tasks = load_tasks(f"{agent}:tasks", **{split: first + count}, stock="finite").split(split)[first:]
        settings = read_settings(app, particles=PARTICLES, **({} if value is None else {"value": value}))
        with TrajectoryStore(store) as opened:
            asyncio.run(collect(app, tasks, load_reward(f"{agent}:solved"), opened, settings, seeds=(seed,)))
        (out / f"{name}.done").touch()
    return store


def runs_of(store: Path) -> list[Trajectory]:
    """All runs of a store."""
    with TrajectoryStore(store) as opened:
        return list(opened.trajectories())


def value_function(out: Path, tasks: int) -> Path:
    """A V from plain runs on tasks that serve for nothing else."""
    from langgraph_amc.value import train_features

    folder = out / "value"
    if not folder.exists():
        train_features(runs_of(collected(out, "plain", "tune", 100, tasks, None, 0)), out=folder)
    return folder


def tuned(out: Path, kind: str, given: dict[str, Any], runs: Sequence[Trajectory], seed: int) -> tuple[Path, dict]:
    """The policy trained on these runs, and what it was trained on; a folder that is there is made anew."""
    shutil.rmtree(out, ignore_errors=True)
    options = {key: value for key, value in given.items() if key != "completion"}
    if kind == "DPO":
        pairs = sibling_pairs(runs, completion=given["completion"]).pairs
        result = train_on_pairs(pairs, model=policy_folder(), out=out, method=DPO(seed=seed, **options))
    else:
        chosen = selected_runs(runs, success=1.0).examples
        result = train_on_runs(chosen, model=policy_folder(), out=out, method=SFT(seed=seed, **options))
    last = result.steps[-1]
    return Path(result.model), {"used": result.used, "trained tokens": result.trained, "loss": last["loss"]}


def measure(model: Path, tasks: Sequence[CraftingTask], temperature: float, repeats: int, seed: int) -> Scores:
    """Solved or not, [tasks, repeats], with the same random numbers for every model."""
    engine = BatchEngine.from_path(model, max_batch=64)
    gate = asyncio.Semaphore(64)

    async def run(task: CraftingTask, repeat: int) -> float:
        env = CraftingEnv()
        messages = [{"role": "user", "content": env.reset(task)}]
        while not env.done:
            noise = mix(seed, "dpo-siblings", task.task_id, repeat, len(messages))
            request = GenerationRequest(messages=messages, max_tokens=40, temperature=temperature, seed=noise)
            async with gate:
                [said] = await engine.agenerate(request)
            observation, _, _, _ = env.step(said.text)
            messages = [
                *messages,
                {"role": "assistant", "content": said.text},
                {"role": "user", "content": observation},
            ]
        return float(env.success)

    async def everything() -> list[float]:
        return await asyncio.gather(*(run(task, repeat) for task in tasks for repeat in range(repeats)))

    try:
        return np.array(asyncio.run(everything())).reshape(len(tasks), repeats)
    finally:
        engine.close()


def untuned(out: Path, given: argparse.Namespace) -> None:
    """Print what the policy as it ships solves of the sweep's tasks."""
    path = out / "sweep-base.json"
    cell = read(path)
    if cell is None:
        tasks = list(make_tasks("tune", given.validation, stock="finite"))
        cell = {"solved": float(measure(policy_folder(), tasks, 1.0, REPEATS, 0).mean())}
        write(path, cell)
    print(f"  as it ships: {cell['solved']:.3f} of validation", flush=True)


def sweep(out: Path, kind: str, grid: Sequence[dict[str, Any]], given: argparse.Namespace, runs: Any) -> dict[str, Any]:
    """The setting that solves most validation tasks at T = 1, trained on seed 0's runs."""
    tasks = list(make_tasks("tune", given.validation, stock="finite"))
    best: tuple[float, dict[str, Any]] | None = None
    for number, setting in enumerate(grid):
        path = out / f"sweep-{kind}-{number}.json"
        cell = read(path)
        if cell is None:
            model, about = tuned(out / "trial", kind, setting, runs, 0)
            solved = measure(model, tasks, 1.0, REPEATS, 0).mean()
            cell = {"setting": setting, "solved": float(solved), **about}
            write(path, cell)
        print(f"  {kind} {setting}: {cell['solved']:.3f} of validation, {cell['used']} used", flush=True)
        if best is None or cell["solved"] > best[0]:
            best = cell["solved"], setting
    assert best is not None
    return best[1]


def study(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Collect, train and measure whatever is missing; the table."""
    out = given.out
    value = value_function(out, given.value_tasks)
    stores = [
        collected(out, f"amc-{seed}", "train", seed * given.train, given.train, value, seed)
        for seed in range(given.seeds)
    ]
    seen = check_seen(runs_of(stores[0]), policy_folder())
    held_out = list(make_tasks("test", given.held_out, stock="finite"))
    untuned(out, given)
    chosen = {
        kind: sweep(out, kind, grid[: given.settings], given, runs_of(stores[0]))
        for kind, grid in (("DPO", DPO_GRID), ("SFT", SFT_GRID))
    }
    base: dict[str, list[Any]] = {name: [] for name in MEASURES}
    after: dict[str, dict[str, list[Any]]] = {kind: {name: [] for name in MEASURES} for kind in chosen}
    about: dict[str, list[Any]] = {kind: [] for kind in chosen}
    for seed, store in enumerate(stores):
        path = out / f"seed-{seed}.json"
        cell = read(path)
        if cell is None:
            cell = {"base": measured(policy_folder(), held_out, seed)}
            for kind, setting in chosen.items():
                model, facts = tuned(out / f"{kind}-{seed}", kind, setting, runs_of(store), seed)
                cell[kind] = {"about": facts, "measured": measured(model, held_out, seed)}
            write(path, cell)
        for name in MEASURES:
            base[name].append(cell["base"][name])
            for kind in chosen:
                after[kind][name].append(cell[kind]["measured"][name])
        for kind in chosen:
            about[kind].append(cell[kind]["about"])
    return table(base, after, about, chosen, console) | {"seen": seen}


def measured(model: Path, tasks: Sequence[CraftingTask], seed: int) -> dict[str, list[float]]:
    """Mean over repeats for each task; greedy runs do not differ."""
    return {
        name: measure(model, tasks, temperature, REPEATS if temperature else 1, seed).mean(axis=1).tolist()
        for name, temperature in MEASURES.items()
    }


def table(base: Any, after: Any, about: Any, chosen: Any, console: Console) -> dict[str, Any]:
    """Print the arms, and the same as plain data."""
    shown = Table("policy", "sampled as", "solved", "minus before", "each seed", "trained on")
    result: dict[str, Any] = {"chosen": chosen}
    for name in MEASURES:
        before = np.array(base[name]).T
        shown.add_row("as it ships", name, str(estimate(before)), "", "", "")
        result[f"base, {name}"] = estimate(before).mean
        for kind in chosen:
            scores = np.array(after[kind][name]).T
            gain = paired(scores, before)
            each = " ".join(f"{x:+.3f}" for x in (scores - before).mean(axis=0))
            used = ", ".join(str(facts["used"]) for facts in about[kind])
            shown.add_row(kind, name, str(estimate(scores)), _signed(gain), each, used)
            result[f"{kind}, {name}"] = estimate(scores).mean
            result[f"{kind} - base, {name}"] = [gain.mean, gain.low, gain.high]
    console.print(shown)
    return result


def _signed(gain: Any) -> str:
    return f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--train", type=int, help="tasks that AMC collects on, for each seed")
    parser.add_argument("--held-out", type=int)
    given = parser.parse_args()
    sizes = {"seeds": 1, "train": 6, "held_out": 6} if given.quick else {"seeds": 3, "train": 100, "held_out": 100}
    for name, size in sizes.items():
        setattr(given, name, getattr(given, name) or size)
    given.validation, given.value_tasks, given.settings = (6, 8, 2) if given.quick else (40, 40, None)
    given.out.mkdir(parents=True, exist_ok=True)
    same(given.out, {name: value for name, value in vars(given).items() if name != "out"})
    load_litellm()
    result = study(given, Console(width=120))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
