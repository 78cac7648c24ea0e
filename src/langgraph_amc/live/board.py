"""What is known of the runs that are watched: a small model that events keep up to date, and no terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatchmethod

import numpy as np

from langgraph_amc.live.terminals import one_line
from langgraph_amc.runtime import watching as w
from langgraph_amc.smc.weights import LogWeights
from langgraph_amc.trajectories.types import Usage

REMEMBERED = 5
"""Happenings that are shown."""


@dataclass(slots=True)
class Row:
    """One particle.

    Attributes
    ----------
    state: "running", or how it ended (see `Status`). share: of the weight at the last check, in [0, 1].
    """

    name: str
    parent: str | None
    step: int
    state: str = "running"
    value: float | None = None
    share: float | None = None
    reward: float | None = None
    action: str = ""


@dataclass(slots=True)
class Run:
    """One population.

    Attributes
    ----------
    ess: effective sample size at the last check, in particles; ``past_ess`` of all checks so far.
    usage: of models, those that judge included. began: by the clock of `time.monotonic`.
    """

    id: str
    app: str
    task: str | None
    particles: int
    began: float
    rows: dict[str, Row] = field(default_factory=dict)
    boundary: int = 0
    ess: float | None = None
    past_ess: list[float] = field(default_factory=list)
    resamplings: int = 0
    usage: Usage = field(default_factory=Usage)
    happened: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    winner: str | None = None
    ended: bool = False
    broken_off: bool = False

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "running"]

    @property
    def best(self) -> float | None:
        """The highest value of those that run."""
        return max((row.value for row in self.live if row.value is not None), default=None)


class Board:
    """All runs that have been told of; `hear` takes their events, one at a time.

    Parameters
    ----------
    said: is told what happens, a line each, with its run.
    """

    def __init__(self, said: Callable[[Run, str], None] = lambda run, text: None) -> None:
        self.runs: dict[str, Run] = {}
        self.usage = Usage()
        self.began = time.monotonic()
        self.ended = 0
        self._said = said

    @property
    def under_way(self) -> list[Run]:
        return [run for run in self.runs.values() if not run.ended]

    @property
    def shown(self) -> list[Run]:
        """Those under way, and, where all were broken off together, those."""
        return self.under_way or [run for run in self.runs.values() if run.broken_off]

    def hear(self, event: w.RunEvent) -> None:
        """Take an event in."""
        if isinstance(event, w.RunStarted):
            began = time.monotonic() - event.seconds
            # what was broken off is of a past that nobody looks back on once something new begins
            self.runs = {k: run for k, run in self.runs.items() if not run.broken_off}
            app, task = one_line(event.app), None if event.task is None else one_line(event.task)
            self.runs[event.run_id] = Run(event.run_id, app, task, event.particles, began)
        elif (run := self.runs.get(event.run_id)) is not None:
            self._hear(event, run)

    @singledispatchmethod
    def _hear(self, event: w.RunEvent, run: Run) -> None:
        """Events that change nothing that is shown."""

    @_hear.register
    def _(self, event: w.ParticleStarted, run: Run) -> None:
        run.rows[event.particle] = row = Row(event.particle, event.parent, event.boundary)
        # "p3@2" is an earlier state of p3, which had another value
        if event.parent is not None and (parent := run.rows.get(event.parent)) is not None:
            row.value, row.share, row.action = parent.value, parent.share, parent.action

    @_hear.register
    def _(self, event: w.ParticleStepped, run: Run) -> None:
        row = run.rows[event.particle]
        row.step, row.action = event.boundary, one_line(event.action) or row.action

    @_hear.register
    def _(self, event: w.ModelCalled, run: Run) -> None:
        self._spend(run, event.usage)

    @_hear.register
    def _(self, event: w.Scored, run: Run) -> None:
        self._spend(run, event.usage)
        for name, value in zip(event.particles, event.values, strict=True):
            if name in run.rows and not math.isnan(value):
                run.rows[name].value = value

    @_hear.register
    def _(self, event: w.Weighed, run: Run) -> None:
        live = [(n, x) for n, x in zip(event.particles, event.log_weights, strict=True) if self._runs(run, n)]
        if not live:
            return
        for (name, _), share in zip(live, LogWeights(np.array([x for _, x in live])).shares, strict=True):
            run.rows[name].share = float(share)
        if event.boundary is not None and event.live:
            run.boundary, run.ess = event.boundary, event.ess * event.live
            run.past_ess.append(event.ess)

    @_hear.register
    def _(self, event: w.Resampled, run: Run) -> None:
        run.resamplings += 1
        slots = len(event.ancestors)
        gone = [name for k, name in enumerate(event.particles) if k not in event.ancestors and "@" not in name]
        copied = {event.particles[k]: event.ancestors.count(k) for k in sorted(set(event.ancestors))}
        copies = ", ".join(f"{name} ×{n}" for name, n in copied.items() if n > 1)
        for row in run.live:
            row.share = 1 / slots
        text = f"step {event.boundary}: resampled, {len(copied)} of {slots} go on"
        text += f" · copied {copies}" if copies else ""
        self._say(run, text + (f" · stopped {', '.join(gone)}" if gone else ""))

    @_hear.register
    def _(self, event: w.Withheld, run: Run) -> None:
        self._say(run, f"step {event.boundary}: not resampled, because {event.reason}")

    @_hear.register
    def _(self, event: w.ParticlePruned, run: Run) -> None:
        if event.particle in run.rows:
            run.rows[event.particle].state = "pruned"

    @_hear.register
    def _(self, event: w.ParticleEnded, run: Run) -> None:
        row = run.rows[event.particle]
        row.state, row.reward = event.status, event.reward
        row.value = row.value if event.value is None else event.value
        # what came after the last boundary was a step too
        row.step = event.boundary + (event.status == "finished")
        known = [f"{what} {x:.3g}" for what, x in (("reward", row.reward), ("value", row.value)) if x is not None]
        why = f": {event.error}" if event.error else ""
        told = f" ({', '.join(known)})" if known else ""
        self._say(run, f"{row.name} {event.status} after step {row.step}{told}{why}")

    @_hear.register
    def _(self, event: w.EffectSettled, run: Run) -> None:
        self._say(run, f"effect {event.record.tool} of {event.record.particle}: {event.record.state}")

    @_hear.register
    def _(self, event: w.PopulationGrown, run: Run) -> None:
        self._say(run, f"{event.added} particles are added to {event.started}")

    @_hear.register
    def _(self, event: w.Enough, run: Run) -> None:
        self._say(run, f"enough: {event.reason}")

    @_hear.register
    def _(self, event: w.ParticleChosen, run: Run) -> None:
        run.winner = event.particle
        state = run.rows[event.particle].state
        what = {
            "failed": "stands for all: every one failed",
            "truncated": "was furthest when the run was stopped",
            "interrupted": "waits for a reply",
        }.get(state, "answers")
        if event.effects:
            what = f"was chosen; now {', '.join(event.effects)} happens"
        self._say(run, f"{event.particle} {what}")

    @_hear.register
    def _(self, event: w.RunEnded, run: Run) -> None:
        run.ended, run.broken_off = True, event.broken_off
        self.ended += 1
        if event.result is not None:
            run.winner = event.result.winner.name
        if event.broken_off:
            self._say(run, "the run was broken off")
        elif event.error is not None:
            self._say(run, f"the run broke: {event.error}")

    def _spend(self, run: Run, usage: Usage) -> None:
        run.usage += usage
        self.usage += usage

    def _say(self, run: Run, text: str) -> None:
        text = one_line(text)
        run.happened.append(text)
        self._said(run, text)

    @staticmethod
    def _runs(run: Run, name: str) -> bool:
        return name in run.rows and run.rows[name].state == "running"

    def forget_ended(self) -> None:
        """Keep only the runs under way, and those that were broken off: nothing may follow them."""
        self.runs = {k: run for k, run in self.runs.items() if not run.ended or run.broken_off}
