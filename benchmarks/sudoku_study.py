"""Base, evolution strategies, policy gradients and AMC on the same Sudoku puzzles, at equal numbers of trajectories.

    python benchmarks/sudoku_study.py --out study [--horizons 5 10 15] [--seeds 3] [--arms ours GRPO ...] [--quick]

Every trained arm spends generations * population * tasks trajectories per run. Its sigma, or its learning rate, is
swept with the first seed and chosen on validation puzzles; the other seeds train with what was chosen. Then all arms
are measured on the same held-out puzzles with the same random numbers. "Best tuned", for AMC, is the trained arm with
the best validation puzzles under the same seed.

Everything is kept in --out: one JSON file per training run in trials/ and per (arm, horizon, seed) in cells/. It can
be stopped and called again, and the table is of what is there. *solved*: mean with its 95 % interval over puzzles and
runs within them, as `amc evolve` has it. *minus base*: the paired difference to the base at temperature 1, whose
interval is over puzzles and over training runs, both drawn anew (the pigeonhole bootstrap of Owen 2007, too wide
rather than too narrow); then the difference of each seed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sudoku_arms import (
    AMC_BASE,
    AMC_TUNED,
    BASES,
    EVOLVED,
    GRADIENTS,
    POLICY,
    Scale,
    Trial,
    World,
    best_trial,
    installed,
    measure,
    solved_share,
    train,
)

from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate
from langgraph_amc.policy.litellm_setup import load_litellm

BASE = next(iter(BASES))
TRAINED = (*EVOLVED, *GRADIENTS)
ARMS = (*BASES, *TRAINED, AMC_BASE, AMC_TUNED)
SIGMAS, RATES = (2.5e-3, 5e-3, 1e-2), (1e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Study:
    """What is run, and where it is kept."""

    out: Path
    scale: Scale
    arms: Sequence[str]
    horizons: Sequence[int]
    seeds: int
    swept: dict[str, Sequence[float]]
    puzzles: int
    validation: int
    concurrency: int
    console: Console

    def run(self) -> None:
        """Whatever is not there yet."""
        for horizon in self.horizons:
            world = World.of(horizon, self.validation, self.puzzles, self.concurrency)
            for arm in (name for name in self.arms if name in BASES):
                for seed in range(self.seeds):
                    self._cell(arm, world, seed, POLICY, {}, temperature=BASES[arm])
            for arm in (name for name in self.arms if name in TRAINED):
                if arm not in GRADIENTS or installed():
                    self._trained(arm, world)
            for seed in range(self.seeds):
                if AMC_BASE in self.arms:
                    self._cell(AMC_BASE, world, seed, POLICY, {}, amc=True)
                if AMC_TUNED in self.arms:
                    self._on_best(world, seed)

    def _trained(self, arm: str, world: World) -> None:
        """Sweep with the first seed, train the others with what was best, measure all."""
        trials = [Trial(arm, setting, 0, self.scale) for setting in self.swept[arm]]
        best = best_trial([(trial, self._trial(trial, world)["validation"]) for trial in trials])
        for seed in range(self.seeds):
            trial = Trial(arm, best.setting, seed, self.scale)
            done = self._trial(trial, world)
            about = {"trained": done, "sweep_trajectories": self.scale.trajectories * (len(trials) - 1)}
            self._cell(arm, world, seed, self._folder(trial, world) / "run" / "model", about)

    def _on_best(self, world: World, seed: int) -> None:
        """AMC on the policy that did best on validation puzzles; anew where another one has become the best."""
        cells = {arm: read(self.cell(arm, world.horizon, seed)) for arm in TRAINED}
        known = {arm: cell for arm, cell in cells.items() if cell is not None}
        if not known:
            return
        best = max(known, key=lambda arm: known[arm]["trained"]["validation"])
        path = self.cell(AMC_TUNED, world.horizon, seed)
        before = read(path)
        if before is not None and before["on"] != best:
            path.unlink()
        trial = Trial(best, known[best]["trained"]["setting"], seed, self.scale)
        self._cell(AMC_TUNED, world, seed, self._folder(trial, world) / "run" / "model", {"on": best}, amc=True)

    def _trial(self, trial: Trial, world: World) -> dict[str, Any]:
        folder = self._folder(trial, world)
        path = folder / "trial.json"
        if (done := read(path)) is not None:
            return done
        began = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        found = train(trial, world, folder / "run")
        seconds = time.perf_counter() - began
        measured = measure(found.pop("model"), world.tasks.split("validation"), trial.seed, self.concurrency)
        done = {"setting": trial.setting, **found, "seconds": seconds, "validation": solved_share(measured)}
        write(path, done)
        self.console.print(f"{folder.name}: validation {done['validation']:.3f}, {seconds:.0f} s", style="dim")
        return done

    def _cell(self, arm: str, world: World, seed: int, model: Path, about: dict[str, Any], **how: Any) -> None:
        path = self.cell(arm, world.horizon, seed)
        if path.exists():
            return
        began = time.perf_counter()
        found = measure(model, world.tasks.split("test"), seed, self.concurrency, **how)
        write(path, {"arm": arm, "horizon": world.horizon, "seed": seed, **about, **found})
        seconds = time.perf_counter() - began
        self.console.print(f"{path.stem}: {solved_share(found):.3f}, {seconds:.0f} s", style="dim")

    def cell(self, arm: str, horizon: int, seed: int) -> Path:
        """File of one measurement."""
        return self.out / "cells" / f"{slug(arm)}-{horizon}-{seed}.json"

    def _folder(self, trial: Trial, world: World) -> Path:
        return self.out / "trials" / f"{slug(trial.arm)}-{world.horizon}-{trial.setting:g}-{trial.seed}"


def slug(arm: str) -> str:
    """The arm as a part of a file's name."""
    return "".join(c if c.isalnum() or c == "." else "-" for c in arm.lower()).replace("--", "-")


def read(path: Path) -> dict[str, Any] | None:
    """What is in a file, if it is there."""
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def write(path: Path, data: dict[str, Any]) -> None:
    """All of it, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(data))
    os.replace(path.with_suffix(".part"), path)


def crossed(scores: Scores, *, resamples: int = 4000) -> Estimate:
    """Mean of [puzzles, runs] with an interval over puzzles and runs alike: what a run learned shows on all puzzles."""
    rng = np.random.default_rng(0)
    known, (puzzles, runs) = ~np.isnan(scores), scores.shape
    filled = np.where(known, scores, 0.0)
    rows = rng.multinomial(puzzles, np.full(puzzles, 1 / puzzles), size=resamples)
    columns = rng.multinomial(runs, np.full(runs, 1 / runs), size=resamples)
    sums = ((rows @ filled) * columns).sum(axis=1)
    counts = ((rows @ known) * columns).sum(axis=1)
    low, high = np.nanpercentile(np.divide(sums, counts, out=np.full(resamples, np.nan), where=counts > 0), [2.5, 97.5])
    return Estimate(float(np.nanmean(scores)), float(low), float(high))


def grid(cells: Sequence[dict[str, Any]]) -> Scores:
    """[puzzles, seeds] of the same arm."""
    return np.array([list(cell["rewards"].values()) for cell in cells], dtype=float).T


@dataclass(frozen=True)
class Row:
    """One arm of one horizon, as far as it is there."""

    arm: str
    cells: dict[int, dict[str, Any]]

    def against(self, other: Row) -> tuple[Estimate, list[float]] | None:
        """The paired difference over the seeds that both have, and that of each."""
        seeds = sorted(self.cells.keys() & other.cells.keys())
        if not seeds:
            return None
        difference = grid([self.cells[s] for s in seeds]) - grid([other.cells[s] for s in seeds])
        return crossed(difference), [float(mean) for mean in np.nanmean(difference, axis=0)]

    def cost(self) -> dict[str, float]:
        """Trajectories and tokens: of one training run and of the sweep before it, and for one puzzle."""
        cells = list(self.cells.values())
        trained = [cell["trained"] for cell in cells if "trained" in cell]
        puzzles = sum(len(cell["rewards"]) for cell in cells)
        return {
            "trajectories": max((t["trajectories"] for t in trained), default=0),
            "training_tokens": float(np.mean([t["tokens"] for t in trained])) if trained else 0.0,
            "sweep_trajectories": max((cell.get("sweep_trajectories", 0) for cell in cells), default=0),
            "trajectories_per_puzzle": sum(cell["trajectories"] for cell in cells) / puzzles,
            "tokens_per_puzzle": sum(cell["tokens"] for cell in cells) / puzzles,
        }

    @property
    def label(self) -> str:
        cells = self.cells.values()
        settings = {f"{cell['trained']['setting']:g}" for cell in cells if "trained" in cell}
        on = {cell["on"] for cell in cells if "on" in cell}
        return f"{self.arm} ({', '.join(sorted(settings | on))})" if settings or on else self.arm


def table(study: Study, horizon: int) -> dict[str, Any]:
    """Print a horizon's table; the same as plain data."""
    found = {arm: {s: read(study.cell(arm, horizon, s)) for s in range(study.seeds)} for arm in ARMS}
    rows = [Row(arm, {s: c for s, c in cells.items() if c is not None}) for arm, cells in found.items()]
    base = rows[0]
    columns = (
        "arm (sigma, rate, policy)",
        "solved",
        "minus base",
        "each seed",
        "trained on",
        "tokens",
        "tokens/puzzle",
    )
    shown = Table(*columns, title=f"{horizon} empty cells, {study.puzzles} held-out puzzles, {study.seeds} seed(s)")
    result: dict[str, Any] = {}
    for row in rows:
        if not row.cells:
            absent = row.arm in GRADIENTS and not installed()
            shown.add_row(row.arm, "not run: pip install -e integrations/trl" if absent else "not run")
            continue
        solved, cost = estimate(grid(list(row.cells.values()))), row.cost()
        gain = None if row is base else row.against(base)
        shown.add_row(
            row.label,
            str(solved),
            "" if gain is None else signed(gain[0]),
            "" if gain is None else " ".join(f"{d:+.3f}" for d in gain[1]),
            f"{cost['trajectories']:,.0f} (+{cost['sweep_trajectories']:,.0f})" if cost["trajectories"] else "",
            f"{cost['training_tokens']:,.0f}" if cost["trajectories"] else "",
            f"{cost['tokens_per_puzzle']:,.0f}",
        )
        result[row.arm] = {"seeds": len(row.cells), "solved": asdict(solved), **cost}
        if gain is not None:
            result[row.arm] |= {"minus_base": asdict(gain[0]), "each_seed": gain[1]}
    study.console.print(shown)
    return {"arms": result, "ours_minus": order(rows, horizon, study.console)}


def order(rows: Sequence[Row], horizon: int, console: Console) -> dict[str, Any]:
    """Ours against every other trained arm: whether the order turns with the horizon."""
    ours = next(row for row in rows if row.arm == EVOLVED[-1])
    differences: dict[str, Any] = {}
    for row in rows:
        found = ours.against(row) if row.arm in TRAINED and row is not ours else None
        if found is not None:
            differences[row.arm] = asdict(found[0])
            console.print(f"{horizon} empty cells, ours minus {row.arm}: {signed(found[0])}", highlight=False)
    return differences


def signed(e: Estimate) -> str:
    """A difference with its interval."""
    return f"{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"


def same(path: Path, about: dict[str, Any]) -> None:
    """Raise SystemExit where --out holds a study of other sizes."""
    known = read(path)
    if known is not None and known != about:
        raise SystemExit(f"{path.parent} holds a study of {known}, now {about}: give another --out, or the same sizes")
    write(path, about)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--horizons", type=int, nargs="+", default=[5, 10, 15], choices=[5, 10, 15])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--population", type=int, default=32)
    parser.add_argument("--tasks-per-generation", type=int, default=8)
    parser.add_argument("--sigmas", type=float, nargs="+", default=SIGMAS, help="swept by the arms of evolution")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="swept by the policy gradients")
    parser.add_argument("--puzzles", type=int, default=200, help="held-out ones")
    parser.add_argument("--validation", type=int, default=100, help="puzzles that settings are chosen on")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="whether every arm runs: a size that shows nothing else")
    given = parser.parse_args()
    if given.quick:
        given.generations, given.population, given.tasks_per_generation = 2, 4, 2
        given.puzzles, given.validation, given.seeds = 6, 4, min(given.seeds, 2)
        given.sigmas, given.rates = given.sigmas[:1], given.rates[:1]
    return given


def main() -> None:
    given = options()
    load_litellm()
    scale = Scale(given.generations, given.population, given.tasks_per_generation)
    swept = dict.fromkeys(EVOLVED, given.sigmas) | dict.fromkeys(GRADIENTS, given.rates)
    study = Study(
        given.out,
        scale,
        given.arms,
        given.horizons,
        given.seeds,
        swept,
        given.puzzles,
        given.validation,
        given.concurrency,
        Console(width=None if os.isatty(1) else 160),
    )
    same(given.out / "study.json", {**asdict(scale), "puzzles": given.puzzles, "validation": given.validation})
    study.run()
    found = {str(horizon): table(study, horizon) for horizon in given.horizons}
    print(json.dumps({"horizons": found, **asdict(scale), "trajectories": scale.trajectories, "quick": given.quick}))


if __name__ == "__main__":
    main()
