"""How a run of evolution looks in a terminal: what is being run, the last generations, and how the reward grew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_amc.live.view import WIDE, clock, progress_line, sparkline

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving import Standing
    from langgraph_amc.evaluate.evolving.report import GenerationReport, ValidationReport

SHOWN = 6
"""Generations in the table."""


class Course:
    """What has been told of a run of evolution so far."""

    def __init__(self) -> None:
        self.at: Standing | None = None
        self.generations: dict[int, GenerationReport] = {}
        self.validations: dict[int, ValidationReport] = {}
        self._began = time.monotonic()
        self._doing = ("", self._began)

    def hear(self, at: Standing) -> bool:
        """Take in where it stands; whether a generation has ended since."""
        self.at = at
        if at.doing != self._doing[0] or at.done <= 1:
            self._doing = (at.doing, time.monotonic())
        if at.validation is not None:
            self.validations[at.validation.done] = at.validation
        new = at.generation is not None and at.generation.number not in self.generations
        if at.generation is not None:
            self.generations[at.generation.number] = at.generation
        return new

    def line(self) -> str:
        """The last generation in a line."""
        assert self.at is not None
        assert self.at.generation is not None
        return f"generation {self.at.generation.number + 1}/{self.at.generations}: {found(self.at)} · {used(self.at)}"

    def picture(self, width: int) -> RenderableType:
        """Progress, curve and table."""
        if self.at is None:
            return Text("starting", style="dim")
        at = self.at
        head = Text.assemble(
            ("generation ", ""),
            (f"{len(self.generations)}", "bold"),
            f"/{at.generations} · {clock(time.monotonic() - self._began)} · {used(at)}",
            no_wrap=True,
            overflow="ellipsis",
        )
        parts: list[RenderableType] = [head, progress_line(at.doing, at.done, at.total, self._doing[1], "", width)]
        if self.generations:
            parts += [self._curve(width), self._table(width)]
        return Group(*parts)

    def _curve(self, width: int) -> Text:
        means = [self.generations[k].reward.mean for k in sorted(self.generations)]
        low, high = min(means), max(means)
        scaled = [(m - low) / (high - low) if high > low else 0.5 for m in means]
        line = Text.assemble("reward ", (sparkline(scaled, max(10, width - 40)), "cyan"), f" {means[-1]:.3f}")
        if self.validations:
            best = max(self.validations.values(), key=lambda v: v.reward.mean)
            line.append(f" · best validation {best.reward.mean:.3f} after {best.done}", style="green")
        return line

    def _table(self, width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        columns = ("generation", "reward", "95 % interval", "best", "sigma", "signal/noise", "step")
        shown = columns if width >= WIDE else columns[:6]
        for name in shown:
            table.add_column(name, justify="right", no_wrap=True)
        for number in sorted(self.generations)[-SHOWN:]:
            g = self.generations[number]
            row = (
                str(number + 1),
                f"{g.reward.mean:.3f}",
                f"{g.reward.low:.3f}–{g.reward.high:.3f}",
                f"{g.best:.3f}",
                f"{g.sigma:.2g}",
                "-" if g.signal_to_noise is None else f"{g.signal_to_noise:.2f}",
                f"{g.step:.2g}",
            )
            table.add_row(*row[: len(shown)])
        return table


def found(at: Standing) -> str:
    """The last generation and validation."""
    parts = []
    if (g := at.generation) is not None:
        noise = "-" if g.signal_to_noise is None else f"{g.signal_to_noise:.2f}"
        parts += [f"reward {g.reward} best {g.best:.3f}", f"sigma {g.sigma:.2g}", f"signal/noise {noise}"]
    if at.validation is not None:
        parts.append(f"validation {at.validation.reward.mean:.3f}")
    return " · ".join(parts)


def used(at: Standing) -> str:
    """What was used, and how long it may still take."""
    told = f"{at.tokens:,} tokens"
    return told if at.seconds_left is None else f"{told} · {clock(at.seconds_left)} left"
