"""The advisor against the truth: its predicted gain of AMC over best-of-N beside the measured one.

A grid of policy strengths of the crafting world, from hopeless to saturated: temperature, random actions, finite and
unlimited stock, tight step limits, a blind value function. Per cell a pilot (20 tasks × 8 runs of one split) is
advised on, and the gain is measured on 36 tasks × 2 seeds of another, at N = 4. One value function, learned
from runs of the plain policy, serves all cells. The last line is JSON: over cells whose measured 95 % interval
excludes 0, in how many the predicted gain has the right sign.

    python benchmarks/advisor.py [--quick] [--out advisor-benchmark] [--only NAME ...] [--report]

Resumable: what a cell has measured is kept in ``--out`` and not measured again; delete a file to repeat it. The table
is also kept there as advisor.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from langgraph_amc.demo import CraftingEnv, CraftingTask, agent_file, make_tasks, policy_folder, policy_model
from langgraph_amc.policy.litellm_setup import load_litellm

load_litellm()  # before the agent imports it: nothing is looked up in the network

from langchain_core.messages import AIMessage, HumanMessage  # noqa: E402
from langchain_litellm import ChatLiteLLM  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402

import langgraph_amc as amc  # noqa: E402
from langgraph_amc.evaluate.advice.advise import advise  # noqa: E402
from langgraph_amc.evaluate.advice.report import bar  # noqa: E402
from langgraph_amc.evaluate.collect import collect  # noqa: E402
from langgraph_amc.evaluate.compare import BEST_OF_N, SINGLE, compare  # noqa: E402
from langgraph_amc.evaluate.statistics import Estimate  # noqa: E402
from langgraph_amc.runtime.settings import read_settings  # noqa: E402
from langgraph_amc.tasks import Task, TaskSet, as_reward  # noqa: E402
from langgraph_amc.tasks.loading import load_object  # noqa: E402
from langgraph_amc.trajectories.store import TrajectoryStore  # noqa: E402
from langgraph_amc.value import as_value, train_value  # noqa: E402

PARTICLES, PILOT_RUNS = 4, 8
AGENT = str(agent_file())
State, world, solved = (load_object(f"{AGENT}:{name}") for name in ("State", "_world", "solved"))


@dataclass(frozen=True)
class Cell:
    """One policy in one world.

    ``noise``: chance that an action is replaced by a random one that the recipes and the stock name; ``fewer_steps``:
    taken off every task's step limit; ``blind``: V is a constant.
    """

    name: str
    temperature: float = 1.0
    noise: float = 0.0
    stock: str = "finite"
    fewer_steps: int = 0
    blind: bool = False


CELLS = (
    Cell("plain"),
    Cell("unlimited stock", stock="unlimited"),
    Cell("temperature 0.3", temperature=0.3),
    Cell("noise 0.1", noise=0.1),
    Cell("temperature 1.3", temperature=1.3),
    Cell("unlimited, temperature 0.5", temperature=0.5, stock="unlimited"),
    Cell("unlimited, 3 steps fewer", stock="unlimited", fewer_steps=3),
    Cell("noise 0.25", noise=0.25),
    Cell("temperature 2", temperature=2.0),
    Cell("blind V", blind=True),
)


@dataclass(frozen=True)
class Scale:
    train: int
    pilot: int
    test: int
    seeds: int


FULL, QUICK = Scale(train=64, pilot=20, test=36, seeds=2), Scale(train=16, pilot=8, test=6, seeds=1)
QUICK_CELLS = ("plain", "unlimited, temperature 0.5", "temperature 2")


def build(cell: Cell) -> Any:
    """The example's agent at the cell's temperature, with its random actions."""
    model = ChatLiteLLM(model=policy_model(), temperature=cell.temperature, max_tokens=40)

    def begin(state: Any) -> Any:
        env = fresh(state["task"])
        return {"world": env.snapshot(), "messages": [HumanMessage(env.task.prompt)]}

    async def think(state: Any) -> Any:
        message = await model.ainvoke(state["messages"])
        particle = amc.current_particle.get()
        rng = random.Random(f"{particle.seed if particle else 0}-{len(state['messages'])}")
        if rng.random() < cell.noise:
            message = AIMessage(f"Action: {random_action(state, rng)}", usage_metadata=message.usage_metadata)
        return {"messages": [message]}

    def act(state: Any) -> Any:
        env = world(state)
        observation, _, _, _ = env.step(str(state["messages"][-1].content))
        return {"world": env.snapshot(), "messages": [HumanMessage(observation)]}

    graph = StateGraph(State)
    graph.add_node("begin", begin)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda state: END if state["world"]["done"] else "think", ["think", END])
    return graph.compile()


def fresh(task: dict[str, Any]) -> Any:
    """A fresh environment of a task."""
    env = CraftingEnv()
    env.reset(CraftingTask.from_dict(task))
    return env


def random_action(state: Any, rng: random.Random) -> str:
    """A craft or a get that the task's text names, useful or not."""
    env = world(state)
    crafts = [recipe.text for recipe in env.task.recipes]
    gets = [f"get 1 {item}" for item, _ in env.task.supply]
    return rng.choice(crafts + gets)


def tasks(cell: Cell, split: str, n: int, start: int = 0) -> TaskSet:
    """Tasks of a split as the cell changes them."""
    made = make_tasks(split, n, start=start, stock=cell.stock)
    made = [replace(t, step_limit=t.step_limit - cell.fewer_steps) for t in made]
    return TaskSet([Task(t.task_id, {"task": t.to_dict()}, split=split) for t in made])


def once(file: Path, make: Callable[[], Any]) -> Any:
    """What the file holds, made first if it is missing."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        began = time.process_time()
        found = make()
        draft = file.with_suffix(".part")
        draft.write_text(json.dumps(found | {"cpu_seconds": time.process_time() - began}, indent=1))
        draft.replace(file)
    return json.loads(file.read_text())


def collected(cell: Cell, split: str, n: int, store: Path) -> list[Any]:
    """Runs of a split, from the store once they are all there."""
    app = build(cell)
    if not store.exists():
        draft = store.with_suffix(".part")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with TrajectoryStore(draft) as opened:
            settings = read_settings(app, particles=PILOT_RUNS)
            asyncio.run(collect(app, tasks(cell, split, n), as_reward(solved), opened, settings, concurrency=8))
        draft.replace(store)
    with TrajectoryStore(store) as opened:
        return list(opened.trajectories())


def train(out: Path, scale: Scale) -> dict[str, Any]:
    """One value function from runs of the plain policy on tasks of their own."""
    runs = collected(Cell("plain"), "train", scale.train, out / "train.sqlite")
    return train_value(runs, policy_folder(), out=out / "value", epochs=3, seed=0).to_dict()


def value_of(cell: Cell, out: Path) -> Any:
    return (lambda states: [0.5] * len(states)) if cell.blind else out / "value"


def measure(cell: Cell, out: Path, scale: Scale) -> dict[str, Any]:
    """What AMC really gains over best-of-N."""
    app = build(cell)
    settings = read_settings(app, particles=PARTICLES, value=value_of(cell, out))
    found = asyncio.run(
        compare(
            app,
            tasks(cell, "test", scale.test),
            as_reward(solved),
            settings,
            seeds=range(scale.seeds),
            same_tokens=False,
            label=cell.name,
        )
    )
    return found.to_json()


def predict(cell: Cell, out: Path, runs: list[Any]) -> dict[str, Any]:
    """The advice on the cell's pilot."""
    advice = advise(runs, as_value(value_of(cell, out)), particles=PARTICLES)
    return advice.to_json()


def table(cells: Sequence[dict[str, Any]]) -> Table:
    """Predicted beside measured, for the answer that V chooses, and as bars from -0.2 to +0.6."""
    found = Table(title=f"AMC - best-of-{PARTICLES}, the answer chosen by V", box=SIMPLE_HEAD, title_justify="left")
    for name in ("cell", "one run", f"best-of-{PARTICLES}"):
        found.add_column(name)
    for name in ("predicted, measured (95 %)", "-0.2 … +0.6"):
        found.add_column(name, no_wrap=True)
    found.add_column("verdict")
    for cell in cells:
        arms = {arm["name"]: arm["selected"]["mean"] for arm in cell["measured"]["arms"]}
        rows = predicted(cell), Estimate(**cell["measured"]["difference_selected"])
        found.add_row(
            cell["name"],
            f"{arms[SINGLE]:.2f}",
            f"{arms[BEST_OF_N]:.2f}",
            "\n".join(f"{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]" for e in rows),
            "\n".join(bar(e, -0.2, 0.6, 33) for e in rows),
            "{answer}: {reason}".format(**cell["advice"]["verdict"]),
        )
    return found


def predicted(cell: dict[str, Any], column: str = "selected") -> Estimate:
    """The advisor's gain; 0 where it finds that nothing varies, and simulates nothing."""
    gain = cell["advice"]["gain"]
    return Estimate(0.0, 0.0, 0.0) if gain is None else Estimate(**gain[column]["gain"])


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Signs over cells whose measured interval excludes 0, and the mean error over all."""
    right = wrong = 0
    errors = []
    for cell in cells:
        guess, truth = predicted(cell).mean, Estimate(**cell["measured"]["difference_selected"])
        errors.append(abs(guess - truth.mean))
        if truth.low > 0 or truth.high < 0:
            same = guess * truth.mean > 0
            right, wrong = right + same, wrong + (not same)
    mean = sum(errors) / len(errors) if errors else None
    return {"cells": len(cells), "sign_right": right, "sign_wrong": wrong, "mean_error": mean}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three cells, a few tasks each")
    parser.add_argument("--out", type=Path, default=Path("advisor-benchmark"), help="where results are kept")
    parser.add_argument("--only", nargs="*", help="names of cells")
    parser.add_argument("--report", action="store_true", help="measure nothing: report on the cells that are there")
    args = parser.parse_args()
    scale, out = (QUICK, args.out / "quick") if args.quick else (FULL, args.out)
    out.mkdir(parents=True, exist_ok=True)
    names = args.only or (QUICK_CELLS if args.quick else [cell.name for cell in CELLS])
    if unknown := set(names) - {cell.name for cell in CELLS}:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    if not args.report:
        once(out / "value.json", lambda: train(out, scale))
    cells = []
    for cell in [c for c in CELLS if c.name in names]:
        folder = out / cell.name.replace(" ", "-").replace(",", "")
        if args.report and not ((folder / "measured.json").exists() and (folder / "pilot.sqlite").exists()):
            continue
        measured = once(folder / "measured.json", lambda cell=cell: measure(cell, out, scale))
        runs = collected(cell, "tune", scale.pilot, folder / "pilot.sqlite")
        advice = once(folder / "advice.json", lambda cell=cell, runs=runs: predict(cell, out, runs))
        cells.append({"name": cell.name, "measured": measured, "advice": advice})
        print(f"{cell.name}: done", file=sys.stderr, flush=True)
    console = Console(record=True, width=120)
    console.print(table(cells))
    console.save_svg(str(out / "advisor.svg"), title="benchmarks/advisor.py")
    print(json.dumps(summary(cells)))


if __name__ == "__main__":
    main()
