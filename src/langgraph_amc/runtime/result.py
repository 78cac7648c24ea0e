"""What an AMC run reports: every particle, every check, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from langgraph_amc.runtime.effects.records import EffectRecord
from langgraph_amc.runtime.searching import Thought
from langgraph_amc.smc.weights import LogWeights
from langgraph_amc.telemetry.spans import RunSpans
from langgraph_amc.trajectories.types import Trajectory, Usage
from langgraph_amc.value.targets import with_resamplings


@dataclass(frozen=True, slots=True)
class Check:
    """One boundary at which particles were weighed.

    Attributes
    ----------
    boundary: number of agent steps so far.
    particles: names of the live particles, in the order of the arrays.
    values: V per live particle, NaN where it is missing; empty without a value function.
    log_weights: unnormalised, in nats; all 0 in a search, which weighs nobody on the way.
    ess: effective sample size of the live particles, in particles.
    sharpness: multiplier of the log-ratio (1 unless solved for an ESS target).
    ancestors: per slot the index of its parent among ``(*particles, *past)``; empty where nothing was resampled.
    withheld: why nothing was resampled although the schedule fired; empty where there was no reason not to.
    past: earlier states that could be gone back to, as ``"p3@2"``: particle p3 at boundary 2.
    """

    boundary: int
    particles: tuple[str, ...]
    values: tuple[float, ...]
    log_weights: tuple[float, ...]
    ess: float
    sharpness: float
    ancestors: tuple[int, ...] = ()
    withheld: str = ""
    past: tuple[str, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """Weights of the live particles, which sum to 1."""
        return tuple(LogWeights(np.array(self.log_weights)).shares.tolist()) if self.log_weights else ()

    @property
    def resampled(self) -> bool:
        return bool(self.ancestors)


@dataclass(frozen=True, slots=True)
class ParticleReport:
    """One particle at the end.

    Attributes
    ----------
    trajectory: transcript, rewards, values, status, lineage and usage.
    output: what the app returned for it (the last ``values`` event), ``None`` if it was pruned.
    reward: observed return, ``None`` where it is not observable or its evaluation failed.
    value: last score; for a finished run whose outcome is not observable, the estimate of that outcome.
    """

    trajectory: Trajectory
    output: Any
    log_weight: float
    reward: float | None
    value: float | None

    @property
    def name(self) -> str:
        return self.trajectory.particle


@dataclass(frozen=True, slots=True)
class AMCResult:
    """The record of one AMC run.

    Attributes
    ----------
    seed: given as ``seed=`` to `wrap`, it repeats the run.
    winner: the report of the particle whose answer was returned.
    particles: all that ended, best evidence of diversity first to last in order of birth.
    pruned: those that resampling ended early.
    log_evidence: log Ẑ with E[Ẑ] = Z; ``None`` where the weights estimate none (`smc.FilterResult`).
    usage: of the whole run, models that judge (V, reward) included; ``winner.trajectory.usage`` is the winner's share.
    warnings: what the run noticed about itself, each with its cause and what to do.
    effects: every effect that was asked for and what became of it: committed, dropped with its lineage, denied.
    started: particles that were started, clones not counted.
    abstained: whether the answer is only the best of what is not good enough (`abstain`).
    stopped: why no more were started, or those that still ran were ended; ``None`` where nobody decided that.
    selected_by: the rule that chose the winner, by the name that ``wrap(select=…)`` has for it.
    tree: of a search, parents before children; empty for the particle filter.
    trace: where the run's spans are, for what is found out about it later; ``None`` where it was not traced.
    """

    run_id: str
    seed: int
    winner: ParticleReport
    particles: tuple[ParticleReport, ...]
    pruned: tuple[ParticleReport, ...]
    checks: tuple[Check, ...]
    log_evidence: float | None
    usage: Usage
    seconds: float
    warnings: tuple[str, ...] = ()
    effects: tuple[EffectRecord, ...] = ()
    started: int = 0
    stopped: str | None = None
    abstained: bool = False
    selected_by: str = ""
    tree: tuple[Thought, ...] = ()
    trace: RunSpans | None = field(default=None, repr=False, compare=False)

    @property
    def thoughts(self) -> int:
        """States that a search has tried; 0 for the particle filter."""
        return sum(thought.parent is not None for thought in self.tree)

    @property
    def truncated(self) -> bool:
        """Whether a budget ended the run: the winner is the best of what had not ended by itself."""
        return self.winner.trajectory.status == "truncated"

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Every trajectory of the run, pruned ones included (they are labelled as censored)."""
        return tuple(with_resamplings([p.trajectory for p in (*self.particles, *self.pruned)], self.checks))

    @property
    def ancestors(self) -> Mapping[str, str | None]:
        """Parent of every particle."""
        return {t.particle: t.parent for t in self.trajectories}

    def lineage(self, name: str) -> tuple[str, ...]:
        """Names from the first ancestor of a particle down to itself."""
        parents = dict(self.ancestors)
        line = [name]
        while (parent := parents[line[-1]]) is not None:
            line.append(parent)
        return tuple(reversed(line))


def collapse_warning(
    transcripts: Sequence[tuple[str, ...]], parameters: Sequence[Mapping[str, Any]], cached: bool
) -> str | None:
    """Say so, with the likely cause, where all particles did the same although each ran on its own.

    Particles that agree at first and differ later are fine, so what counts is that every transcript continues
    every shorter one.
    """
    moved = [t for t in transcripts if len(t) > 1]
    longest = max(moved, key=len, default=())
    if len(moved) < 2 or not any(longest[1:]) or any(t != longest[: len(t)] for t in moved):
        return None
    settings = {k: v for p in parameters for k, v in p.items()}
    if settings.get("temperature") == 0:
        cause = "the model is called with temperature 0: raise it, e.g. to 1"
    elif settings.get("seed") is not None:
        cause = "the model is called with a fixed seed: leave the seed out, or use amc.chat_model, which varies it"
    elif cached:
        cause = "answers come from a cache that AMC cannot salt: switch the model's own cache off"
    else:
        cause = "the model looks deterministic: check its temperature, its seed and any cache in front of it"
    return f"all {len(moved)} particles took the same steps, so AMC can add nothing: {cause}"


class AMCOutput(dict[str, Any]):
    """The app's own output, with the record of the run that produced it as ``.amc``."""

    def __init__(self, output: Mapping[str, Any], amc: AMCResult) -> None:
        super().__init__(output)
        self.amc = amc
