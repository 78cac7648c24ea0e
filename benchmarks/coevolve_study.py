"""Skills, weights, one after the other, and both at once, at equal rollouts: the ablation of co-evolution.

    python benchmarks/coevolve_study.py --out study [--quick] [--seeds 3] [--generations 24] [--population 24]
        [--tasks 12] [--puzzles 150] [--repeats 2]

Sudoku with 5 empty cells, and a small policy that is first trained to heed rules in its prompt (`coevolve_policy`): two
that help it, two that harm it, two that do nothing. A proposer that knows nothing of that proposes them one at a time,
in an order drawn by the seed. Each arm has generations x population x tasks rollouts:

* base: the policy as it is, no skills.
* skills only: all rollouts to trials of skills, weights as they are.
* weights only: evolution of the norm gains, no skills.
* weights, then skills: half of the rollouts each, as in the released pipeline of Agentic ESOpt (without a gate).
* co-evolution: every rollout is both.

What an arm ends with is measured, not the best on the way, on held-out puzzles with the same random numbers for all.
Intervals are 95 %: over puzzles and seeds alike (Owen 2007). Everything is kept in --out, a generation at a time, so it
can be stopped and called again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from coevolve_direct import NO_WEIGHTS, DirectRollouts, measure
from coevolve_policy import RULES, SUDOKU, Pool, library_of, rules_of, train_policy
from kept import read, same, write
from rich.console import Console
from rich.table import Table
from sudoku_table import crossed, signed

from langgraph_amc.coevolve.loop import coevolve
from langgraph_amc.coevolve.standing import NOTE, library_to_json, replay_skills
from langgraph_amc.coevolve.trials import Trials
from langgraph_amc.evaluate.evolving.replica import Replica
from langgraph_amc.evaluate.evolving.replicas import Tuning
from langgraph_amc.evolution import Header, History, Strategy, Update
from langgraph_amc.evolution.history import read as read_history
from langgraph_amc.evolution.loop import Course
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.tasks import TaskSet
from langgraph_amc.tasks.loading import load_tasks

BASE, SKILLS, WEIGHTS, SEQUENTIAL, BOTH = (
    "base",
    "skills only",
    "weights only",
    "weights, then skills",
    "co-evolution",
)
ARMS = (BASE, SKILLS, WEIGHTS, SEQUENTIAL, BOTH)


@dataclass(frozen=True)
class Part:
    """One run of the loop: over how many generations, with the weights or without, with skills or without."""

    name: str
    generations: int
    weighty: bool
    skilled: bool


def parts_of(arm: str, generations: int) -> list[Part]:
    """What an arm consists of."""
    half = generations // 2
    return {
        BASE: [],
        SKILLS: [Part("skills", generations, False, True)],
        WEIGHTS: [Part("weights", generations, True, False)],
        SEQUENTIAL: [Part("first-weights", half, True, False), Part("then-skills", generations - half, False, True)],
        BOTH: [Part("both", generations, True, True)],
    }[arm]


async def run_part(
    part: Part, given: argparse.Namespace, replica: Replica, train: TaskSet, seed: int, folder: Path
) -> tuple[list[Update], SkillLibrary, int]:
    """Run the loop from wherever its history is: its updates, its library, and how many rollouts it has taken."""
    strategy = Strategy(
        population=given.population,
        sigma=given.sigma,
        alpha_ratio=given.ratio,
        antithetic=part.weighty,
        rank=1,
        seed=seed,
    )
    course = Course(train.ids, part.generations, given.tasks, validate_every=0, patience=None)
    rollouts = DirectRollouts(replica, train, seed=seed, weighty=part.weighty)
    layout = replica.layout.fingerprint() if part.weighty else NO_WEIGHTS
    header = Header(
        strategy, "vectors", layout, await rollouts.restore([]), {NOTE: library_to_json(SkillLibrary()), "seed": seed}
    )
    pool = Pool(seed) if part.skilled else Pool(seed, ())
    path = folder / f"{part.name}.jsonl"
    trials = Trials(generations=given.trial, alpha=given.alpha)
    with History(path, header) as history:
        async with aclosing(coevolve(course, trials, rollouts, pool, history)) as events:
            async for _ in events:
                pass
    log = read_history(path)
    updates = [record.update for record in log.records] if part.weighty else []
    return updates, replay_skills(log).champion, sum(record.rewards.size for record in log.records)


async def run_arm(
    arm: str, given: argparse.Namespace, replica: Replica, world: TaskSet, seed: int, folder: Path
) -> dict[str, Any]:
    """Train, and measure what it ends with."""
    updates: list[Update] = []
    library, spent = SkillLibrary(), 0
    replica.restore([])
    for part in parts_of(arm, given.generations):
        found, library, taken = await run_part(part, given, replica, world.split("train"), seed, folder)
        updates, spent = updates or found, spent + taken
        replica.restore(updates)
    rewards = await measure(replica, world.split("test"), library, seed, given.repeats)
    replica.restore([])
    return {"rewards": rewards.tolist(), "rollouts": spent, "rules": rules_of(library)}


async def worth(given: argparse.Namespace, replica: Replica, world: TaskSet) -> dict[str, float]:
    """What each rule is worth to the policy as it is: nobody in the study is told."""
    found = {}
    for rules in ([], *([rule] for rule in RULES)):
        rewards = await measure(replica, world.split("validation"), library_of(rules), 0, given.repeats)
        found[" ".join(rules) or "no rule"] = float(rewards.mean())
    return found


def table(cells: dict[str, dict[int, dict[str, Any]]], console: Console) -> dict[str, Any]:
    """Print what is there; the same as plain data."""
    shown = Table("arm", "solved", "minus base", "each seed", "rollouts", "rules at the end")
    result: dict[str, Any] = {}
    base = {seed: np.array(cell["rewards"]) for seed, cell in cells[BASE].items()}
    for arm, by_seed in cells.items():
        scores = np.array([by_seed[seed]["rewards"] for seed in by_seed]).T
        less = np.array([by_seed[seed]["rewards"] - base[seed] for seed in by_seed]).T
        solved, gain = crossed(scores), crossed(less)
        each = " ".join(f"{x:+.3f}" for x in less.mean(axis=0))
        kept = "\n".join(" ".join(cell["rules"]) or "-" for cell in by_seed.values())
        spent = max(cell["rollouts"] for cell in by_seed.values())
        shown.add_row(arm, str(solved), signed(gain), each, f"{spent:,}", kept)
        result[arm] = {
            "solved": asdict(solved),
            "gain": asdict(gain),
            "each": less.mean(axis=0).tolist(),
            "rollouts": spent,
            "rules": [cell["rules"] for cell in by_seed.values()],
        }
    console.print(shown)
    both = np.array([cells[BOTH][seed]["rewards"] for seed in cells[BOTH]]).T
    for arm in (SKILLS, WEIGHTS, SEQUENTIAL):
        other = np.array([cells[arm][seed]["rewards"] for seed in cells[BOTH]]).T
        difference = crossed(both - other)
        result[arm]["co-evolution less it"] = asdict(difference)
        console.print(f"{BOTH} less {arm}: {signed(difference)}")
    best = max(result, key=lambda arm: result[arm]["solved"]["mean"])
    console.print(f"highest: {best}")
    return {"arms": result, "highest": best}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=24)
    parser.add_argument("--population", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=12, help="puzzles per generation")
    parser.add_argument("--trial", type=int, default=3, help="generations of a trial")
    parser.add_argument("--alpha", type=float, default=0.05, help="of the gate")
    parser.add_argument("--sigma", type=float, default=0.1)
    parser.add_argument("--ratio", type=float, default=1.0, help="alpha by sigma")
    parser.add_argument("--steps", type=int, default=250, help="of training the policy")
    parser.add_argument("--puzzles", type=int, default=150, help="held-out ones")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each")
    parser.add_argument("--quick", action="store_true", help="whether it runs: a size that shows little else")
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.generations, given.population, given.tasks, given.trial = 1, 6, 16, 8, 1
        given.steps, given.puzzles, given.alpha = 150, 60, 0.2
    return given


def main() -> None:
    """Run what is missing, and print the table of what is there."""
    given = options()
    load_litellm()
    sizes = {k: v for k, v in vars(given).items() if k not in ("out", "seeds", "quick")}
    same(given.out, sizes)
    console = Console(width=None if os.isatty(1) else 140)
    policy = train_policy(given.out / "policy", given.steps, 0)
    world = TaskSet.from_iterable(
        load_tasks(f"{SUDOKU / 'agent.py'}:tasks", train=400, validation=given.puzzles, test=given.puzzles, masks=(5,))
    )
    replica = Replica(Tuning(str(policy), "vectors", max_batch=256))
    cells: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in ARMS}
    try:
        known = read(given.out / "worth.json") or asyncio.run(worth(given, replica, world))
        write(given.out / "worth.json", known)
        console.print("solved under one rule: " + ", ".join(f"{k} {v:.3f}" for k, v in known.items()), style="dim")
        for seed in range(given.seeds):
            for arm in ARMS:
                folder = given.out / f"{arm.replace(' ', '-').replace(',', '')}-{seed}"
                path = folder / "measured.json"
                folder.mkdir(parents=True, exist_ok=True)
                cells[arm][seed] = read(path) or asyncio.run(run_arm(arm, given, replica, world, seed, folder))
                write(path, cells[arm][seed])
                cell = cells[arm][seed]
                said = f"{arm}, seed {seed}: {np.mean(cell['rewards']):.3f}, {cell['rollouts']:,} rollouts"
                console.print(said, style="dim")
    finally:
        replica.close()
    found = table(cells, console)
    print(json.dumps({**found, "worth": known, **sizes, "seeds": given.seeds, "quick": given.quick}))


if __name__ == "__main__":
    main()
