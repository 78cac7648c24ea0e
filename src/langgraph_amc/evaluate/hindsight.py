"""What a logged state was worth in truth, told with hindsight: the hidden half of a simulation of AMC.

Independent runs show one future for each state, so nobody can read off them how alike the futures of two clones
would be. If a clone simply went on as any run with a like V, the clones of one doomed state would fail
independently of each other, and the sharper the resampling, the better it would look. So each run gets a hidden
state at each step, *on course* or *off course*, whose posterior is drawn given everything that is known of the run:
V at all steps and how it ended. Clones share the state they were cloned in.

A hidden Markov model (Rabiner 1989) of two states: a run begins on course, changes with chances that depend on the
phase of the run, shows V (as a quantile of all runs at its step) and ends well with chance 1 if on course, 0 if
off; a graded return, scaled to [0, 1], is that chance. Fitted by expectation-maximisation, drawn by forward
filtering, backward sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.logged import Floats, LoggedRun

PHASES, LEVELS, ROUNDS = 4, 6, 30
_STAY = np.array([[8.0, 0.5], [1.0, 8.0]])
"""Prior counts of [from, to], state 0 off course and 1 on course: both last, and few come back."""


@dataclass(frozen=True, slots=True, eq=False)
class Hindsight:
    """The fitted model; ``draw`` gives one hidden history per run.

    Attributes
    ----------
    likelihood: of what each run shows in each state, [runs, states of the longest + 1, 2]; 1 after its end.
    change: chance [phases, from, to].
    phase: of the step into each state, [longest + 1].
    """

    likelihood: Floats
    change: Floats
    phase: NDArray[np.int64]

    def draw(self, rng: np.random.Generator) -> NDArray[np.int8]:
        """Hidden states [runs, longest + 1], 1 on course, drawn from their posterior; past the end without sense."""
        forward = _forward(self.likelihood, self.change, self.phase)
        runs, steps, _ = forward.shape
        hidden = np.empty((runs, steps), dtype=np.int8)
        uniform = rng.random((runs, steps))
        hidden[:, -1] = uniform[:, -1] < forward[:, -1, 1]
        for t in range(steps - 2, -1, -1):
            on = forward[:, t, 1] * self.change[self.phase[t + 1], 1, hidden[:, t + 1]]
            off = forward[:, t, 0] * self.change[self.phase[t + 1], 0, hidden[:, t + 1]]
            hidden[:, t] = uniform[:, t] * (on + off) < on
        return hidden


def fit(runs: Sequence[LoggedRun]) -> Hindsight:
    """Fit the model to runs of all tasks together."""
    lengths = np.array([run.steps for run in runs])
    longest = int(lengths.max())
    phase = np.minimum(np.arange(longest + 1) * PHASES // (longest + 1), PHASES - 1)
    level = _levels(runs, longest)
    well = scaled_returns(runs)
    change = np.tile(_STAY / _STAY.sum(axis=1, keepdims=True), (PHASES, 1, 1))
    # at first: the higher V, the likelier on course
    rising = np.arange(1.0, LEVELS + 1)
    shows = np.tile(np.stack([rising[::-1], rising]) / rising.sum(), (PHASES, 1, 1))
    for _ in range(ROUNDS):
        likelihood = _likelihood(level, shows, phase, lengths, well)
        single, double = _expected(likelihood, change, phase, lengths)
        for p in range(PHASES):
            steps = np.flatnonzero(phase == p)
            moves = double[:, steps[steps > 0] - 1].sum(axis=(0, 1)) + _STAY
            change[p] = moves / moves.sum(axis=1, keepdims=True)
            for state in range(2):
                weights = [single[:, steps, state][level[:, steps] == k].sum() for k in range(LEVELS)]
                counts = np.array(weights) + 1.0
                shows[p, state] = counts / counts.sum()
    return Hindsight(_likelihood(level, shows, phase, lengths, well), change, phase)


def _levels(runs: Sequence[LoggedRun], longest: int) -> NDArray[np.int64]:
    """Which part of all runs still going V is in, 0 the lowest, [runs, longest + 1]; −1 where it does not say."""
    level = np.full((len(runs), longest + 1), -1)
    for t in range(1, longest):
        going = np.array([i for i, run in enumerate(runs) if run.steps > t])
        if len(going) < LEVELS:
            break
        values = np.array([runs[i].values[t] for i in going])
        below = np.searchsorted(np.sort(values), values)  # equal values are in one part
        level[going, t] = below * LEVELS // len(going)
    return level


def scaled_returns(runs: Sequence[LoggedRun]) -> Floats:
    """Returns scaled to [0, 1]; 1 for all where they do not differ."""
    totals = np.array([run.total for run in runs])
    spread = float(np.ptp(totals))
    return (totals - totals.min()) / spread if spread > 0 else np.ones(len(runs))


def _likelihood(
    level: NDArray[np.int64], shows: Floats, phase: NDArray[np.int64], lengths: NDArray[np.int64], well: Floats
) -> Floats:
    likelihood = np.ones((*level.shape, 2))
    for state in range(2):
        seen = shows[phase[None, :], state, np.maximum(level, 0)]
        likelihood[:, :, state] = np.where(level < 0, 1.0, seen)
    likelihood[:, 0] = [0.0, 1.0]  # a run begins on course
    rows = np.arange(len(lengths))
    likelihood[rows, lengths] *= np.stack([1 - well, well], axis=1)
    return likelihood


def _forward(likelihood: Floats, change: Floats, phase: NDArray[np.int64]) -> Floats:
    """Chance [runs, steps, 2] of each state given what was seen up to there."""
    forward = np.empty_like(likelihood)
    forward[:, 0] = likelihood[:, 0]
    for t in range(1, likelihood.shape[1]):
        ahead = (forward[:, t - 1] @ change[phase[t]]) * likelihood[:, t]
        forward[:, t] = ahead / ahead.sum(axis=1, keepdims=True)
    return forward


def _expected(
    likelihood: Floats, change: Floats, phase: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Posterior chance of each state [runs, steps, 2] and of each move [runs, steps − 1, 2, 2], 0 after a run's end."""
    forward = _forward(likelihood, change, phase)
    steps = likelihood.shape[1]
    backward = np.ones_like(likelihood)
    single, double = np.empty_like(likelihood), np.zeros((len(likelihood), steps - 1, 2, 2))
    single[:, -1] = forward[:, -1]
    for t in range(steps - 2, -1, -1):
        later = likelihood[:, t + 1] * backward[:, t + 1]
        pair = forward[:, t, :, None] * change[phase[t + 1]] * later[:, None, :]
        double[:, t] = pair / pair.sum(axis=(1, 2), keepdims=True)
        ahead = later @ change[phase[t + 1]].T
        backward[:, t] = ahead / ahead.sum(axis=1, keepdims=True)
        both = forward[:, t] * backward[:, t]
        single[:, t] = both / both.sum(axis=1, keepdims=True)
    at = np.arange(steps)
    single[at[None, :] > lengths[:, None]] = 0.0
    double[at[None, :-1] >= lengths[:, None]] = 0.0
    return single, double
