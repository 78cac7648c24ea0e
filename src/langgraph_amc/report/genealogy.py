"""The tree of a run: every state of every particle, its share of the weight, and why it lived or died."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from langgraph_amc.report import words
from langgraph_amc.report.layout import rows
from langgraph_amc.report.record import Particle, RunRecord
from langgraph_amc.report.sections import Branch, Genealogy, State, Weighing
from langgraph_amc.runtime.result import Check
from langgraph_amc.smc.weights import LogWeights


def genealogy(run: RunRecord) -> Genealogy:
    """The tree, with its branches and its checks."""
    # a search scores its particles, and weighs nobody
    weighings = tuple(_weighing(check) for check in run.checks if check.log_weights and not run.thoughts)
    final = _final_shares(run)
    line = {p.name for p in run.lineage}
    return Genealogy(
        title="The tree of the run",
        lead=_lead(run),
        winner=run.winner,
        states=_states(run, weighings, final),
        branches=tuple(_branch(p, final.get(p.name), p.name in line) for p in run.particles),
        weighings=weighings,
    )


def _lead(run: RunRecord) -> str:
    return (
        "Each line is one run of the agent, a particle; it moves right with every step. A thick line holds much of the "
        "weight, its colour is the value, that is how well the run was expected to end. Faded lines were stopped. "
        + ("The bold line along the top is the one that answered. " if run.winner else "")
        + "Choose a point to see what the agent saw, did and got there."
    )


def _weighing(check: Check) -> Weighing:
    counts = [check.ancestors.count(i) for i in range(len(check.particles))] if check.ancestors else []
    return Weighing(
        check.boundary,
        check.particles,
        tuple(None if math.isnan(v) else v for v in check.values),
        check.shares,
        check.ess,
        check.sharpness,
        tuple(counts),
        check.withheld,
    )


def _final_shares(run: RunRecord) -> dict[str, float]:
    known = {p.name: p.log_weight for p in run.particles if p.log_weight is not None}
    if not known:
        return {}
    return dict(zip(known, LogWeights(np.array(list(known.values()))).shares.tolist(), strict=True))


def _branch(p: Particle, share: float | None, selected: bool) -> Branch:
    return Branch(
        p.name,
        p.parent,
        p.forked_at,
        p.status or "running",
        p.last,
        p.value,
        p.reward,
        share,
        p.usage.calls,
        p.usage.tokens,
        p.usage.cost,
        selected,
        p.error,
    )


@dataclass(frozen=True, slots=True)
class _Around:
    """What a state's story is told from."""

    run: RunRecord
    at: Mapping[tuple[str, int], tuple[Weighing, int]]
    """The check of a particle at a step, and its place there."""
    clones: Mapping[tuple[str, int], list[str]]
    on_path: Set[tuple[str, int]]
    final: Mapping[str, float]
    """Shares of those that have ended."""


def _states(run: RunRecord, weighings: Sequence[Weighing], final: Mapping[str, float]) -> tuple[State, ...]:
    around = _around(run, weighings, final)
    keys = [(p, t) for p in run.particles for t in range(p.first, p.last + 1)]
    keys.sort(key=lambda key: key[1])  # parents first
    ids = {(p.name, t): i for i, (p, t) in enumerate(keys)}
    parents = [_parent(p, t) for p, t in keys]
    selected = [(p.name, t) in around.on_path for p, t in keys]
    lanes = rows([None if k is None else ids[k] for k in parents], [t for _, t in keys], selected)
    carried: dict[str, float] = {}
    found = []
    for i, (p, t) in enumerate(keys):
        weighed = around.at.get((p.name, t))
        share = _share(p, t, around, carried)
        fate, why = _fate(p, t, around)
        parent = parents[i]
        found.append(
            State(
                id=_id(p.name, t),
                parent=None if parent is None else _id(*parent),
                particle=p.name,
                step=t,
                lane=lanes[i],
                text=p.segments[t],
                value=p.values[t] if t < len(p.values) else None,
                reward=p.rewards[t - 1] if 0 < t <= len(p.rewards) else None,
                share=share,
                weighed=weighed is not None,
                selected=selected[i],
                fate=fate,
                why=why,
            )
        )
    return tuple(found)


def _around(run: RunRecord, weighings: Sequence[Weighing], final: Mapping[str, float]) -> _Around:
    at = {(name, w.step): (w, k) for w in weighings for k, name in enumerate(w.particles)}
    clones: dict[tuple[str, int], list[str]] = {}
    for p in run.particles:
        if p.parent is not None and p.forked_at is not None:
            clones.setdefault((p.parent, p.forked_at), []).append(p.name)
    return _Around(run, at, clones, run.path, final)


def _id(particle: str, step: int) -> str:
    return f"{particle}@{step}"


def _parent(p: Particle, t: int) -> tuple[str, int] | None:
    if t > p.first:
        return p.name, t - 1
    return None if p.parent is None else (p.parent, t - 1)


def _share(p: Particle, t: int, around: _Around, carried: dict[str, float]) -> float:
    """Its share where it is weighed, at its end, else what it had: after a resampling all who go on have the same."""
    weighed = around.at.get((p.name, t))
    if weighed is None:
        if t == p.last and p.name in around.final:
            return around.final[p.name]
        start = carried.get(p.parent or "", 1 / max(1, around.run.started))
        return carried.setdefault(p.name, start)
    weighing, place = weighed
    share = weighing.shares[place]
    assert share is not None
    carried[p.name] = 1 / sum(weighing.offspring) if weighing.offspring else share
    for name in around.clones.get((p.name, t), ()):
        carried[name] = carried[p.name]
    return share


def _fate(p: Particle, t: int, around: _Around) -> tuple[str, str]:
    """What became of a particle at a state, and why."""
    weighed = around.at.get((p.name, t))
    told = "" if weighed is None else _weighed(p, t, *weighed, around)
    if t < p.last:
        fate = "copied" if (p.name, t) in around.clones else "went on"
        return fate, told
    fate, end = _end(p, around, told)
    return fate, " ".join(filter(None, [told, end]))


def _weighed(p: Particle, t: int, weighing: Weighing, place: int, around: _Around) -> str:
    """What a check made of it."""
    share = weighing.shares[place]
    assert share is not None
    held = f"At this check it held {words.share(share)} of the weight"
    among = len(weighing.particles)
    if not weighing.offspring:
        why = f", because {weighing.withheld}" if weighing.withheld else ""
        return f"{held}, one of {among} runs that were compared. Nobody was replaced here{why}."
    held += f"; an equal share would be {words.share(1 / among)}"
    offspring = weighing.offspring[place]
    if offspring == 0:
        return f"{held}. Resampling gave its place to a copy of a run with more weight, and it was stopped."
    if offspring == 1:
        return f"{held}. It kept its place and went on."
    clones = around.clones.get((p.name, t), [])
    named = f": {words.listed(clones)}" if clones else ""
    copies = words.many(offspring - 1, "copy", "copies")
    return f"{held}. It went on, and {copies} of it took the place of others{named}."


def _end(p: Particle, around: _Around, told: str) -> tuple[str, str]:
    run = around.run
    if p.status == "pruned":
        why = "" if told else f"It was stopped: {run.stopped or 'it was no longer needed'}."
        return "pruned", why
    if p.name == run.winner:
        return "selected", _selected(p)
    if p.status == "failed":
        return "failed", f"It failed and got no weight any more: {p.error}."
    if p.status == "truncated":
        return "truncated", _cut_off(p)
    if p.status is None:
        return "running", "It can still run on."
    if p.status == "interrupted":
        if any(p.name == parent.name for parent in run.lineage):
            return "copied", "It paused before an effect and was chosen: the effect happened, and its line went on."
        return "interrupted", "It paused before an effect or a question, and another one was chosen."
    return "finished", _ended(p, "Another one was selected.")


def _selected(p: Particle) -> str:
    chosen = "This is the one that was selected."
    if p.status == "failed":
        return f"It failed: {p.error}. Every one failed, and this one stands for all."
    if p.status == "truncated":
        return f"{_cut_off(p)} {chosen}"
    if p.status == "interrupted":
        return f"It paused before an effect or a question. {chosen}"
    return _ended(p, chosen)


def _cut_off(p: Particle) -> str:
    return f"It was stopped before its end, by a budget or the limit on steps{_because(p.error)}."


def _ended(p: Particle, chosen: str) -> str:
    known = []
    if p.reward is not None:
        known.append(f"the reward {words.number(p.reward)}")
    if p.value is not None:
        known.append(f"the value {words.number(p.value)}")
    what = f" with {words.listed(known)}" if known else ""
    return f"It came to its end{what}. {chosen}"


def _because(error: str | None) -> str:
    return "" if error is None else f" ({error})"
