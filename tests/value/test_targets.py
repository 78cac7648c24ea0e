"""Targets from resampled populations: unbiased for V of the policy, where plain averages are not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    Arrival,
    Finished,
    Resampled,
    Weighted,
    drive,
    ess_below,
    ess_target,
    every,
    fixed,
    multinomial,
    particle_filter,
    systematic,
)
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.targets import RESAMPLED, importance, known_from, lambda_returns, with_resamplings

NEXT = {"": "aab", "a": "aabbc", "b": "abbee"}
"""A Markov chain: the letters that may follow the last one, equally likely; c and e end a run, so does its length."""
REWARD = {"a": 0.1, "b": -0.3, "c": 0.2, "e": 1.0}
LENGTH = 5


def ended(state: str) -> bool:
    return len(state) == LENGTH or state[-1:] in ("c", "e")


@cache
def exact(step: int, last: str) -> float:
    """V of the chain by dynamic programming: the reward still to come."""
    if step == LENGTH or last in ("c", "e"):
        return 0.0
    return sum(REWARD[x] + exact(step + 1, x) for x in NEXT[last]) / len(NEXT[last])


def misleading(state: str) -> float:
    """What steers the population: partly the truth, partly nonsense that depends on the whole history."""
    return exact(len(state), state[-1:]) + 0.5 * math.sin(5.0 * sum(map(ord, state)) + len(state))


@dataclass(eq=False)
class Walker:
    name: str
    state: str = ""
    parent: Walker | None = None
    forked_at: int | None = None
    status: str = "pruned"


def pick(letters: str, rng: np.random.Generator) -> str:
    return letters[int(rng.random() * len(letters))]


@dataclass
class Chain:
    rng: np.random.Generator
    born: list[Walker] = field(default_factory=list)

    def add(self, **fields: Any) -> Walker:
        self.born.append(Walker(f"p{len(self.born)}", **fields))
        return self.born[-1]

    async def start(self, n: int) -> list[Walker]:
        return [self.add() for _ in range(n)]

    async def advance(self, particles: Sequence[Walker], until: int | None) -> list[Arrival]:
        for walker in particles:
            while not ended(walker.state) and (until is None or len(walker.state) < until):
                walker.state += pick(NEXT[walker.state[-1:]], self.rng)
            walker.status = "finished" if ended(walker.state) else "pruned"
        return [Arrival(sum(REWARD[x] for x in w.state), ended(w.state)) for w in particles]

    async def score(self, particles: Sequence[Walker]) -> list[float]:
        return [misleading(w.state) for w in particles]

    async def fork(self, particle: Walker) -> Walker:
        return self.add(state=particle.state, parent=particle, forked_at=len(particle.state))

    async def prune(self, particle: Walker) -> None:
        pass


def population(seed: int, n: int = 4, **how: Any) -> tuple[list[Trajectory], list[Any]]:
    """One run of the filter as trajectories, without what `with_resamplings` adds, and its checks."""
    rng = np.random.default_rng(seed)
    chain, checks = Chain(rng), []
    settings = {"schedule": every(1), "tempering": ess_target(0.5, max_sharpness=2.0), "objective": "optimise", **how}
    finals = {}
    for event in drive(particle_filter(chain, particles=n, rng=rng, **settings)):
        if isinstance(event, Weighted):
            live = [i for i, w in enumerate(event.particles) if not ended(w.state)]
            names = [event.particles[i].name for i in live]
            checks.append(SimpleNamespace(boundary=event.boundary, particles=names, ancestors=(), past=()))
            checks[-1].log_weights = [event.log_weights[i] for i in live]
        elif isinstance(event, Resampled):
            checks[-1].ancestors = event.ancestors
        elif isinstance(event, Finished):
            finals = {final.particle.name: final.log_weight for final in event.result.finals}
    runs = [
        Trajectory(
            run_id=f"run-{seed}",
            particle=w.name,
            segments=("", *w.state),
            rewards=tuple(REWARD[x] for x in w.state),
            outcome=0.0 if w.status == "finished" else None,
            status=w.status,
            parent=None if w.parent is None else w.parent.name,
            forked_at=w.forked_at,
            log_weight=finals.get(w.name),
            values=tuple(misleading(w.state[:t]) for t in range(len(w.state) + 1)),
        )
        for w in chain.born
    ]
    return runs, checks


def residuals(runs: list[Trajectory], counted: Any) -> dict[tuple[int, str], float]:
    """Σ weight·(return − V(s)) by state: an estimating equation, whose mean is 0 where V solves it."""
    found: dict[tuple[int, str], float] = defaultdict(float)
    for run in runs:
        if run.outcome is None:
            continue
        weights = counted(run)
        for t, value in enumerate(run.returns() or ()):
            last = run.segments[t]
            found[t, last] += weights[t] * (value - exact(t, last))
    return found


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"schedule": ess_below(0.6) | every(3), "resampler": multinomial},
        {"tempering": fixed(0.4), "objective": "sample", "resampler": systematic},
    ],
    ids=["optimise, solved sharpness", "multinomial, ESS trigger", "sample, given temperature"],
)
def test_weighted_returns_are_those_of_the_policy_and_plain_averages_are_not(how: dict[str, Any]) -> None:
    weighted: dict[Any, list[float]] = defaultdict(list)
    plain: dict[Any, list[float]] = defaultdict(list)
    seeds = range(2000, 2800)
    for seed in seeds:
        runs, checks = population(seed, **how)
        runs = with_resamplings(runs, checks)
        known = known_from(runs)
        assert not known  # every fork is on record
        for kept, weigh in ((weighted, importance), (plain, lambda run: np.ones(len(run.segments)))):
            for state, total in residuals(runs, weigh).items():
                kept[state].append(total)

    def z(sums: dict[Any, list[float]]) -> dict[Any, float]:
        """Mean over seeds in standard errors; a seed that never met the state adds 0."""
        found = {}
        for state, met in sums.items():
            x = np.concatenate([met, np.zeros(len(seeds) - len(met))])
            if len(met) > 50 and x.std() > 0:
                found[state] = x.mean() / (x.std() / math.sqrt(len(x)))
        return found

    unbiased, naive = z(weighted), z(plain)
    assert len(unbiased) >= 8
    assert abs(unbiased[0, ""]) < 1.96, unbiased
    assert np.mean([abs(score) < 1.96 for score in unbiased.values()]) > 0.8, unbiased
    assert max(map(abs, unbiased.values())) < 3.3, unbiased
    assert max(map(abs, naive.values())) > 3.9, naive


def test_weights_of_a_states_descendants_sum_to_one_on_average() -> None:
    totals = []
    for seed in range(300):
        runs = with_resamplings(*population(seed))
        totals.append(sum(importance(run)[0] for run in runs if run.status == "finished") / 4)
    error = np.std(totals) / math.sqrt(len(totals))
    assert abs(np.mean(totals) - 1) < 1.96 * error
    assert error < 0.06


def test_at_a_given_temperature_the_weight_is_the_final_weight_without_its_tilt() -> None:
    beta, n = 0.4, 5
    for seed in range(20):
        runs, checks = population(seed, n, tempering=fixed(beta), objective="sample")
        for run in with_resamplings(runs, checks):
            if run.status == "finished":
                closed = n * math.exp(run.log_weight - run.total / beta)
                assert importance(run)[0] == pytest.approx(closed, rel=1e-9)


def test_states_after_the_last_resampling_count_fully_and_clones_share_the_past() -> None:
    runs = with_resamplings(*population(3))
    clones = [run for run in runs if run.parent is not None and run.status == "finished"]
    assert clones
    for run in clones:
        weights = importance(run)
        last = max(boundary for boundary, _ in run.metadata[RESAMPLED])
        assert (weights[last:] == 1).all()
        assert last >= run.forked_at


def test_without_a_record_only_what_came_after_the_last_fork_is_used() -> None:
    runs, _ = population(3)
    known = known_from(runs)[runs[0].run_id]
    assert known == max(
        [r.forked_at for r in runs if r.forked_at] + [len(r.segments) - 1 for r in runs if r.outcome != 0]
    )
    for run in runs:
        assert (
            importance(run, known) == [0.0] * min(known, len(run.segments)) + [1.0] * max(0, len(run.segments) - known)
        ).all()
    assert known_from([r for r in runs if r.parent is None and r.status == "finished"]) == {}


def test_states_before_a_check_that_went_back_cannot_be_weighed() -> None:
    runs, checks = population(3)
    second = next(check for check in checks if check.boundary == 2)
    assert second.ancestors
    second.past = ("p0@1",)
    runs = with_resamplings(runs, checks)
    assert known_from(runs) == {runs[0].run_id: 2}
    assert all((importance(run, 2)[:2] == 0).all() and np.isfinite(importance(run, 2)).all() for run in runs)


def test_a_population_that_was_not_resampled_is_left_alone() -> None:
    runs, checks = population(0, schedule=ess_below(1e-9))
    assert with_resamplings(runs, checks) == runs
    assert all((importance(run) == 1).all() for run in runs)


RUN = Trajectory("r", "p", ("", "a", "b", "c"), rewards=(1.0, 0.0, 2.0), outcome=0.5, values=(None, 4.0, None, 8.0))


def test_lambda_returns_lean_on_the_values_that_are_there() -> None:
    assert lambda_returns(RUN, 1.0) == RUN.returns()
    # from the end: 0.5; 2 + (8 + 0.5)/2; no value there, so it is passed on; 1 + (4 + 6.25)/2
    assert lambda_returns(RUN, 0.5) == (6.125, 6.25, 6.25, 0.5)
    assert lambda_returns(RUN, 0.0) == (5.0, 10.0, 10.0, 0.5)
    assert lambda_returns(RUN.with_outcome(None), 0.5) is None


def test_lambda_returns_of_the_true_value_keep_the_mean_and_lose_noise() -> None:
    walks = [run for seed in range(150) for run in population(seed, 4, schedule=ess_below(1e-9))[0]]
    noise = {}
    for lam in (0.0, 0.5, 1.0):
        found = []
        for run in walks:
            true = tuple(exact(t, s) for t, s in enumerate(run.segments))
            found.append(lambda_returns(Trajectory("r", "p", run.segments, run.rewards, 0.0, values=true), lam)[0])
        assert abs(np.mean(found) - exact(0, "")) < 1.96 * np.std(found) / math.sqrt(len(found)) + 1e-12
        noise[lam] = np.std(found)
    assert noise[0.0] < noise[0.5] < noise[1.0]


@pytest.mark.parametrize("lam", [-0.1, 1.1, math.nan])
def test_lambda_lies_between_0_and_1(lam: float) -> None:
    with pytest.raises(ConfigurationError, match="td_lambda"):
        lambda_returns(RUN, lam)
