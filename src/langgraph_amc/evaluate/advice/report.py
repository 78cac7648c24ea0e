"""An advice for people: the verdict, the figures it rests on, boundary by boundary, and intervals as bars."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_amc.evaluate.advice.advise import Advice
from langgraph_amc.evaluate.advice.gain import Column
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.value.metrics import Ranking

_STYLES = {"will help": "bold green", "will not help": "bold red", "cannot tell": "bold yellow"}
_ROWS = 16
"""Boundaries shown, at most."""


def advice_report(advice: Advice) -> RenderableType:
    """The whole report; fits 80 columns."""
    v = advice.verdict
    head = Text()
    head.append(f"AMC {v.answer}", style=_STYLES[v.answer])
    head.append(f" ({v.reason}): {v.because}.\n")
    for attempt in v.attempt:
        head.append(f"  try: {attempt}\n")
    parts: list[RenderableType] = [head, _figures(advice)]
    if advice.gain is not None:
        parts.append(_gain(advice))
    if advice.steps:
        parts.append(_steps(advice))
    if advice.tools:
        parts.append(_tools(advice))
    parts += [Text(f"note: {note}", style="yellow") for note in advice.notes]
    return Group(*parts)


def print_advice(advice: Advice, console: Console | None = None) -> None:
    """Print the report."""
    (console or Console()).print(advice_report(advice))


def bar(e: Estimate, low: float, high: float, width: int = 41) -> str:
    """An interval as text: ``─`` from its low to its high end, ``●`` its mean, ``┊`` zero, within [low, high]."""

    def column(x: float) -> int:
        return round((min(max(x, low), high) - low) / (high - low) * (width - 1))

    if math.isnan(e.mean):
        return " " * width
    cells = [" "] * width
    cells[column(0.0)] = "┊"
    cells[column(e.low) : column(e.high) + 1] = "─" * (column(e.high) - column(e.low) + 1)
    cells[column(e.mean)] = "●"
    return "".join(cells)


def _figures(advice: Advice) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in _facts(advice):
        table.add_row(name, text)
    return table


def _facts(a: Advice) -> Iterator[tuple[str, str]]:
    left_out = ", ".join(f"{n} {reason}" for reason, n in a.left_out.items())
    yield "runs", f"{a.runs} on {a.tasks} tasks" + (f"; left out: {left_out}" if left_out else "")
    if (r := a.rewards) is not None:
        yield "one run", str(r.single)
        yield f"best of {r.best_of}", f"{r.best} where the reward is observable"
        if r.chosen is not None:
            yield "", f"{r.chosen} where V chooses"
        nobody = "" if math.isnan(r.hopeless) else f"; no success at all on {r.hopeless:.0%} of the tasks"
        yield "headroom", f"{r.headroom}{nobody}"
    if a.ranking is not None:
        yield "V within a task", f"{_ranking(a.ranking)} mid-run, {_ranking(a.ranking_final)} at the end"
    if (d := a.diversity) is not None:
        yield (
            "runs of one task",
            (
                f"{d.same_run:.0%} of pairs identical, {d.same_answer:.0%} in their last step; they part after "
                f"{d.parted:.1f} steps"
            ),
        )
    checks = "" if a.gain is None else f", {a.gain.checks:.1f} boundaries at which to resample"
    if a.gain is not None and abs(a.gain.misfit) > 0.1:
        yield (
            "misfit",
            f"the model's best-of-{a.gain.particles} is off by {a.gain.misfit:+.3f}: doubt the expected gain",
        )
    yield "a run", f"{a.steps_per_run:.1f} steps{checks}"
    if a.cost.tokens is None:
        yield "its cost", "unknown: the model reports no usage"
    else:
        usd = "price unknown" if a.cost.usd is None else f"${a.cost.usd:.4f}"
        yield "its cost", f"{a.cost.tokens:,.0f} tokens, {usd}"
        if a.gain is not None:
            n = a.gain.particles
            dollars = "" if a.cost.usd is None else f", ${a.cost.usd * n * a.gain.spent:.4f}"
            yield (
                f"AMC, N = {n}",
                (f"{a.cost.tokens * n * a.gain.spent:,.0f} tokens{dollars} per task: {a.gain.spent:.2f} × best-of-{n}"),
            )


def _gain(advice: Advice) -> Table:
    gain = advice.gain
    assert gain is not None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", title_style="bold")
    table.title = f"expected at N = {gain.particles}, {gain.tasks} tasks, 95 % intervals"
    for name in ("", f"best-of-{gain.particles}", "AMC", "gain"):
        table.add_column(name, no_wrap=True)
    rows: tuple[tuple[str, Column], ...] = (("V chooses", gain.selected), ("observable", gain.observable))
    for name, column in rows:
        counts = (name == "observable") == advice.observable
        d = column.gain
        table.add_row(
            name + (" *" if counts else ""),
            f"{column.best_of_n.mean:.3f}",
            f"{column.amc:.3f}",
            f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
        )
    table.caption = f"* counts for the verdict; {gain.resamplings:.1f} resamplings per run"
    table.caption_justify = "left"
    return table


def _steps(advice: Advice) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("boundary", "live", "V ranks", "ESS", "resamples", "decided"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    stride = -(-len(advice.steps) // _ROWS)
    decided = () if advice.gain is None else advice.gain.decided
    for step in advice.steps[::stride]:
        share = decided[step.boundary] if step.boundary < len(decided) else None
        table.add_row(
            str(step.boundary),
            f"{step.live:.0%}",
            _ranking(step.ranking),
            _share(step.ess),
            _share(step.fires),
            _share(share),
            "" if share is None else "█" * round(10 * share),
        )
    table.caption = "ESS: of the live runs, first weighing; decided: share of the outcome within a task (simulated)"
    table.caption_justify = "left"
    return table


def _tools(advice: Advice) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("tool", "policy", "said by", "runs", "first step"):
        table.add_column(name, overflow="fold")
    for tool in advice.tools:
        first = "-" if tool.first_step is None else f"{tool.first_step:.0f}"
        table.add_row(tool.name, tool.policy, tool.said_by, f"{tool.runs:.0%}", first)
    if any(tool.policy == "unknown" for tool in advice.tools):
        table.caption = "unknown ones would run in every particle: say what they do with --effects"
        table.caption_justify = "left"
    return table


def _ranking(r: Ranking | None) -> str:
    if r is None or r.value is None:
        return "-"
    return f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"


def _share(x: float | None) -> str:
    return "-" if x is None else f"{x:.0%}"
