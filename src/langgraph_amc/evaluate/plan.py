"""What running an app as particles will take, estimated before anything is spent.

From past runs where there are any: quantiles of what one run took, times N runs (none ends early) to 2N (the bound
on how many take part, see `smc.filter`). Else from stated assumptions about a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.budget import Price, UnknownPriceError
from langgraph_amc.policy.usage import price
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Usage

LOW, HIGH = 0.1, 0.9
"""Quantiles of what past runs took."""
FEWEST = 5
"""Past runs from which quantiles mean something."""
PROMPT_TOKENS = 1000
"""Assumed: instructions and tool schemas in each call."""
STEP_TOKENS = 200
"""Assumed: what tools add to the conversation between two calls."""
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Low and high usage of a number of runs."""

    runs: tuple[int, int]
    calls: tuple[int, int]
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    usd: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimate for N particles.

    Attributes
    ----------
    source: what it rests on.
    per_task, total: of one task and of all.
    fits: the largest number of particles, up to N, whose high total stays within the cap; 0 if none does, ``None``
        without a cap.
    """

    particles: int
    tasks: int
    source: str
    per_task: Estimate
    total: Estimate
    cap: float | None = None
    fits: int | None = None


def plan(
    particles: int,
    runs: tuple[Usage, Usage],
    source: str,
    *,
    tasks: int = 1,
    cap: float | None = None,
    model: str = "this model",
) -> Plan:
    """Estimate from what one run takes, low and high.

    Raises UnknownPriceError where dollars are capped and the runs have no known cost.
    """
    low, high = runs
    if cap is not None and (low.cost is None or high.cost is None):
        raise UnknownPriceError(model)
    total = _estimate(particles, tasks, low, high)
    fits = None
    if cap is not None:
        tried = (n for n in range(particles, 0, -1) if (_estimate(n, tasks, low, high).usd or (0.0, 0.0))[1] <= cap)
        fits = next(tried, 0)
    return Plan(particles, tasks, source, _estimate(particles, 1, low, high), total, cap, fits)


def from_store(
    store: TrajectoryStore, model: str | None = None, own: Price | None = None
) -> tuple[Usage, Usage] | None:
    """Low and high usage of one run among those stored; ``None`` where too few say what they took.

    Their cost is that of ``model``, if given, else what was stored with them.
    """
    ended = [t.usage for t in store.trajectories(status=["finished", "failed"]) if t.parent is None and t.usage.calls]
    if len(ended) < FEWEST:
        return None
    usages = [_priced(u, model, own) for u in ended] if model is not None else ended
    return _quantile(usages, LOW), _quantile(usages, HIGH)


def assumed(
    calls: tuple[int, int],
    output_tokens: int,
    tasks: TaskSet | None = None,
    model: str | None = None,
    own: Price | None = None,
) -> tuple[Usage, Usage]:
    """Low and high usage of one run that makes so many calls, each reading the whole conversation so far."""
    if not 1 <= calls[0] <= calls[1]:
        raise ConfigurationError(f"calls is a range such as 3-12, got {calls[0]}-{calls[1]}")
    sizes = [len(json.dumps(t.input, default=str)) / BYTES_PER_TOKEN for t in tasks or ()]
    first = PROMPT_TOKENS + round(float(np.mean(sizes)) if sizes else 0.0)
    grown = output_tokens + STEP_TOKENS
    found = [Usage(n, n * first + grown * n * (n - 1) // 2, n * output_tokens, None) for n in calls]
    if model is not None:
        found = [_priced(u, model, own) for u in found]
    return found[0], found[1]


def _estimate(particles: int, tasks: int, low: Usage, high: Usage) -> Estimate:
    # a single particle is a plain run
    fewest, most = particles * tasks, (2 * particles if particles > 1 else 1) * tasks
    usd = None if low.cost is None or high.cost is None else (low.cost * fewest, high.cost * most)
    return Estimate(
        (fewest, most),
        (low.calls * fewest, high.calls * most),
        (low.input_tokens * fewest, high.input_tokens * most),
        (low.output_tokens * fewest, high.output_tokens * most),
        usd,
    )


def _priced(usage: Usage, model: str, own: Price | None) -> Usage:
    cost = price(model, usage.input_tokens, usage.output_tokens)
    if own is not None:
        cost = own.of(usage.input_tokens, usage.output_tokens)
    return Usage(usage.calls, usage.input_tokens, usage.output_tokens, cost)


def _quantile(usages: Sequence[Usage], q: float) -> Usage:
    costs = [u.cost for u in usages if u.cost is not None]
    columns = [[u.calls for u in usages], [u.input_tokens for u in usages], [u.output_tokens for u in usages]]
    calls, inputs, outputs = (round(float(np.quantile(column, q))) for column in columns)
    cost = float(np.quantile(costs, q)) if len(costs) == len(usages) else None
    return Usage(calls, inputs, outputs, cost)
