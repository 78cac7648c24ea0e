"""The report of one or more comparisons: one run, best-of-N and AMC on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_amc.evaluate.compare import AMC, BEST_OF_N, SAME_TOKENS, SINGLE
from langgraph_amc.report import words
from langgraph_amc.report.reading import Plain, clear, interval, level, signed
from langgraph_amc.report.sections import Curves, Fact, Forest, Report, Role, Section, Series, Table

_COLUMNS = (("selected", "answer chosen by value"), ("observable", "best answer known"))
_WORDS = {1: "clearly better than", 0: "not clearly different from", -1: "clearly worse than"}


def comparison_report(comparisons: Sequence[Plain]) -> Report:
    """From what `Comparison.to_json` gave."""
    several = len(comparisons) > 1
    answer = [fact for c in comparisons for fact in _answer(c, several)]
    sections = [section for c in comparisons for section in _sections(c, several)]
    first = comparisons[0]
    facts = [Fact(name, str(text)) for name, text in first.get("settings", {}).items()]
    return Report(
        about="comparison of methods on the same tasks",
        title=_title(first) if not several else "AMC against plain runs and best-of-N",
        answer=tuple(answer),
        sections=tuple(sections),
        warnings=tuple(w for c in comparisons for w in _warnings(c)),
        facts=tuple(facts),
    )


def _title(c: Plain) -> str:
    return f"AMC is {_WORDS[clear(c['difference_selected'])]} best-of-{c['particles']}"


def _warnings(c: Plain) -> list[str]:
    missing = [f"{words.many(c['missing'], 'reward')} missing and left out"] if c["missing"] else []
    return [*missing, *c["warnings"]]


def _answer(c: Plain, several: bool) -> list[Fact]:
    arms = {arm["name"]: arm for arm in c["arms"]}
    n, amc = c["particles"], arms[AMC]
    of = f", {c['label']}" if several and c["label"] else ""
    found = (
        f"With AMC the answer earns {level(amc['selected'])} on average; one plain run earns "
        f"{level(arms[SINGLE]['selected'])}, the best of {n} independent runs {level(arms[BEST_OF_N]['selected'])}. "
        f"AMC is {_WORDS[clear(c['difference_selected'])]} best-of-{n}: {signed(c['difference_selected'])}."
    )
    cost = f"AMC took {amc['tokens']:,.0f} tokens per task"
    plain = arms[SINGLE]["tokens"]
    if plain:
        cost += f", {amc['tokens'] / plain:.1f} times what one plain run takes ({plain:,.0f})"
    cost += f"; best-of-{n} took {arms[BEST_OF_N]['tokens']:,.0f}."
    if SAME_TOKENS in arms:
        cost += (
            f" Given as many tokens as AMC, best-of-N earns {level(arms[SAME_TOKENS]['selected'])}: AMC is "
            f"{_WORDS[clear(c['difference_same_tokens_selected'])]} that."
        )
    how = (
        f"{words.many(c['tasks'], 'task')}, {words.many(len(c['seeds']), 'seed')} each, the same for every method. "
        "Nobody was shown a reward on the way: answers are chosen by the value function. “Best answer known” is what "
        "choosing by the true reward would give, which no method can do where the reward is not known."
    )
    nobody = f"On {c['hopeless']:.0%} of the tasks no run of any method earned anything." if c["hopeless"] else ""
    return [
        Fact(f"What was found{of}", found, strong=True),
        Fact("What it cost", cost),
        Fact("How it was measured", f"{how} {nobody}".strip()),
    ]


def _sections(c: Plain, several: bool) -> list[Section]:
    of = f": {c['label']}" if several and c["label"] else ""
    found = [_levels(c, of), _differences(c, of), _gain(c, of)]
    if c.get("by_task"):
        found.append(_tasks(c, of))
    found.append(_methods(c, of))
    return found


def _names(c: Plain) -> dict[str, str]:
    return {arm["name"]: arm["name"] for arm in c["arms"]} | {
        SINGLE: "one plain run",
        BEST_OF_N: f"best of {c['particles']}",
        SAME_TOKENS: "best-of-N, AMC's tokens",
        AMC: f"AMC, {c['particles']} particles",
    }


def _levels(c: Plain, of: str) -> Section:
    rows = [interval(_names(c)[arm["name"]], arm[key], group) for key, group in _COLUMNS for arm in c["arms"]]
    return Forest(
        title=f"What each method earns{of}",
        lead="Mean reward of the answer over all tasks. Intervals that overlap do not mean that there is no "
        "difference: the tasks are the same, so look at the differences below.",
        x_label="mean reward",
        rows=tuple(rows),
    )


def _differences(c: Plain, of: str) -> Section:
    others = [("difference", f"AMC − best of {c['particles']}")]
    if any(arm["name"] == SAME_TOKENS for arm in c["arms"]):
        others.append(("difference_same_tokens", "AMC − best-of-N, same tokens"))
    rows = [interval(label, c[f"{name}_{key}"], group) for key, group in _COLUMNS for name, label in others]
    return Forest(
        title=f"What AMC gains{of}",
        lead="Differences on the same tasks, with an interval over tasks and seeds. An interval right of the dashed "
        "line means that AMC is better beyond chance.",
        x_label="difference in mean reward",
        rows=tuple(rows),
        zero=0.0,
    )


def _gain(c: Plain, of: str) -> Section:
    arms = {arm["name"]: arm for arm in c["arms"]}
    series = [_best_of(c, "selected", "best of k runs, chosen by value", "main")]
    series.append(_best_of(c, "observable", "best of k runs, best known (oracle)", "other"))
    amc = arms[AMC]
    points: tuple[tuple[str, str, Role], ...] = (
        ("observable", "AMC, best known (oracle)", "other"),
        ("selected", "AMC, chosen by value", "main"),
    )
    for key, name, role in points:
        series.append(Series(name, (amc["tokens"],), (amc[key]["mean"],), role, line=False))
    return Curves(
        title=f"Gain against cost{of}",
        lead="What more tokens buy: the line takes the best of one, two, three … independent runs; the points are AMC. "
        "A point above its line means more reward for the same tokens.",
        x_label="tokens per task",
        y_label="mean reward",
        series=tuple(series),
    )


def _best_of(c: Plain, key: str, name: str, role: Role) -> Series:
    points: list[Mapping[str, Any]] = list(c.get("best_of") or ())
    if not points:  # as an older version stored it
        arms = {arm["name"]: arm for arm in c["arms"]}
        points = [{"tokens": a["tokens"], key: a[key]} for n in (SINGLE, BEST_OF_N, SAME_TOKENS) if (a := arms.get(n))]
    points.sort(key=lambda point: point["tokens"])
    x, y = tuple(p["tokens"] for p in points), tuple(p[key]["mean"] for p in points)
    if role != "main":  # one band is enough
        return Series(name, x, y, role)
    return Series(name, x, y, role, tuple(p[key]["low"] for p in points), tuple(p[key]["high"] for p in points))


def _tasks(c: Plain, of: str) -> Section:
    names = {arm["name"]: _names(c)[arm["name"]] for arm in c["arms"]}
    rows = [
        (t["task"], *(t["selected"][n] for n in names), t["tokens"][SINGLE], t["tokens"][AMC], _gained(t))
        for t in c["by_task"]
    ]
    rows.sort(key=lambda row: -(row[-1] or 0.0))
    return Table(
        title=f"Task by task{of}",
        lead="Mean reward of the answer, chosen by value, and tokens. The last column: what AMC gains over best-of-N.",
        columns=("task", *names.values(), "tokens, one run", "tokens, AMC", "gain"),
        rows=tuple(rows),
    )


def _gained(t: Plain) -> float | None:
    amc, best = t["selected"][AMC], t["selected"][BEST_OF_N]
    return None if amc is None or best is None else round(amc - best, 6)


def _methods(c: Plain, of: str) -> Section:
    return Table(
        title=f"Methods{of}",
        lead=f"Per task. AMC resampled {c['resamplings']:.1f} times per run. Seconds are of all tasks side by side, "
        "divided by their number; those of one run and of the same-tokens method are in proportion to best-of-N's.",
        columns=("method", "chosen by value", "best known", "runs", "tokens", "output tokens", "seconds"),
        rows=tuple(
            (
                _names(c)[a["name"]],
                a["selected"]["mean"],
                a["observable"]["mean"],
                a["runs"],
                a["tokens"],
                a["output_tokens"],
                a["seconds"],
            )
            for a in c["arms"]
        ),
        strong=tuple(k for k, a in enumerate(c["arms"]) if a["name"] == AMC),
    )
