"""The report of one run."""

from __future__ import annotations

import json
from typing import Any

from langgraph_amc.report import words
from langgraph_amc.report.answer import account, plain_run
from langgraph_amc.report.genealogy import genealogy
from langgraph_amc.report.record import Particle, RunRecord, of_journal, of_result, replaced
from langgraph_amc.report.sections import (
    Bar,
    Bars,
    Curves,
    Fact,
    Genealogy,
    Report,
    Role,
    Section,
    Series,
    Stack,
    Table,
)
from langgraph_amc.runtime.journal import RunInfo
from langgraph_amc.runtime.result import AMCResult
from langgraph_amc.value.metrics import calibration, within_task_ranking

_FEW = 10
"""States with a known end, below which a calibration says nothing."""


def run_report(run: AMCResult | RunInfo) -> Report:
    """The report of a result, or of what `Journal.show` tells with transcripts."""
    record = of_result(run) if isinstance(run, AMCResult) else of_journal(run)
    title, answer = account(record)
    tree = genealogy(record)
    sections: list[Section | None] = [
        tree,
        _values(record),
        _weights(record, tree),
        _ess(tree),
        *_quality(record, tree),
        _costs(record),
        _particles(tree),
        _effects(record),
    ]
    facts = {"run": record.id, "app": record.app, "seed": str(record.seed), "status": record.status}
    return Report(
        about="run of an agent as particles",
        title=title,
        answer=answer,
        sections=tuple(section for section in sections if section is not None),
        warnings=record.warnings,
        facts=tuple(Fact(k, v) for k, v in facts.items() if v),
    )


def _resamplings(tree: Genealogy) -> tuple[tuple[float, str], ...]:
    return tuple(
        (float(w.step), f"resampled: {sum(n > 0 for n in w.offspring)} of {len(w.offspring)} go on")
        for w in tree.weighings
        if 0 in w.offspring
    )


def _values(run: RunRecord) -> Section | None:
    line = {p.name for p in run.lineage}
    drawn = []
    for p in sorted(run.particles, key=lambda p: (p.name in line, p.name == run.winner)):
        first = max(0, p.first - 1)  # from where it left its parent
        known = [(t, v) for t, v in enumerate(p.values) if v is not None and t >= first]
        if p.name == run.winner:
            known = [(t, v) for t, v in enumerate(p.values) if v is not None]
        if known:
            role: Role = "main" if p.name == run.winner else "faded" if p.status == "pruned" else "other"
            drawn.append(Series(p.name, tuple(t for t, _ in known), tuple(v for _, v in known), role))
    if not drawn:
        return None
    winner = f" The bold line is the whole path of {run.winner}." if run.winner else ""
    return Curves(
        title="Values on the way",
        lead="What the value function expected of each run: how much reward was still to come. Faded lines were "
        f"stopped.{winner}",
        x_label="step",
        y_label="value",
        series=tuple(drawn),
        marks=tuple((float(c.boundary), "resampled") for c in run.checks if replaced(c)),
    )


def _weights(run: RunRecord, tree: Genealogy) -> Section | None:
    if not tree.weighings:
        return None
    names = tuple(dict.fromkeys(name for w in tree.weighings for name in w.particles))
    path = run.path
    return Stack(
        title="Weights at each check",
        lead="How the weight was spread when the runs were compared. One large block means that one run was far ahead."
        + (" The marked block is the line that was selected." if run.winner else ""),
        x_label="step",
        x=tuple(float(w.step) for w in tree.weighings),
        names=names,
        shares=tuple(
            tuple(dict(zip(w.particles, w.shares, strict=True)).get(name) for name in names) for w in tree.weighings
        ),
        main=tuple(next((n for n in w.particles if (n, w.step) in path), None) for w in tree.weighings),
    )


def _ess(tree: Genealogy) -> Section | None:
    if not tree.weighings:
        return None
    steps = tuple(float(w.step) for w in tree.weighings)
    return Curves(
        title="How many runs still counted",
        lead="The effective sample size (ESS): with equal weights it is the number of runs, and it is 1 when one run "
        "has all the weight. Vertical lines mark where runs were replaced.",
        x_label="step",
        y_label="runs",
        series=(
            Series("runs compared", steps, tuple(float(len(w.particles)) for w in tree.weighings), "reference"),
            Series("effective sample size", steps, tuple(w.ess for w in tree.weighings)),
        ),
        marks=_resamplings(tree),
        y_range=(0.0, max(len(w.particles) for w in tree.weighings)),
    )


def _quality(run: RunRecord, tree: Genealogy) -> list[Section]:
    """How right the values were, as far as the outcomes are known."""
    known = [
        (p, t, v, p.reward - sum(p.rewards[:t]))
        for p in run.particles
        if p.reward is not None
        for t, v in enumerate(p.values)
        # of a finished run whose outcome is known there is nothing left to expect
        if v is not None and p.first <= t < p.last
    ]
    if len(known) < _FEW or len({round(r, 9) for *_, r in known}) < 2:
        return []
    values, returns = [k[2] for k in known], [k[3] for k in known]
    low, high = min(0.0, *values, *returns), max(1.0, *values, *returns)
    graded = not set(returns) <= {0.0, 1.0}
    ranking = within_task_ranking(values, returns, [0] * len(known), steps=[k[1] for k in known], graded=graded)
    bins, error = calibration(values, returns, low=low, high=high, bins=5)
    text = f"Points near the diagonal mean that values were right on average; they were off by {error:.2f}. "
    if ranking.value is not None:
        text += (
            f"Among runs at the same step, the better one had the higher value in {words.share(ranking.value)} of "
            f"{words.many(ranking.pairs, 'pair')} (AUC; half would be chance)."
            if ranking.metric == "auc"
            else f"Ranking of runs at the same step, Kendall's tau: {ranking.value:.2f} over "
            f"{words.many(ranking.pairs, 'pair')} (0 would be chance)."
        )
    return [
        Curves(
            title="Were the values right?",
            lead=text,
            x_label="value that was given",
            y_label="reward that came, on average",
            series=(
                Series("perfectly calibrated", (low, high), (low, high), "reference"),
                Series("this run", tuple(b.predicted for b in bins), tuple(b.observed for b in bins), line=False),
            ),
            y_range=(low, high),
        )
    ]


def _costs(run: RunRecord) -> Section | None:
    spenders = [p for p in run.particles if p.usage.tokens]
    if not spenders:
        return None
    line = {p.name for p in run.lineage}
    plain = plain_run(run)

    def role(p: Particle) -> Role:
        return "main" if p.name in line else "faded" if p.status == "pruned" else "other"

    bars = [
        Bar(
            p.name,
            (float(p.usage.input_tokens), float(p.usage.output_tokens)),
            role(p),
            words.money(p.usage.cost) if p.usage.cost else "",
        )
        for p in spenders
    ]
    judged = run.usage.input_tokens - sum(p.usage.input_tokens for p in run.particles)
    said = run.usage.output_tokens - sum(p.usage.output_tokens for p in run.particles)
    if judged + said > 0:
        bars.append(Bar("judging", (float(judged), float(said))))
    return Bars(
        title="Tokens per branch",
        lead="What each particle took of the models itself, from where it left its parent."
        + (" Bold ones are the selected one and those it was copied from." if len(line) > 1 else "")
        + ("" if plain is None else " The line marks what one plain run takes."),
        unit="tokens",
        parts=("input", "output"),
        bars=tuple(bars),
        reference=None if plain is None else ("one plain run", plain.tokens),
    )


def _particles(tree: Genealogy) -> Section:
    rows = [
        (
            b.name,
            "" if b.parent is None else f"{b.parent}, step {b.forked_at}",
            b.status,
            float(b.steps),
            b.value,
            b.reward,
            None if b.share is None else round(100 * b.share, 1),
            float(b.tokens),
            b.cost or None,
            b.error or "",
        )
        for b in tree.branches
    ]
    columns = (
        "particle",
        "copied from",
        "status",
        "steps",
        "value",
        "reward",
        "weight, %",
        "tokens",
        "cost, $",
        "error",
    )
    shown = [k for k, _ in enumerate(columns) if any(row[k] not in (None, "") for row in rows)]
    return Table(
        title="All particles",
        lead="Value is the last rating, reward what was observed at the end; a gap means that it is not known.",
        columns=tuple(columns[k] for k in shown),
        rows=tuple(tuple(row[k] for k in shown) for row in rows),
        strong=tuple(k for k, b in enumerate(tree.branches) if b.name == tree.winner),
    )


def _effects(run: RunRecord) -> Section | None:
    if not run.effects:
        return None
    return Table(
        title="Effects on the world",
        lead="Tool calls with a policy. Those that change something are held back until their run is selected: "
        "committed ones happened once, dropped ones never did.",
        columns=("tool", "arguments", "asked for by", "policy", "became", "key"),
        rows=tuple((e.tool, _text(e.arguments), e.particle, e.policy, e.state, e.key) for e in run.effects),
        strong=tuple(k for k, e in enumerate(run.effects) if e.state == "committed"),
    )


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
