"""A run with rewards that are a pure function of the generation, so that interrupted runs can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from langgraph_amc.evolution.asktell import ask, tell
from langgraph_amc.evolution.history import Header, History
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.replay import load, resume, take
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.weights import Weights


def rewards_of(strategy: Strategy, number: int) -> np.ndarray:
    rng = np.random.default_rng([strategy.seed, number])
    rewards = rng.normal(size=(strategy.population, 3)).round(3)
    rewards[rng.random(rewards.shape) < 0.1] = np.nan
    return rewards


def run(
    model: Path | Any, file: Path, strategy: Strategy, generations: int, *, scope: Any = "all", anchor: Any = None
) -> Weights:
    """Start, or go on with, a run of so many generations in all."""
    loaded = load(model) if isinstance(model, Path) else model
    weights = Weights(loaded, layout(loaded, scope), anchor=anchor)
    header = Header(strategy, scope, weights.layout.fingerprint(), weights.hash(), {"model": "a test"})
    with History(file, header) as history:
        state = resume(history.log, weights)
        while state.number < generations:
            generation = ask(strategy, state)
            rewards = rewards_of(strategy, state.number)
            update, state = tell(strategy, state, generation, rewards)
            take(history, weights, update, state, rewards)
    return weights
