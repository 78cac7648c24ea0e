"""How the board looks in a terminal; what there is no room for is left out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from langgraph_amc.live.board import Board, Row, Run
from langgraph_amc.trajectories.types import Usage

WIDE = 110
"""Columns from which there is room for more."""
NARROW = 56
"""Columns below which there is room for what matters most only."""
_BLOCKS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_STATES = {"finished": "✓", "failed": "✗", "truncated": "■", "interrupted": "‖", "pruned": "✗"}


def one_run(run: Run, width: int, height: int) -> RenderableType:
    """A run: its particles as rows."""
    head = Text.assemble(
        (run.app, "bold"),
        f" · step {_furthest(run)} · {clock(time.monotonic() - run.began)} · {spent(run.usage)}",
        no_wrap=True,
        overflow="ellipsis",
    )
    ess = Text("not compared yet" if run.ess is None else "")
    if run.ess is not None:
        ess = Text.assemble(
            "ESS ",
            (f"{run.ess:.1f}", "bold"),
            f" of {len(run.live) or run.particles} at step {run.boundary}  ",
            (sparkline(run.past_ess, 24), "cyan"),
            f"  resampled {run.resamplings}×",
            no_wrap=True,
            overflow="ellipsis",
        )
    latest = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in list(run.happened)[-3:]]
    room = max(3, height - 5 - len(latest))
    return Group(head, ess, _particles(run, width, room), *latest)


def many_runs(title: str, board: Board, done: int, total: int, width: int, height: int) -> RenderableType:
    """Several runs side by side: one row each."""
    rows = board.shown[: max(2, height - 5)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("task", no_wrap=True, max_width=30 if width >= WIDE else 16)
    names = ("step", "live", "ESS", "best", "tokens") if width >= NARROW else ("step", "live")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("last", no_wrap=True, overflow="ellipsis", ratio=1)
    for run in rows:
        cells = (
            run.task or run.id[:8],
            str(_furthest(run)),
            f"{len(run.live)}/{len([r for r in run.rows.values() if r.state != 'pruned'])}",
            "" if run.ess is None else f"{run.ess:.1f}",
            "" if run.best is None else f"{run.best:.2f}",
            f"{run.usage.tokens:,}",
            run.happened[-1] if run.happened else "",
        )
        table.add_row(*cells[: len(table.columns)])
    line = progress_line(title, done, total, board.began, spent(board.usage), width)
    return Group(line, table) if rows else line


def progress_line(title: str, done: int, total: int, began: float, taken: str, width: int) -> RenderableType:
    """How much is done, how long the rest may take, and what was taken so far."""
    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True)
    line.add_column(width=24 if width >= WIDE else 14 if width >= NARROW else 4)
    line.add_column(no_wrap=True, overflow="ellipsis")
    elapsed = time.monotonic() - began
    left = f" · {clock(elapsed / done * (total - done))} left" if 0 < done < total else ""
    bar = ProgressBar(total=total or 1, completed=done, pulse=not total)
    told = " · ".join(filter(None, [f"{done}/{total or '?'}", f"{clock(elapsed)}{left}", taken]))
    line.add_row(Text(title, style="bold"), bar, told)
    return line


def _furthest(run: Run) -> int:
    return max((row.step for row in run.rows.values()), default=0)


def _particles(run: Run, width: int, room: int) -> Table:
    shown, left_out = _most_telling(run, room)
    wide, narrow = width >= WIDE, width < NARROW
    table = Table(box=None, padding=(0, 1 if narrow else 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("particle", no_wrap=True)
    for name in ("step", "value"):
        table.add_column(name, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("weight", no_wrap=True)
        table.add_column("last action", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown:
        cells = (
            _name(row, run, bare=narrow),
            str(row.step),
            "" if row.value is None else f"{row.value:.2f}",
            _weight(row, 16 if wide else 8),
            Text(row.action if row.state == "running" else _ending(row), overflow="ellipsis"),
        )
        table.add_row(*cells[: len(table.columns)], style=_style(row, run))
    if left_out and not narrow:
        table.add_row("", "", "", "", Text(left_out, style="dim"))
    return table


def _most_telling(run: Run, room: int) -> tuple[list[Row], str]:
    """Rows that fit: those that run first, the heaviest of them; then those that ended, the winner among them."""
    here = [row for row in run.rows.values() if row.state != "pruned"]
    here.sort(key=lambda row: (row.name != run.winner, row.state != "running"))
    pruned = len(run.rows) - len(here)
    shown = here
    if len(here) > room:
        shown = sorted(here, key=lambda row: (row.name != run.winner, row.state != "running", -(row.share or 0)))[:room]
    notes = [f"{len(here) - len(shown)} more"] if len(here) > len(shown) else []
    notes += [f"{pruned} stopped"] if pruned else []
    order = {name: k for k, name in enumerate(run.rows)}
    return sorted(shown, key=lambda row: order[row.name]), "… " + ", ".join(notes) if notes else ""


def _name(row: Row, run: Run, *, bare: bool) -> Text:
    mark = "★" if row.name == run.winner else _STATES.get(row.state, "●")
    origin = f" ← {row.parent}" if row.parent and not bare else ""
    return Text.assemble((f"{mark} ", "cyan" if row.state == "running" else ""), row.name, (origin, "dim"))


def _weight(row: Row, cells: int) -> Text:
    if row.share is None or row.state != "running":
        return Text("")
    return Text.assemble((bar(row.share, cells), "blue"), f" {100 * row.share:3.0f} %")


def _ending(row: Row) -> str:
    return row.state if row.reward is None else f"{row.state}, reward {row.reward:.3g}"


def _style(row: Row, run: Run) -> str:
    if row.name == run.winner:
        return "bold red" if row.state == "failed" else "bold green"
    return {"running": "", "failed": "red", "finished": "green"}.get(row.state, "dim")


def bar(share: float, cells: int) -> str:
    """A bar of eighths of a cell, always as wide."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_BLOCKS[part] if part else "")).ljust(cells)


def sparkline(values: Sequence[float], most: int) -> str:
    """The last of these values in [0, 1], a character each."""
    return "".join(_LEVELS[min(7, int(8 * max(0.0, value)))] for value in values[-most:])


def spent(usage: Usage) -> str:
    """Tokens, and money where a price is known."""
    money = f" · ${usage.cost:.4f}" if usage.cost else ""
    return f"{usage.tokens:,} tokens{money}"


def clock(seconds: float) -> str:
    """As ``1:02:03``, or ``2:03``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
