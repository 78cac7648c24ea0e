"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_amc.evaluate.compare import AMC, BEST_OF_N, SAME_TOKENS, SINGLE, ArmResult, Comparison
from langgraph_amc.evaluate.statistics import Estimate


def comparison_table(comparisons: Sequence[Comparison]) -> RenderableType:
    """A table per comparison with its paired differences, then how to read them. Fits 80 columns."""
    notes = Text(
        "observable: the world says which run succeeded and the best is taken (an oracle where it does not)\n"
        "not observable: the answer is the one the value function prefers, for best-of-N too\n"
        "one run: mean over the N independent runs of best-of-N; runs counts pruned particles too\n"
        "s: seconds for all tasks, which run side by side, divided by their number, not how long an answer takes;"
        " ~ is not measured but best-of-N's, in proportion to the runs",
        style="dim",
    )
    parts: list[RenderableType] = []
    for c in comparisons:
        parts += [_table(c), *_differences(c), Text()]
    return Group(*parts, notes)


def _table(c: Comparison) -> Table:
    title = f"{c.label}: mean reward of the answer, 95 % interval".removeprefix(": ")
    table = Table(
        title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", title_style="bold"
    )
    table.add_column("method", min_width=14)  # a search is called by its arguments, which may take two lines
    table.add_column("observable", no_wrap=True)
    table.add_column("not observable", no_wrap=True)
    for name in ("runs", "tokens", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    names = {BEST_OF_N: f"best-of-{c.particles}", SAME_TOKENS: "  same tokens", AMC: f"AMC, N = {c.particles}"}
    for arm in c.arms:
        table.add_row(
            names.get(arm.name, arm.name),
            str(arm.observable),
            str(arm.selected),
            f"{arm.runs:.1f}",
            f"{arm.tokens:,.0f}",
            _seconds(arm),
        )
    return table


def _seconds(arm: ArmResult) -> str:
    if arm.name in (SINGLE, SAME_TOKENS):
        return f"~{arm.seconds:.1f}" if arm.seconds < 10 else f"~{arm.seconds:.0f}"
    return f"{arm.seconds:.2f}" if arm.seconds < 10 else f"{arm.seconds:.1f}"


def _differences(c: Comparison) -> list[Text]:
    lines = [
        _difference(f"AMC − best-of-{c.particles}, observable", c.difference_observable),
        _difference(f"AMC − best-of-{c.particles}, not observable", c.difference_selected),
    ]
    if any(arm.name == SAME_TOKENS for arm in c.arms):
        lines.append(_difference("AMC − same tokens, observable", c.difference_same_tokens_observable))
        lines.append(_difference("AMC − same tokens, not observable", c.difference_same_tokens_selected))
    for name, d in c.differences.items():
        lines.append(_difference(f"AMC − {name}, observable", d.observable))
        lines.append(_difference(f"AMC − {name}, not observable", d.selected))
    lines.append(
        Text(
            f"{c.tasks} tasks × {len(c.seeds)} seed(s), figures per task; {c.resamplings:.1f} resamplings per run; "
            f"{c.hopeless:.0%} of the tasks solved by nobody",
            style="dim",
        )
    )
    if c.missing:
        lines.append(Text(f"{c.missing} rewards are missing and left out", style="yellow"))
    return lines + [Text(f"note: {warning}", style="yellow") for warning in c.warnings]


def _difference(name: str, d: Estimate) -> Text:
    style = "green" if d.low > 0 else "red" if d.high < 0 else ""
    return Text(f"{name}: {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]", style=style)


def print_comparisons(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print the table."""
    (console or Console()).print(comparison_table(comparisons))
