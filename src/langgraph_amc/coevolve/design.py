"""Who tries which skills on what: a randomised block design, and the two estimates that it keeps apart.

Each column (a task, and which time it is run) is a block; its plots are the generation's pairs, both signs of which
carry the same skills, or single members where there are no pairs. Within each block the *arms* (arm 0 is the champion's
library, the others are challengers') are spread evenly over the plots at random, anew for each block (Fisher, The
Design of Experiments, 1935, chapter 4). With the reward of member (p, s) on column t

    r = b_t + a_(arm) + s g_p + q_p + noise,      s = +1, -1

(g_p the odd, q_p the even part of what direction p does) two things follow.

*Weights.* The mean over a block's plots of one arm holds b_t + a_(arm) and no other arm's effect, so rewards less that
mean are free of both: the (column, arm) cells are columns of their own to the estimator (`by_cell`), and antithetic
differences do not even need the mean. What is estimated is the gradient of the mean reward over the arms.

*Skills.* A pair's mean over both signs holds no g_p at all, and directions are as good on average under each arm
because arms are drawn independently of them; so challenger less champion in a block has the expectation a_k - a_0
(`paired`): the effect of the skills under the population's weights. Under the hypothesis that the skills do nothing,
swapping the two arms of a block is as likely as not swapping them: the gate's sign flips are this design's own
randomisation test.

`tests/coevolve/test_design.py` checks both by simulation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError

Floats = NDArray[np.float64]
Arms = NDArray[np.int64]
"""[plots, columns], the arm of each plot on each column."""


def assign(seed: int, generation: int, plots: int, columns: int, arms: int) -> Arms:
    """The design of one generation: a function of these numbers alone, the same on every machine.

    Each column has each arm on ``plots // arms`` plots or one more. Raises ConfigurationError for fewer plots than
    arms.
    """
    if plots < arms:
        raise ConfigurationError(
            f"{arms} libraries cannot be compared on {plots} pairs of members: raise the population to {2 * arms} or "
            "more, or try fewer challengers at a time"
        )
    found = np.empty((plots, columns), np.int64)
    for column in range(columns):
        order = sorted(range(plots), key=lambda plot: _draw(seed, generation, column, plot))
        first = int.from_bytes(_draw(seed, generation, column, plots)) % arms  # where it does not divide: who gets more
        found[order, column] = (first + np.arange(plots)) % arms
    return found


def by_member(arms: Arms, antithetic: bool) -> Arms:
    """[members, columns]: both members of a pair have the arm of the pair."""
    return np.repeat(arms, 2, axis=0) if antithetic else arms


def by_cell(rewards: Floats, arms: Arms, count: int, antithetic: bool) -> Floats:
    """Rewards [members, columns * count], a column for each of (column, arm); NaN where a member had another arm."""
    carried = by_member(arms, antithetic)
    cells = np.where(carried[:, :, None] == np.arange(count), rewards[:, :, None], np.nan)
    wide: Floats = cells.reshape(len(rewards), -1)
    return wide[:, ~np.isnan(wide).all(axis=0)] if not np.isnan(wide).all() else wide[:, :1]


def paired(
    rewards: Sequence[Floats], arms: Sequence[Arms], tasks: Sequence[Sequence[str]], arm: int, antithetic: bool
) -> tuple[tuple[str, ...], Floats, Floats]:
    """Rewards of arm 0 and of another, block by block, over the generations of a trial, for `skills.gate.compare`.

    Returns the tasks and two arrays [tasks, most pairs of any]: of each block the k-th plot of one arm beside the k-th
    of the other, which is arbitrary and does not move the mean of their differences. A plot is the mean over both signs
    of its pair, missing where one of them is: what the direction does would not cancel.
    """
    champion: dict[str, list[float]] = {}
    challenger: dict[str, list[float]] = {}
    for found, carried, names in zip(rewards, arms, tasks, strict=True):
        plots = (found[0::2] + found[1::2]) / 2 if antithetic else found
        for column, task in enumerate(names):
            one, other = (plots[carried[:, column] == a, column] for a in (0, arm))
            pairs = min(len(one), len(other))
            champion.setdefault(task, []).extend(one[:pairs])
            challenger.setdefault(task, []).extend(other[:pairs])
    return tuple(champion), _filled(champion), _filled(challenger)


def _filled(rows: dict[str, list[float]]) -> Floats:
    width = max(map(len, rows.values()), default=0)
    return np.array([row + [np.nan] * (width - len(row)) for row in rows.values()], np.float64).reshape(-1, width)


def _draw(seed: int, generation: int, column: int, plot: int) -> bytes:
    return hashlib.blake2b(f"arms\x1f{seed}\x1f{generation}\x1f{column}\x1f{plot}".encode(), digest_size=16).digest()
