"""Base, evolution strategies, policy gradients and AMC on the same Sudoku puzzles, at equal numbers of trajectories.

    python benchmarks/sudoku_study.py --out study [--horizons 5 10 15] [--seeds 3] [--arms ours GRPO ...]
        [--policy FOLDER] [--scope vectors] [--ratio 1] [--quick]

Every trained arm spends generations * population * tasks trajectories per run. Its sigma, or its learning rate, is
swept with the first seed and chosen on validation puzzles; the other seeds train with what was chosen. Then all arms
are measured on the same held-out puzzles with the same random numbers. "Best tuned" is the trained arm that solves most
validation puzzles under the same seed; greedy, it is compared with the greedy base: what is better there is no
sharpening. AMC has 8 particles and the same V as best of 8, which are independent runs.

All arms begin with the shipped policy, or with that of --policy, e.g. one that was trained less. Evolution perturbs all
of it, or --scope; under "vectors" that is the norm gains alone in every arm, and "ours, norms only" is "ours".

Everything is kept in --out: one JSON file per training run in trials/ and per (arm, horizon, seed) in cells/. It can
be stopped and called again, and the table is of what is there. *solved*: mean with its 95 % interval over puzzles and
runs within them, as `amc evolve` has it. *minus base*: the paired difference to the base at temperature 1, whose
interval is over puzzles and over training runs, both drawn anew (the pigeonhole bootstrap of Owen 2007; rough with
three seeds); then the difference of each seed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from kept import read, same, write
from rich.console import Console
from sudoku_arms import (
    AMC_BASE,
    AMC_TUNED,
    BASES,
    BEST_OF,
    EVOLVED,
    GRADIENTS,
    GREEDY,
    GREEDY_TUNED,
    NORMS,
    OURS,
    POLICY,
    Scale,
    Start,
    Trial,
    World,
    agreement,
    gradients_agreement,
    installed,
    measure,
    measure_app,
    rules,
    solved_share,
    train,
)
from sudoku_table import Row, differences, show

from langgraph_amc.evolution.layout import Scope
from langgraph_amc.policy.litellm_setup import load_litellm

TRAINED = (*EVOLVED, *GRADIENTS)
ARMS = (*BASES, *TRAINED, GREEDY_TUNED, BEST_OF, AMC_BASE, AMC_TUNED)
SIGMAS, NORM_SIGMAS, RATES = (2.5e-3, 5e-3, 1e-2), (0.03, 0.1, 0.3), (1e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Study:
    """What is run, and where it is kept."""

    out: Path
    start: Start
    scale: Scale
    arms: Sequence[str]
    horizons: Sequence[int]
    seeds: int
    swept: dict[str, Sequence[float]]
    sweep_on: Sequence[int]
    puzzles: int
    validation: int
    concurrency: int
    value: str | None
    console: Console

    def run(self) -> None:
        """Whatever is not there yet."""
        for horizon in self.horizons:
            world = self._world(horizon)
            self._check(world)
            if installed() and any(arm in GRADIENTS for arm in self.arms):
                self._check_gradients(world)
            for arm, seed in product(self.arms, range(self.seeds)):
                if arm in BASES:
                    self._cell(arm, world, seed, lambda: self.start.policy, temperature=BASES[arm])
            for arm in self.arms:
                if arm in EVOLVED or (arm in GRADIENTS and installed()):
                    self._trained(arm, world)
            for seed, arm in product(range(self.seeds), self.arms):
                if arm in (BEST_OF, AMC_BASE):
                    self._cell(arm, world, seed, lambda: self.start.policy, amc=True, resample=arm != BEST_OF)
                elif arm in (GREEDY_TUNED, AMC_TUNED):
                    self._on_best(arm, world, seed)

    def _world(self, horizon: int) -> World:
        return World.of(horizon, self.validation, self.puzzles, self.concurrency)

    def _check(self, world: World) -> None:
        """Stop where the rollouts without the app are not those of the app."""
        path = self.out / f"agreement-{world.horizon}.json"
        if read(path) is not None:
            return
        share = agreement(world, self.start.policy)
        if share < 0.9:
            raise SystemExit(f"the app and its loop without LangGraph agree on {share:.0%} of puzzles only")
        write(path, {"share": share})

    def _check_gradients(self, world: World) -> None:
        """Stop where training without the app is not what it is on the app."""
        path = self.out / "agreement-gradients.json"
        if read(path) is not None:
            return
        found = {arm: gradients_agreement(arm, world, self.start.policy) for arm in GRADIENTS}
        if any(differ["weights"] > 0.1 for differ in found.values()):
            raise SystemExit(f"policy gradients on the app and without it come to different weights: {found}")
        write(path, found)

    def _trained(self, arm: str, world: World) -> None:
        """Sweep with the first seed, train the others with what was best on validation puzzles, measure all."""
        trials = [Trial(arm, setting, 0, self.scale, self.start) for setting in self.swept[arm]]
        there = self._world(swept_on(self.sweep_on, world.horizon))
        best = max(trials, key=lambda trial: self._trial(trial, there)["validation"])
        for seed in range(self.seeds):
            trial = Trial(arm, best.setting, seed, self.scale, self.start)
            about: dict[str, Any] = {"trained": self._trial(trial, world)}
            swept_here = there.horizon == world.horizon
            about |= {"sweep_trajectories": self.scale.trajectories * (len(trials) - 1) * swept_here}
            self._cell(arm, world, seed, partial(self._model, trial, world), about)

    def _on_best(self, arm: str, world: World, seed: int) -> None:
        """On the policy that did best on validation puzzles."""
        cells = {name: read(self.cell(name, world.horizon, seed)) for name in TRAINED}
        known = {name: cell["trained"] for name, cell in cells.items() if cell is not None}
        if not known:
            return
        best = max(known, key=lambda name: known[name]["validation"])
        setting = known[best]["setting"]
        how: dict[str, Any] = {"amc": True} if arm == AMC_TUNED else {"temperature": 0.0}
        model = partial(self._model, Trial(best, setting, seed, self.scale, self.start), world)
        self._cell(arm, world, seed, model, {"on": f"{best} {setting:g}"}, **how)

    def _trial(self, trial: Trial, world: World) -> dict[str, Any]:
        folder = self._folder(trial, world)
        path = folder / "trial.json"
        if (done := read(path)) is not None:
            return done
        began = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        found = train(trial, world, folder / "run")
        seconds = time.perf_counter() - began
        measured = measure(found.pop("model"), world.tasks.split("validation"), trial.seed)
        done = {"setting": trial.setting, **found, "seconds": seconds, "validation": solved_share(measured)}
        write(path, done)
        self.console.print(f"{folder.name}: validation {done['validation']:.3f}, {seconds:.0f} s", style="dim")
        return done

    def _cell(
        self,
        arm: str,
        world: World,
        seed: int,
        model: Callable[[], Path],
        about: dict[str, Any] | None = None,
        *,
        amc: bool = False,
        **how: Any,
    ) -> None:
        """Measure, unless that was done for the very policy that ``about`` tells of."""
        path = self.cell(arm, world.horizon, seed)
        known = read(path)
        if known is not None and all(known.get(name) == said for name, said in (about or {}).items()):
            return
        began, tasks = time.perf_counter(), world.tasks.split("test")
        if amc:
            found = measure_app(model(), tasks, seed, self.concurrency, self.value or rules, **how)
        else:
            found = measure(model(), tasks, seed, **how)
        write(path, {"arm": arm, "horizon": world.horizon, "seed": seed, **(about or {}), **found})
        seconds = time.perf_counter() - began
        self.console.print(f"{path.stem}: {solved_share(found):.3f}, {seconds:.0f} s", style="dim")

    def cell(self, arm: str, horizon: int, seed: int) -> Path:
        """File of one measurement."""
        return self.out / "cells" / f"{slug(arm)}-{horizon}-{seed}.json"

    def _model(self, trial: Trial, world: World) -> Path:
        """The tuned model, trained again where only what it scored was kept."""
        folder = self._folder(trial, world) / "run"
        if not (folder / "model").exists():
            train(trial, world, folder)
        return folder / "model"

    def _folder(self, trial: Trial, world: World) -> Path:
        return self.out / "trials" / f"{slug(trial.arm)}-{world.horizon}-{trial.setting:g}-{trial.seed}"


def swept_on(horizons: Sequence[int], horizon: int) -> int:
    """Whose sweep a horizon takes: its own, the next longer one's, or the longest's."""
    return min((h for h in horizons if h >= horizon), default=max(horizons))


def slug(arm: str) -> str:
    """The arm as a part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", arm.lower())


def table(study: Study, horizon: int) -> dict[str, Any]:
    """Print what is there of a horizon; the same as plain data."""
    found = {arm: {s: read(study.cell(arm, horizon, s)) for s in range(study.seeds)} for arm in ARMS}
    rows = {arm: Row(arm, {s: c for s, c in cells.items() if c is not None}) for arm, cells in found.items()}
    absent = {} if installed() else dict.fromkeys(GRADIENTS, "not run: pip install -e integrations/trl")
    if study.start.scope == "vectors":
        absent[NORMS] = f"the same as {OURS}"
    title = f"{horizon} empty cells, {study.puzzles} held-out puzzles, {study.seeds} seed(s)"
    title += f"; policy {study.start.policy.name}, evolution of {study.start.scope}"
    arms = show(title, list(rows.values()), absent, study.console)
    against: dict[str, Sequence[str]] = {ours: [arm for arm in TRAINED if arm != ours] for ours in (OURS, NORMS)}
    against |= {GREEDY_TUNED: [GREEDY], AMC_BASE: [BEST_OF], AMC_TUNED: [AMC_BASE]}
    return {"arms": arms} | {
        f"{arm} minus": differences(rows[arm], [rows[o] for o in others], f"{horizon} empty cells", study.console)
        for arm, others in against.items()
    }


def digest(folder: Path) -> str:
    """Which weights a folder holds: a short hash of its files of weights."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--horizons", type=int, nargs="+", default=[5, 10, 15], choices=[5, 10, 15])
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="all by default")
    parser.add_argument("--policy", type=Path, default=POLICY, help="folder of the model that all arms begin with")
    parser.add_argument("--scope", choices=("all", "linear", "vectors"), default="all", help="what evolution perturbs")
    parser.add_argument("--ratio", type=float, help="alpha by sigma's first value; the paper's by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--population", type=int, default=32)
    parser.add_argument("--tasks-per-generation", type=int, default=8)
    parser.add_argument("--sigmas", type=float, nargs="+", help="swept by the arms of evolution")
    parser.add_argument("--norm-sigmas", type=float, nargs="+", default=NORM_SIGMAS, help="of norm gains only")
    parser.add_argument("--sweep-on", type=int, nargs="+", choices=[5, 10, 15], help="horizons to sweep on, else all")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="swept by the policy gradients")
    parser.add_argument("--puzzles", type=int, default=200, help="held-out ones")
    parser.add_argument("--validation", type=int, default=100, help="puzzles that settings are chosen on")
    parser.add_argument("--value", help="folder of a trained V for AMC; by default a function that knows the rules")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--show", action="store_true", help="print the table of what is in --out, and run nothing")
    parser.add_argument("--quick", action="store_true", help="whether every arm runs: a size that shows nothing else")
    given = parser.parse_args()
    if not given.show and not (given.policy / "config.json").is_file():
        parser.error(f"{given.policy} is no model's folder: examples/sudoku/train_policy.py makes one")
    if given.scope == "vectors" and NORMS in (given.arms or ()):
        parser.error(f"--scope vectors makes {OURS!r} what {NORMS!r} is: leave that out of --arms")
    given.sweep_on = given.sweep_on or given.horizons
    given.arms = given.arms or [arm for arm in ARMS if given.scope != "vectors" or arm != NORMS]
    given.sigmas = given.sigmas or (given.norm_sigmas if given.scope == "vectors" else SIGMAS)
    if given.quick:
        given.generations, given.population, given.tasks_per_generation = 2, 4, 2
        given.puzzles, given.validation, given.seeds = 6, 4, min(given.seeds, 2)
        given.sigmas, given.norm_sigmas, given.rates = given.sigmas[:1], given.norm_sigmas[:1], given.rates[:1]
    return given


def shown(given: argparse.Namespace) -> None:
    """Take from the study that is there what its table says of it."""
    if (known := read(given.out / "study.json")) is None:
        raise SystemExit(f"{given.out} holds no study")
    given.policy, given.scope, given.ratio = Path(known["policy"]), known["scope"], known["ratio"]
    given.generations, given.population, given.tasks_per_generation = (
        known[name] for name in ("generations", "population", "tasks")
    )
    given.puzzles, given.validation, given.value = known["puzzles"], known["validation"], known["value"]


def main() -> None:
    given = options()
    if given.show:
        shown(given)
    load_litellm()
    scale = Scale(given.generations, given.population, given.tasks_per_generation)
    swept = dict.fromkeys(EVOLVED, given.sigmas) | {NORMS: given.norm_sigmas}
    swept |= dict.fromkeys(GRADIENTS, given.rates)
    scope: Scope = given.scope
    start = Start(given.policy, scope, given.ratio)
    study = Study(
        given.out,
        start,
        scale,
        given.arms,
        given.horizons,
        given.seeds,
        swept,
        given.sweep_on,
        given.puzzles,
        given.validation,
        given.concurrency,
        given.value,
        Console(width=None if os.isatty(1) else 160),
    )
    policy = given.policy.name if given.show else digest(given.policy)
    about = {"policy": policy, "scope": start.scope, "ratio": start.ratio}
    if not given.show:
        sizes = {**asdict(scale), "puzzles": given.puzzles, "validation": given.validation, "value": given.value}
        same(given.out, about | sizes)
        study.run()
    found = {str(horizon): table(study, horizon) for horizon in given.horizons}
    said = {**asdict(scale), **about, "trajectories": scale.trajectories, "quick": given.quick}
    print(json.dumps({"horizons": found, **said}))


if __name__ == "__main__":
    main()
