"""How noisy each form of the evolution-strategies estimator is, at equal numbers of rollouts.

    python benchmarks/es_estimator.py [--worlds 8] [--generations 150] [--quick]

A small network takes a few sampled decisions per task; the reward is 1 if all are right and 0 otherwise. Every arm
spends the same rollouts (members x tasks) per generation and estimates the same gradient, that of the smoothed success
rate, which is known here by back-propagation. Printed: the total variance of the estimate relative to the plain one
(independent members, no baseline, own luck for each member), its bias in units of its own Monte Carlo error (1 is
unbiased), and the cosine of one generation's estimate with the truth. Intervals are 95 %, over worlds. The last line is
JSON: ``relative_variance`` by case and arm, with ``low`` and ``high``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from langgraph_amc.evolution.estimator import Baseline, estimate
from langgraph_amc.evolution.noise import UNIT, integers_numpy, noise_key

Floats = NDArray[np.float64]

MEMBERS, TASKS, TURNS, CHOICES, INPUTS, HIDDEN = 32, 8, 4, 4, 12, 10
SIZE = INPUTS * HIDDEN + HIDDEN + HIDDEN * CHOICES + CHOICES


@dataclass(frozen=True)
class Arm:
    name: str
    antithetic: bool
    common: bool
    baseline: Baseline


ARMS = (
    Arm("plain", False, False, "none"),
    Arm("+ baselines", False, False, "task"),
    Arm("+ common random numbers", False, True, "none"),
    Arm("+ baselines + common", False, True, "task"),
    Arm("pairs", True, False, "task"),
    Arm("pairs + common", True, True, "task"),
)


@dataclass(frozen=True)
class Case:
    """``missing`` is the share of rollouts that fail; ``easy`` how likely one decision is right at the start."""

    name: str
    sigma: float
    missing: float
    easy: float


CASES = (
    Case("small sigma", 0.05, 0.0, 0.7),
    Case("large sigma", 0.4, 0.0, 0.7),
    Case("rare success", 0.2, 0.0, 0.45),
    Case("1 of 5 rollouts fails", 0.2, 0.2, 0.7),
)


class World:
    """Contexts, right answers, and a network that knows them a little."""

    def __init__(self, seed: int, easy: float) -> None:
        rng = np.random.default_rng([7, seed])
        self.inputs = rng.normal(size=(TASKS, TURNS, INPUTS)) / INPUTS**0.5
        self.right = rng.integers(CHOICES, size=(TASKS, TURNS))
        self.at = rng.normal(size=SIZE)
        self.reach = np.log(easy / (1 - easy) * (CHOICES - 1))  # a bonus for the right choice makes it this easy

    def odds(self, x: torch.Tensor) -> torch.Tensor:
        """Probability of each choice: [n, tasks, turns, choices] for parameters [n, SIZE]."""
        cuts = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CHOICES]).tolist()
        first, shift, second, last = torch.tensor_split(x, cuts, dim=1)
        hidden = torch.einsum("tsi,nih->ntsh", torch.from_numpy(self.inputs), first.view(-1, INPUTS, HIDDEN))
        hidden = torch.tanh(hidden + shift[:, None, None])
        logits = torch.einsum("ntsh,nhc->ntsc", hidden, second.view(-1, HIDDEN, CHOICES)) / HIDDEN**0.5
        bonus = self.reach * torch.nn.functional.one_hot(torch.from_numpy(self.right), CHOICES)
        return torch.softmax(logits + last[:, None, None] + bonus, dim=-1)

    def rollouts(self, members: Floats, luck: Floats) -> Floats:
        """Rewards [members, tasks]; ``luck`` [members or 1, tasks, turns] are uniforms that choices are drawn by."""
        below = self.odds(torch.from_numpy(members)).cumsum(-1).numpy()
        chosen = (luck[..., None] > below[..., :-1]).sum(axis=-1)
        return (chosen == self.right).all(axis=-1).astype(np.float64)

    def gradient(self, sigma: float, draws: int) -> Floats:
        """Gradient of the smoothed success rate: the mean of the network's own gradients over Gaussian noise."""
        rng = torch.Generator().manual_seed(1)
        noise = torch.randn(draws // 2, SIZE, generator=rng, dtype=torch.float64)
        x = torch.from_numpy(self.at) + sigma * torch.cat([noise, -noise])
        x.requires_grad_(True)
        chosen = self.odds(x).gather(-1, torch.from_numpy(self.right)[None, ..., None].expand(draws, -1, -1, 1))
        chosen.squeeze(-1).prod(dim=-1).mean(dim=1).sum().backward()
        assert x.grad is not None
        return x.grad.mean(dim=0).numpy()


def generation(world: World, case: Case, arm: Arm, seed: int, number: int) -> Floats:
    """The gradient as one generation estimates it."""
    pairs = MEMBERS // 2 if arm.antithetic else MEMBERS
    key = noise_key(seed, number, 0, arm.name, "full")
    directions = (integers_numpy("gaussian", key, pairs * SIZE) * UNIT["gaussian"]).reshape(pairs, SIZE)
    signs = np.array([1.0, -1.0] if arm.antithetic else [1.0])
    members = (world.at + case.sigma * signs[:, None] * directions[:, None]).reshape(MEMBERS, SIZE)
    rng = np.random.default_rng([seed, number])
    rewards = world.rollouts(members, rng.random((1 if arm.common else MEMBERS, TASKS, TURNS)))
    rewards[rng.random(rewards.shape) < case.missing] = np.nan
    found = estimate(rewards, antithetic=arm.antithetic, shaping="none", baseline=arm.baseline)
    step: Floats = found.weights @ directions / pairs / case.sigma
    return step


def measure(world: World, case: Case, arm: Arm, seed: int, generations: int, truth: Floats) -> dict[str, float]:
    found = np.stack([generation(world, case, arm, seed, number) for number in range(generations)])
    error = found.var(axis=0, ddof=1) / generations
    cosines = found @ truth / np.linalg.norm(truth) / np.maximum(np.linalg.norm(found, axis=1), 1e-300)
    return {
        "variance": float(found.var(axis=0, ddof=1).sum()),
        "bias": float(((found.mean(axis=0) - truth) ** 2 / error).mean()),
        "cosine": float(cosines.mean()),
    }


def interval(values: Floats) -> tuple[float, float, float]:
    """Mean and 95 % interval of Student's t."""
    mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
    reach = scipy.stats.t.ppf(0.975, len(values) - 1) * error
    return float(mean), float(mean - reach), float(mean + reach)


def run_case(case: Case, worlds: int, generations: int, draws: int) -> tuple[Table, dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in ARMS}
    for seed in range(worlds):
        world = World(seed, case.easy)
        truth = world.gradient(case.sigma, draws)
        for arm in ARMS:
            found[arm.name].append(measure(world, case, arm, seed, generations, truth))
    table = Table(title=f"{case.name}: sigma {case.sigma}, {MEMBERS} members x {TASKS} tasks per generation")
    for column in ("estimator", "variance / plain", "bias² / error²", "cosine with the truth"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    kept: dict[str, Any] = {}
    plain = np.log([m["variance"] for m in found["plain"]])
    for arm in ARMS:
        variance = np.exp(interval(np.log([m["variance"] for m in found[arm.name]]) - plain))
        bias, cosine = (interval(np.array([m[key] for m in found[arm.name]])) for key in ("bias", "cosine"))
        shown = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (variance, bias, cosine)]
        table.add_row(arm.name, *shown)
        kept[arm.name] = {
            "mean": round(float(variance[0]), 4),
            "low": round(float(variance[1]), 4),
            "high": round(float(variance[2]), 4),
            "bias": round(bias[0], 3),
            "cosine": round(cosine[0], 4),
        }
    return table, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=8, help="independent repetitions (seeds)")
    parser.add_argument("--generations", type=int, default=150, help="estimates per arm and world")
    parser.add_argument("--draws", type=int, default=20_000, help="draws behind the true gradient")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    worlds, generations, draws = (3, 40, 4000) if given.quick else (given.worlds, given.generations, given.draws)
    torch.set_num_threads(1)
    result = {}
    for case in CASES:
        table, result[case.name] = run_case(case, worlds, generations, draws)
        Console(width=120).print(table)
    print(json.dumps({"relative_variance": result, "worlds": worlds, "generations": generations}))


if __name__ == "__main__":
    main()
