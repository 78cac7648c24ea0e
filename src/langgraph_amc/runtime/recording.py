"""The record of a run: its checks as they happen, its particles, and what it noticed about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from langgraph.types import Command

from langgraph_amc.runtime.boundaries import before_model
from langgraph_amc.runtime.effects.records import EffectRecord
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.population import AppPopulation
from langgraph_amc.runtime.result import AMCResult, Check, ParticleReport, collapse_warning
from langgraph_amc.runtime.searching import Thought
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.runtime.sharing import cached_by_model, sharing_warnings
from langgraph_amc.smc import (
    SELECTORS,
    Abstain,
    Event,
    Final,
    Resampled,
    Scored,
    Selector,
    Vote,
    Weighted,
    Withheld,
    never,
)
from langgraph_amc.trajectories.types import Trajectory, Usage

PREVIOUS = "__previous__"
"""A channel of functional workflows only."""


def book(checks: list[Check], event: Event[Particle]) -> None:
    """Enter an event of the filter into the checks."""
    if isinstance(event, Scored):
        names = tuple(p.name for p in event.particles)
        checks.append(Check(event.boundary, names, event.values, (), 0.0, 1.0))
    elif isinstance(event, Weighted) and event.boundary is not None:
        live = [i for i, p in enumerate(event.particles) if not p.done]
        if not live:
            return
        names = tuple(event.particles[i].name for i in live)
        values = checks.pop().values if checks and not checks[-1].log_weights else ()
        weights = tuple(event.log_weights[i] for i in live)
        checks.append(Check(event.boundary, names, values, weights, event.ess * len(live), event.sharpness))
    elif isinstance(event, Resampled):
        past = tuple(p.name for p in event.particles[len(event.particles) - event.past :])
        checks[-1] = replace(checks[-1], ancestors=event.ancestors, past=past)
    elif isinstance(event, Withheld):
        checks[-1] = replace(checks[-1], withheld=event.reason)


def missing_scores(population: AppPopulation, checks: Sequence[Check]) -> int:
    """How often the value function gave no score."""
    return sum(math.isnan(value) for check in checks for value in check.values) + population.unscored


def report(particle: Particle, final: Final[Particle] | None) -> ParticleReport:
    """One particle at the end; ``final`` is ``None`` for one that was pruned."""
    log_weight = -np.inf if final is None else final.log_weight
    record = particle.record
    run_id = particle.launch.identity(particle.name).run_id
    trajectory = Trajectory(
        run_id=run_id,
        particle=particle.name,
        segments=record.segments or ("",),
        rewards=record.rewards,
        outcome=particle.outcome,
        status=particle.status or "pruned",
        parent=None if particle.parent is None else particle.parent.name,
        forked_at=particle.forked_at,
        log_weight=None if final is None else float(log_weight),
        values=_padded(particle.values, len(record.segments)),
        usage=particle.calls.usage,
        fingerprint="" if particle.launch.transcript is None else particle.launch.transcript.fingerprint,
        error=None if particle.error is None else f"{type(particle.error).__name__}: {particle.error}",
    )
    reward = None if particle.outcome is None else particle.observed
    value = particle.values[-1] if particle.values else None
    return ParticleReport(trajectory, particle.output, float(log_weight), reward, value)


def _padded(values: tuple[float | None, ...], states: int) -> tuple[float | None, ...]:
    """One value per state; last states are not scored where the run was pruned, or its outcome was observed."""
    return (*values, *(None,) * (states - len(values)))[:states] if values else ()


def result(
    population: AppPopulation,
    settings: Settings,
    winner: Particle,
    reports: Mapping[str, ParticleReport],
    checks: Sequence[Check],
    log_evidence: float | None,
    seconds: float,
    stopped: str | None,
    tree: tuple[Thought, ...],
) -> AMCResult:
    """The record of a run whose particles have all ended."""
    kept = [p for p in population.born if p.status != "pruned"]
    usage = sum((*(p.calls.usage for p in population.born), *population.judging), Usage())
    return AMCResult(
        reports[winner.name].trajectory.run_id,
        population.launch.seed,
        reports[winner.name],
        tuple(reports[p.name] for p in kept),
        tuple(reports[p.name] for p in population.born if p.status == "pruned"),
        tuple(checks),
        log_evidence,
        usage,
        seconds,
        tuple(_warnings(population, settings, checks)),
        _effects(population),
        population.founders,
        stopped,
        population.abstention is not None,
        rule_name(settings.select),
        tree,
    )


def rule_name(select: Selector) -> str:
    """What ``wrap(select=…)`` calls a rule; the name of a function of the user's own."""
    if isinstance(select, Abstain):
        return f"abstain({select.below:g}, by={rule_name(select.by)})"
    if isinstance(select, Vote):
        return "vote"
    known = next((name for name, rule in SELECTORS.items() if rule is select), None)
    return known or str(getattr(select, "__name__", type(select).__name__))


def _effects(population: AppPopulation) -> tuple[EffectRecord, ...]:
    """What became of each effect; clones repeat what their parents did before they parted."""
    records = [r for p in population.born if p.effects is not None for r in p.effects.records]
    return tuple({(r.key, r.state): r for r in records}.values())


def _warnings(population: AppPopulation, settings: Settings, checks: Sequence[Check]) -> list[str]:
    # in a search founders may be cut before they differ
    founders = [p for p in population.born if p.parent is None or settings.search is not None]
    found: list[str] = []
    if population.abstention is not None:
        found.append(f"no answer is good enough, this is the best there was: {population.abstention.why}")
    collapse = collapse_warning(
        [p.record.segments for p in founders],
        [p.calls.parameters for p in founders],
        cached_by_model(founders),
    )
    if collapse:
        found.append(collapse)
    if problem := next((p.record.problem for p in population.born if p.record.problem), None):
        found.append(f"transcripts end early, because {problem}")
    found.extend(sharing_warnings(population))
    compared = settings.value is not None and settings.particles > 1
    compared = compared and (settings.search is not None or settings.resample != never())
    answered = isinstance(population.input, Command) and population.input.resume is not None
    if compared and not checks and not answered:  # what is left after an interrupt may be short
        found.append(f"no boundary was reached, so nothing was resampled (best-of-N): {_why_no_check(population)}")
    if missing := missing_scores(population, checks):
        found.append(
            f"{missing} score(s) of the value function are missing: their particles kept their weights relative to the "
            "mean of the others, and were not compared"
        )
    if population.unparked:
        name, why = next(iter(population.unparked.items()))
        found.append(
            f"nobody can go back to the states of {len(population.unparked)} particle(s), the first {name}: {why}"
        )
    found.extend(
        f"particle {p.name} came back from the journal without its sessions' objects, so the next run does not begin "
        f"in its world: {p.effects.unrecovered}"
        for p in population.born
        if p.effects is not None and p.effects.unrecovered is not None
    )
    account = population.launch.account
    if population.unaffordable is not None:
        found.append(f"the value function was not asked to the end, because {population.unaffordable}")
    stopped = sum(p.status == "truncated" for p in population.born)
    if account is not None and account.refused is not None and (stopped or population.unaffordable is None):
        found.append(f"the budget ended {stopped} particle(s): {account.refused}")
    if account is not None:
        found.extend(account.overruns)
    if population.unrewarded:
        found.append(
            f"{len(population.unrewarded)} reward(s) are missing, the first because {population.unrewarded[0]}"
        )
    if failed := [p for p in population.born if p.status == "failed"]:
        found.append(
            f"{len(failed)} particle(s) failed, the first with {type(failed[0].error).__name__}: {failed[0].error}"
        )
    return found


def _why_no_check(population: AppPopulation) -> str:
    launch = population.launch
    if launch.boundary is not before_model:
        return "no run came to the given boundary often enough for the schedule: check boundary=… and resample=…"
    paths: set[tuple[str, ...]] = set().union(*(p.calls.paths for p in population.born))
    if not any(p.calls.nodes for p in population.born):
        return "no model was called through LangChain, so name the node before which to compare: boundary='…'"
    if not paths:  # it has ended in an earlier process
        return "runs called the model too few times for the schedule, or in a subgraph: name the point, boundary='…'"
    # the tasks of a functional workflow look like subgraphs, and are none
    inside = sorted("/".join(path) for path in paths if len(path) > 1 and PREVIOUS not in launch.app.channels)
    if inside and not any(len(path) == 1 for path in paths):
        points = inside[0] if len(inside) == 1 else inside
        return (
            f"the model is called inside a subgraph ({', '.join(inside)}), which is a single step of this app: name "
            f"the point, boundary={points!r}, or all of that kind, boundary='**/{inside[0].rsplit('/')[-1]}'"
        )
    return "runs called the model too few times for the schedule: give a denser one, e.g. resample=every(1)"
