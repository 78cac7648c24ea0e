"""One seed and a policy that follows the particle's seed: one result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, agent, by_digits, by_hash, seeded, texts

CHOICES = [
    {"value": by_hash, "resample": amc.every(1), "tau": 0.2},
    {"value": by_hash, "resample": amc.ess_below(0.7), "resampler": "multinomial", "objective": "sample", "tau": 0.1},
    {"value": by_digits, "resample": amc.at(2), "select": "sample"},
    {"select": "sample"},
]


def fingerprint(out: Any) -> Any:
    result = out.amc
    return (
        texts(out),
        result.winner.name,
        dict(result.ancestors),
        [(c.boundary, c.particles, c.values, c.log_weights, c.ancestors) for c in result.checks],
        [(p.name, p.log_weight, p.value, p.trajectory.segments) for p in (*result.particles, *result.pruned)],
        result.seed,
    )


def run(settings: dict[str, Any], seed: int, *, use_async: bool = False) -> Any:
    app = amc.wrap(agent(seeded(), saver=InMemorySaver()), particles=5, seed=seed, **settings)
    return fingerprint(asyncio.run(app.ainvoke(ASK, THREAD)) if use_async else app.invoke(ASK, THREAD))


@pytest.mark.parametrize("settings", CHOICES)
def test_one_seed_one_result(settings: dict[str, Any]) -> None:
    first = run(settings, 1)
    assert run(settings, 1) == first
    assert run(settings, 1, use_async=True) == first
    assert run(settings, 1, use_async=True) == first
    assert run(settings, 2)[2:] != first[2:]


def test_clones_draw_on_their_own() -> None:
    out = amc.wrap(agent(seeded()), particles=5, seed=1, value=by_hash, resample=amc.at(1), tau=1e-4).invoke(ASK)
    parents = set(out.amc.ancestors.values()) - {None}
    assert len(parents) == 1, "one particle took all"
    answers = [p.output["messages"][-1].content for p in out.amc.particles]
    assert len(set(answers)) == 5
    assert len({p.trajectory.segments[:2] for p in out.amc.particles}) == 1
