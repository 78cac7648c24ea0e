"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_amc.evaluate.compare import AMC, SAME_TOKENS, Comparison
from langgraph_amc.evaluate.statistics import Estimate


def comparison_table(comparisons: Sequence[Comparison]) -> RenderableType:
    """One table over all comparisons, then the paired differences and what to know about them."""
    table = Table(title="Mean reward of the answer, with 95 % intervals over tasks and seeds")
    for name, style in (("world", None), ("method", None), ("observable", "bold"), ("not observable", "bold")):
        table.add_column(name, style=style)
    for name in ("runs", "tokens", "seconds"):
        table.add_column(f"{name}/task", justify="right")
    lines: list[Text] = []
    for c in comparisons:
        for arm in c.arms:
            table.add_row(
                c.label,
                arm.name.replace("-N", f"-{c.particles}") if arm.name != AMC else f"AMC, N = {c.particles}",
                str(arm.observable),
                str(arm.selected),
                f"{arm.runs:.1f}",
                f"{arm.tokens:,.0f}",
                f"{arm.seconds:.2f}",
            )
        table.add_section()
        lines += _differences(c)
    notes = Text(
        "observable: the world says which run succeeded and the best is taken (the oracle of the other column)\n"
        "not observable: the answer is the one the value function prefers, for best-of-N too\n"
        "one run: mean over the N independent runs of best-of-N",
        style="dim",
    )
    return Group(table, *lines, notes)


def _differences(c: Comparison) -> list[Text]:
    head = f"{c.label}: " if c.label else ""
    lines = [
        _difference(f"{head}AMC − best-of-{c.particles}, observable", c.difference_observable),
        _difference(f"{head}AMC − best-of-{c.particles}, not observable", c.difference_selected),
    ]
    if any(arm.name == SAME_TOKENS for arm in c.arms):
        lines.append(_difference(f"{head}AMC − same tokens, observable", c.difference_same_tokens_observable))
        lines.append(_difference(f"{head}AMC − same tokens, not observable", c.difference_same_tokens_selected))
    lines.append(
        Text(
            f"{head}{c.tasks} tasks × {len(c.seeds)} seed(s); {c.resamplings:.1f} resamplings per run; "
            f"{c.hopeless:.0%} of the tasks solved by nobody",
            style="dim",
        )
    )
    if c.missing:
        lines.append(Text(f"{head}{c.missing} rewards are missing and left out", style="yellow"))
    return lines + [Text(f"{head}note: {warning}", style="yellow") for warning in c.warnings]


def _difference(name: str, d: Estimate) -> Text:
    style = "green" if d.low > 0 else "red" if d.high < 0 else ""
    return Text(f"{name}: {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]", style=style)


def print_comparisons(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print the table."""
    (console or Console()).print(comparison_table(comparisons))
