"""Fleet of Agents (Klein et al. 2024) is AMC with other settings: this is the list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_amc.search.tree import check_number, check_sizes
from langgraph_amc.smc.backtracking import backtrack
from langgraph_amc.smc.resampling import multinomial
from langgraph_amc.smc.schedules import every
from langgraph_amc.smc.tempering import ess_target, tilt

LINEAR = ess_target(1e-6, tilt(0.01), max_sharpness=1.0)
"""Weighs by p itself: `tilt` tends to log p, and an ESS target that low is always met at the sharpness 1."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Arguments of `wrap` under one name."""

    name: str
    arguments: Mapping[str, Any]


def foa(particles: int = 8, every_steps: int = 3, *, discount: float = 0.9, most: int = 32) -> Preset:
    """Fleet of Agents: a fleet that is redrawn every k steps by value, from present and discounted earlier states.

    Parameters
    ----------
    particles: agents in the fleet.
    every_steps: k, agent steps between two selections.
    discount: of an earlier state's weight, for every step that it lies back; most: how many are remembered.

    The value has to lie in [0, 1] (a judge's does; calibrate a learned V), as weights are the values themselves, the
    paper's linear rule. One rule is AMC's: who has ended hands its slot to one that runs, until 2N have ended.
    """
    check_sizes("foa", particles=particles, every_steps=every_steps, most=most)
    check_number("foa(discount=…)", discount, lambda x: 0 < x < 1, "a number between 0 and 1")
    return Preset(
        "foa",
        {
            "particles": particles,
            "resample": every(every_steps),
            "resampler": multinomial,
            "tau": LINEAR,
            "backtrack": backtrack(discount, most),
        },
    )
