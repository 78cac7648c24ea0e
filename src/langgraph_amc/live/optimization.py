"""How a run of optimising skills looks in a terminal: what is being run, and its candidates beside the champion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_amc.evaluate.optimizing.standing import edits_of, said_of
from langgraph_amc.live.terminals import one_line
from langgraph_amc.live.view import NARROW, WIDE, clock, progress_line, spent

if TYPE_CHECKING:
    from langgraph_amc.evaluate.optimizing import Standing
    from langgraph_amc.evaluate.optimizing.history import Trial

SHOWN = 8
"""Candidates in the table."""
_STYLES = {"accepted": "green", "rejected": "dim", "refused": "red", "stale": "dim"}
_TAKEN = {"accepted": "taken", "rejected": "not taken"}


class Search:
    """What has been told of a run of optimising so far."""

    def __init__(self) -> None:
        self.at: Standing | None = None
        self._began = time.monotonic()
        self._doing = ("", self._began)
        self._tried = 0

    def hear(self, at: Standing) -> bool:
        """Take in where it stands; whether a proposal has been dealt with since."""
        self.at = at
        if at.doing != self._doing[0]:
            self._doing = (at.doing, time.monotonic())
        new, self._tried = at.tried > self._tried, at.tried
        return new

    def line(self) -> str:
        """The last proposal in a line."""
        assert self.at is not None
        mean = "" if self.at.champion is None else f" · validation {self.at.champion.mean:.3f}"
        counted = f"{self.at.tried} tried, {self.at.accepted} taken{mean}"
        return one_line(f"{said_of(self.at.trials[-1])} · {counted} · {taken(self.at)}{_left(self.at)}")

    def picture(self, width: int) -> RenderableType:
        """Progress, and the candidates."""
        if self.at is None:
            return Text("starting", style="dim")
        at = self.at
        head = Text.assemble(
            "round ",
            (f"{at.round}", "bold"),
            f"/{at.rounds} · {at.tried} tried, ",
            (f"{at.accepted}", "bold"),
            f" taken · {clock(time.monotonic() - self._began)}{_left(at)}",
            " · " if width >= WIDE else "\n",
            taken(at),
            no_wrap=True,
            overflow="ellipsis",
        )
        doing = progress_line(one_line(at.doing), at.done, at.total, self._doing[1], "", width)
        return Group(head, doing, *([] if at.champion is None else [_table(at, width)]))


def _table(at: Standing, width: int) -> Table:
    """The champion, the last that were tried, the one that is, and those to come."""
    assert at.champion is not None
    table = Table(
        box=None, padding=(0, 2 if width >= WIDE else 1, 0, 0), pad_edge=False, header_style="dim", expand=True
    )
    table.add_column("candidate", no_wrap=True)
    table.add_column("", no_wrap=True)
    if width >= NARROW:
        table.add_column("validation", justify="right", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("95 % interval", justify="right", no_wrap=True)
        table.add_column("edits", no_wrap=True, overflow="ellipsis", ratio=2)
    if width >= WIDE:
        table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=3)

    def row(*cells: str, style: str) -> None:
        table.add_row(*(cells if width >= NARROW else (*cells[:2], cells[3]))[: len(table.columns)], style=style)

    level = at.champion
    row("★", "champion", f"{level.mean:.3f}", "", f"{level.low:.3f}–{level.high:.3f}", "", "", style="bold")
    waiting = at.waiting[: SHOWN // 2]
    for trial in at.trials[-(SHOWN - len(waiting)) :]:
        row(*_cells(trial), style=_STYLES[trial.outcome])
    tried = sum(trial.round == at.round - 1 for trial in at.trials)
    for place, proposal in enumerate(waiting, start=tried):
        doing = "is tried" if place == tried and "candidate" in at.doing else "waits"
        what = one_line(edits_of(proposal))
        row(f"{at.round}.{place + 1}", doing, "", "", "", what, "", style="cyan" if doing == "is tried" else "dim")
    return table


def _cells(trial: Trial) -> tuple[str, ...]:
    known = trial.by_task[~np.isnan(trial.by_task)]
    verdict = trial.verdict
    compared = verdict is not None and not np.isnan(verdict.difference)
    return (
        f"{trial.round + 1}.{trial.place + 1}",
        _TAKEN.get(trial.outcome, trial.outcome),
        f"{known.mean():.3f}" if known.size else "",
        f"{verdict.difference:+.3f}" if verdict is not None and compared else "",
        f"{verdict.low:+.3f}…{verdict.high:+.3f}" if verdict is not None and compared else "",
        one_line(edits_of(trial.proposal)),
        one_line(trial.reason),
    )


def taken(at: Standing) -> str:
    """What the rollouts have taken."""
    return f"{at.usage.calls:,} calls · {spent(at.usage)}"


def _left(at: Standing) -> str:
    """How long it may still take if nothing is given up early."""
    return "" if at.seconds_left is None else f" · at most {clock(at.seconds_left)} left"
