"""Reports of runs that change skills: what was tried, on which evidence, what the gate said, and what it brought."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from langgraph_amc.report import words
from langgraph_amc.report.evolution import course, generation_charts
from langgraph_amc.report.reading import Plain, clear, interval, level, signed
from langgraph_amc.report.sections import Change, Changes, Fact, Forest, Interval, Report, Section, Table

_QUOTED = 3
"""Citations of an edit that are shown."""
_DIFF = re.compile(r"```diff\n(.*?)```", re.S)
_TITLES = {
    1: "The new skills are clearly better",
    0: "The new skills are not clearly different",
    -1: "The new skills are clearly worse",
}


def optimization_report(found: Plain) -> Report:
    """From what `Optimization.to_json` gave."""
    h = found["held_out"]
    counts = Counter(trial["outcome"] for trial in found["trials"])
    told = ", ".join(f"{counts[name]} {name}" for name in ("accepted", "rejected", "refused", "stale") if counts[name])
    return Report(
        about="optimisation of skills",
        title=_title(found, h),
        answer=tuple(
            fact
            for fact in (
                Fact(
                    "What was gained", "" if h is None else _gain(h, "old", "new", "with the new skills"), strong=True
                ),
                Fact("How it went", f"{_proposals(found)} ({told or 'none'}); {found['stopped']}."),
                Fact("What it cost", _cost(found)),
            )
            if fact.text
        ),
        sections=tuple(
            section
            for section in (
                _held_out(h, "old", "new", "old skills", "new skills"),
                _library(found["changes"]),
                _trials(found["trials"]),
                _validation(found),
            )
            if section is not None
        ),
        warnings=() if h is None or h["looks"] < 2 else (_LOOKED.format(h["looks"]),),
        facts=(Fact("skills", found["skills"]),),
    )


def coevolution_report(found: Plain) -> Report:
    """From what `Coevolution.to_json` gave."""
    h, n = found["held_out"], len(found["generations"])
    kept = sum(trial["kept"] for trial in found["trials"])
    went = (
        f"{words.many(n, 'generation')}; {found['stopped']}. Of {words.many(len(found['trials']), 'change')} of the "
        f"skills that were tried {kept} were kept. Weights and skills after generation {found['best']} are the result."
    )
    if refused := len(found.get("refused", ())):  # results of before there was this check do not say
        went += f" {words.many(refused, 'proposal')} repeated the reference of a task: never tried."
    sharing: dict[str, int] = found["sharing"]
    told = (
        f"Of {sharing['train']:,} training rollouts {sharing['weights']:,} told the weights, {sharing['gate']:,} the "
        f"gate and {sharing['both']:,} both; {sharing['neither']:,} told nobody."
    )
    gained = [] if h is None else [Fact("What was gained", _gain(h, "base", "tuned", "at the end"), strong=True)]
    sections = [
        _held_out(h, "base", "tuned", "start", "end"),
        course(found),
        _tried(found["trials"]),
        *generation_charts(found["generations"]),
    ]
    return Report(
        about="co-evolution of skills and weights",
        title=f"{words.many(n, 'generation')}, not measured on held-out tasks"
        if h is None
        else f"{('No clear difference', 'Clearly better', 'Clearly worse')[clear(h['difference'])]} after co-evolution",
        answer=(*gained, Fact("How it went", went), Fact("What it cost", _cost(found)), Fact("Shared rollouts", told)),
        sections=tuple(section for section in sections if section is not None),
        facts=(Fact("skills", found["skills"]), Fact("model", found["model"] or "not tuned")),
    )


_LOOKED = "the held-out tasks were looked at for {} libraries: they are no longer fresh"


def _title(found: Plain, h: Plain | None) -> str:
    if not found["changed"]:
        return "No change of the skills was good enough to be taken"
    return (
        "The skills were changed, and not measured on held-out tasks" if h is None else _TITLES[clear(h["difference"])]
    )


def _gain(h: Plain, old: str, new: str, when: str) -> str:
    return (
        f"On {words.many(h['tasks'], 'task')} that were held out, {words.many(h['repeats'], 'run')} each, the app "
        f"earns {level(h[new])} {when}, and {level(h[old])} before: {signed(h['difference'])}."
    )


def _proposals(found: Plain) -> str:
    return f"{words.many(found['rounds'], 'round')}, {words.many(len(found['trials']), 'proposal')}"


def _cost(found: Plain) -> str:
    text = f"{words.many(found['rollouts'], 'rollout')}, {words.many(found['tokens'], 'token')}"
    text += f", {words.span(found['seconds'])}; {found['failed']:,} failed."
    return text + (f" {found['found']:,} further rollouts were kept from earlier calls." if found["found"] else "")


def _held_out(h: Plain | None, old: str, new: str, before: str, after: str) -> Section | None:
    if h is None:
        return None
    rows = (interval(before, h[old], "mean reward"), interval(after, h[new], "mean reward"))
    return Forest(
        title=f"{before.capitalize()} against {after}, on held-out tasks",
        lead="The same tasks with the same seeds. An interval of the difference right of the dashed line means a gain "
        "beyond chance.",
        x_label="mean reward",
        rows=(*rows, interval(f"{after} − {before}", h["difference"], "difference")),
        zero=0.0,
    )


def _library(markdown: str) -> Section | None:
    lines = [line for block in _DIFF.findall(markdown) for line in block.splitlines()]
    if not lines:
        return None
    signs = [(line[0] if line[:1] in "+-" else " ", line[1:] if line[:1] in "+- " else line) for line in lines if line]
    return Changes(
        title="The skills, before and after",
        lead="What a reviewer has to read: every line that was added or removed.",
        changes=(Change("all changes", tuple(signs), accepted=True),),
    )


def _trials(trials: list[Any]) -> Section | None:
    if not trials:
        return None
    order = sorted(trials, key=lambda trial: trial["outcome"] != "accepted")
    return Changes(
        title="Proposals and their evidence",
        lead="Each proposal, the runs it rests on, and what the gate said: a paired test on the same tasks and seeds.",
        changes=tuple(_proposal(trial) for trial in order),
    )


def _proposal(trial: Plain) -> Change:
    edits = trial["proposal"]["edits"]
    lines = [pair for edit in edits for pair in _edited(edit)]
    facts = [Fact("outcome", f"{trial['outcome']}: {trial['reason']}"), *_gate(trial["verdict"])]
    for edit in edits:
        facts += [Fact("reason", edit["reason"])] if edit["reason"] else []
        facts += _cited("runs for it", edit["supports"]) + _cited("runs against it", edit["contradicts"])
    title = f"round {trial['round'] + 1}: {' and '.join(_named(edit) for edit in edits)}"
    return Change(title, tuple(lines), trial["outcome"] == "accepted", tuple(facts))


def _named(edit: Plain) -> str:
    where = f" “{edit['section']}” of" if "section" in edit["op"] and edit["section"] else ""
    return f"{edit['op']}{where} {edit['skill']}"


def _edited(edit: Plain) -> list[tuple[str, str]]:
    removed = edit["op"].startswith("delete")
    head = [(" ", f"{edit['skill']} / {edit['section'] or 'text'}")]
    return head + ([("-", "(deleted)")] if removed else [("+", line) for line in edit["text"].splitlines()])


def _gate(verdict: Plain | None) -> list[Fact]:
    if verdict is None or verdict["difference"] is None:
        return []
    text = (
        f"{verdict['difference']:+.3f}, p = {verdict['p']:.3g}; better on {verdict['wins']}, worse on "
        f"{verdict['losses']} of {words.many(verdict['tasks'], 'task')}"
    )
    return [Fact("gate", text)]


def _cited(label: str, citations: list[Any]) -> list[Fact]:
    if not citations:
        return []
    shown = [f"{c['task']} ({c['particle']})" + (f" “{c['quote']}”" if c["quote"] else "") for c in citations[:_QUOTED]]
    more = f", and {len(citations) - _QUOTED} more" if len(citations) > _QUOTED else ""
    return [Fact(label, ", ".join(shown) + more)]


def _validation(found: Plain) -> Section | None:
    old, new = found["validation_old"], found["validation_new"]
    if old is None or new is None:
        return None
    return Forest(
        title="On the validation tasks",
        lead="The new skills were chosen on these tasks, so they look better here than they are.",
        x_label="mean reward",
        rows=(interval("old skills", old), interval("new skills", new)),
    )


def _tried(trials: list[Any]) -> Section | None:
    known = [t for t in trials if t["verdict"]["difference"] is not None]
    if not trials:
        return None
    if not known:
        rows = tuple((t["since"] + 1, t["until"] + 1, ", ".join(t["edits"]), t["verdict"]["reason"]) for t in trials)
        columns = ("from generation", "to", "edits", "verdict")
        return Table(title="Changes of the skills that were tried", lead="In order.", columns=columns, rows=rows)
    return Forest(
        title="Changes of the skills that were tried",
        lead="Each change against the skills that were there, on the same tasks, seeds and weights; the gate keeps one "
        "whose gain is beyond chance.",
        x_label="difference in mean reward",
        rows=tuple(
            Interval(
                f"{'kept' if t['kept'] else 'dropped'}: {', '.join(t['edits'])} (generations {t['since'] + 1} to "
                f"{t['until'] + 1})",
                t["verdict"]["difference"],
                t["verdict"]["low"],
                t["verdict"]["high"],
            )
            for t in known
        ),
        zero=0.0,
    )
