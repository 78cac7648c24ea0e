"""The report of a run of evolution: how reward grew, how sure the updates were, base against tuned."""

from __future__ import annotations

from typing import Any

from langgraph_amc.report import words
from langgraph_amc.report.reading import Plain, clear, interval, level, signed
from langgraph_amc.report.sections import Curves, Fact, Forest, Report, Section, Series, Table

_TITLES = {
    1: "The tuned model is clearly better than the base",
    0: "The tuned model is not clearly different from the base",
    -1: "The tuned model is clearly worse than the base",
}


def evolution_report(found: Plain) -> Report:
    """From what `Evolution.to_json` gave."""
    generations, held_out = found["generations"], found["held_out"]
    return Report(
        about="evolution of a local model",
        title=f"{words.many(len(generations), 'generation')}, not measured on held-out tasks"
        if held_out is None
        else _TITLES[clear(held_out["difference"])],
        answer=tuple(_answer(found)),
        sections=tuple(s for s in _sections(found) if s is not None),
        warnings=tuple(found.get("remarks", ())),
        facts=(Fact("model", found["model"] or "not written"), Fact("weights", found["weights"])),
    )


def _answer(found: Plain) -> list[Fact]:
    facts = []
    if (h := found["held_out"]) is not None:
        tasks = words.many(h["tasks"], "task")
        text = (
            f"On {tasks} that were held out, {words.many(h['repeats'], 'run')} each, the tuned model earns "
            f"{level(h['tuned'])} and the base {level(h['base'])}: {signed(h['difference'])}."
        )
        facts.append(Fact("What was gained", text, strong=True))
    best, n = found["best"], len(found["generations"])
    course = f"{words.many(n, 'generation')} were run; {found['stopped']}. The weights after {best} were kept."
    facts.append(Fact("How it went", course))
    cost = f"{words.many(found['rollouts'], 'rollout')}, {words.many(found['tokens'], 'token')}"
    cost += f", {words.span(found['seconds'])}"
    cost += f"; {found['failed']:,} failed, {found['unjudged']:,} got no reward."
    if found.get("found"):
        cost += f" {found['found']:,} further rollouts were kept from earlier calls."
    facts.append(Fact("What it cost", cost))
    return facts


def _sections(found: Plain) -> list[Section | None]:
    return [course(found), _held_out(found["held_out"]), *generation_charts(found["generations"])]


def generation_charts(generations: list[Any]) -> list[Section | None]:
    """How sure the updates were, how large, and all figures."""
    return [
        _over(
            generations,
            "signal_to_noise",
            title="How sure each update was",
            lead="Signal to noise: how much of an update is the same whichever half of the tasks it is made from. Near "
            "0 the step was mostly chance: more members or more tasks per generation help.",
            y_label="signal / noise",
        ),
        _over(
            generations,
            "sigma",
            title="Sigma",
            lead="How far the members of a generation are spread around the model, per weight.",
            y_label="sigma",
        ),
        _over(
            generations,
            "step",
            title="Step",
            lead="How far each update moved the model: root mean square per weight.",
            y_label="step",
        ),
        _table(generations) if generations else None,
    ]


def course(found: Plain) -> Section | None:
    """The learning curve."""
    generations, validations = found["generations"], found["validations"]
    if not generations:
        return None
    at = tuple(float(g["number"] + 1) for g in generations)
    series = [_with_interval("members, on average", at, [g["reward"] for g in generations])]
    if validations:
        done = tuple(float(v["done"]) for v in validations)
        series.insert(0, _with_interval("validation tasks", done, [v["reward"] for v in validations]))
    series.append(Series("best member (flattered)", at, tuple(g["best"] for g in generations), "other"))
    return Curves(
        title="Reward, generation by generation",
        lead="Members are perturbed copies of the model, so their mean lies below it; the validation tasks say how "
        "good the model itself is. Bands are 95 % intervals; the mark is where the weights were kept.",
        x_label="generation",
        y_label="mean reward",
        series=tuple(series),
        marks=((float(found["best"]), "kept"),),
    )


def _with_interval(name: str, x: tuple[float, ...], estimates: list[Any]) -> Series:
    columns = [tuple(e[key] for e in estimates) for key in ("mean", "low", "high")]
    return Series(name, x, columns[0], "main", columns[1], columns[2])


def _held_out(h: Plain | None) -> Section | None:
    if h is None:
        return None
    rows = (interval("base", h["base"], "mean reward"), interval("tuned", h["tuned"], "mean reward"))
    return Forest(
        title="Base against tuned, on held-out tasks",
        lead=f"The difference on the same tasks with the same random numbers is {signed(h['difference'])}.",
        x_label="mean reward",
        rows=(*rows, interval("tuned − base", h["difference"], "difference")),
        zero=0.0,
    )


def _over(generations: list[Any], key: str, *, title: str, lead: str, y_label: str) -> Section | None:
    known = [(float(g["number"] + 1), g[key]) for g in generations if g[key] is not None]
    if len(known) < 2:
        return None
    series = Series(y_label, tuple(x for x, _ in known), tuple(y for _, y in known))
    return Curves(title=title, lead=lead, x_label="generation", y_label=y_label, series=(series,))


def _table(generations: list[Any]) -> Section:
    columns = ("generation", "reward", "low", "high", "best member", "sigma", "signal / noise", "step", "known, %")
    rows = [
        (
            float(g["number"] + 1),
            g["reward"]["mean"],
            g["reward"]["low"],
            g["reward"]["high"],
            g["best"],
            g["sigma"],
            g["signal_to_noise"],
            g["step"],
            round(100 * g["known"], 1),
        )
        for g in generations
    ]
    return Table(
        title="All generations",
        lead="“Known” is the share of the rollouts that got a reward.",
        columns=columns,
        rows=tuple(rows),
    )
