"""The plain-language account of a run: who answered, why, what it cost, what was done to the world."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_amc.report import words
from langgraph_amc.report.record import Particle, RunRecord, replaced
from langgraph_amc.report.sections import Fact
from langgraph_amc.runtime.result import Check
from langgraph_amc.trajectories.types import Usage

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.S)
LONGEST = 1200
"""Characters of an answer that are shown on top."""


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What one run without any of this takes; ``runs`` were averaged, 0 where it is estimated from steps."""

    calls: float
    tokens: float
    cost: float | None
    runs: int


def plain_run(run: RunRecord) -> PlainRun | None:
    """From the particles that ran from start to end by themselves, else from what a step took on average."""
    whole = [p.usage for p in run.particles if p.parent is None and p.status == "finished" and p.usage.tokens]
    if whole:
        total = sum(whole, Usage())
        n = len(whole)
        return PlainRun(total.calls / n, total.tokens / n, None if total.cost is None else total.cost / n, n)
    steps = sum(p.last - p.first + 1 - (p.first == 0) for p in run.particles)
    spent = sum((p.usage for p in run.particles), Usage())
    if run.winner is None or steps <= 0 or not spent.tokens:
        return None
    part = run.particle(run.winner).last / steps
    return PlainRun(spent.calls * part, spent.tokens * part, None if spent.cost is None else spent.cost * part, 0)


def account(run: RunRecord) -> tuple[str, tuple[Fact, ...]]:
    """A headline, and what to know first."""
    facts = [
        Fact("What was asked", _asked(run)),
        Fact("Answer", _answer(run), strong=True),
        Fact("How it was found", _how(run)),
        Fact("Why this one", _why(run)),
        Fact("What it cost", _cost(run)),
    ]
    if run.status == "resumable":
        again = "Call the app again with the same input, thread and journal"
        facts.append(Fact("How it can go on", f"{again}, or: amc resume {run.id[:12]} FILE.py:APP"))
    if run.effects:
        facts.append(Fact("What was done to the world", _effects(run)))
    return _headline(run), tuple(fact for fact in facts if fact.text)


def _headline(run: RunRecord) -> str:
    if run.winner is None:
        return f"No answer yet: the run is {run.status}"
    what = {
        "finished": "gave the answer",
        "interrupted": "paused, and is waiting for a reply",
        "truncated": "was furthest when the run was stopped",
        "failed": "stands for all, because every one failed",
    }.get(run.particle(run.winner).status or "", "was selected")
    unsure = ", but it is not sure enough" if run.abstained else ""
    return f"Particle {run.winner} {what}{unsure}"


def _asked(run: RunRecord) -> str:
    first = run.particles[0].segments[0] if run.particles else ""
    return _last_said(first, "user", "first")


def _answer(run: RunRecord) -> str:
    return "" if run.winner is None else _last_said("".join(run.particle(run.winner).segments), "assistant", "last")


def _last_said(transcript: str, role: str, where: str) -> str:
    """The last words of a role, cut where they are long."""
    turns = _TURN.findall(transcript)
    said = next((text.strip() for who, text in reversed(turns) if who == role and text.strip()), "")
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} … (the whole is in the tree, at its {where} point)"


def _how(run: RunRecord) -> str:
    """The method, and what it did this time."""
    thinned = [check for check in run.checks if replaced(check)]
    times = words.many(run.started, "time")
    text = f"The agent was run {times} side by side on the same input; each run is a particle."
    if any(check.values for check in run.checks):
        text += " On the way a value function, a model that predicts how well an unfinished run will end, rated them."
    if thinned:
        gone = sum(map(replaced, thinned))
        text += (
            f" After step {_steps(thinned)}, each got a weight for how well it did: light ones were stopped ({gone} in "
            "all), and copies of heavy ones took their place."
        )
        if spared := [check for check in run.checks if not replaced(check)]:
            text += f" After step {_steps(spared)} they were compared too, and nobody was replaced."
    elif run.thoughts:
        gone = sum(p.status == "pruned" for p in run.particles)
        text += (
            f" A search tried {words.many(run.thoughts, 'continuation')} of states it had reached, went on where it "
            f"looked best, and gave {gone} up."
        )
    elif run.checks:
        text += f" They were compared at {words.many(len(run.checks), 'check')}, and nobody was replaced."
    else:
        text += " They were not compared on the way, only at the end."
    if run.stopped:
        text += f" It ended early: {run.stopped}."
    return text


def _steps(checks: Sequence[Check]) -> str:
    return words.listed([str(check.boundary) for check in checks])


def _why(run: RunRecord) -> str:
    if run.winner is None:
        return ""
    winner = run.particle(run.winner)
    others = [p for p in run.particles if p.name != winner.name and p.status == winner.status]
    told = [_chosen(run, winner, others), _before_effects(run, winner), _line(run), _unobserved(winner)]
    return " ".join(filter(None, told))


def _unobserved(winner: Particle) -> str:
    """That nobody knows whether the answer is right."""
    if winner.status != "finished" or winner.reward is not None:
        return ""
    guess = "" if winner.value is None else "; the rating is a prediction"
    return f"Whether the answer is right was not observed{guess}."


def _before_effects(run: RunRecord, winner: Particle) -> str:
    """That its line had been chosen before, to let its effects happen."""
    paused = [p for p in run.ended if p.status == "interrupted" and p not in run.lineage]
    if winner.status == "interrupted" or not paused:
        return ""
    tools = words.listed(sorted({e.tool for e in run.effects if e.state == "committed"})) or "its effects"
    over = words.many(len(paused), "run")
    return f"Its line had been chosen before, over {over} that also paused, to let {tools} happen."


def _line(run: RunRecord) -> str:
    """Where the winner comes from, and how its line fared on the way."""
    first, *copies = run.lineage
    text = ""
    if copies:
        told = words.listed([f"as {p.name} after step {p.forked_at}" for p in copies])
        text = f"Its line began as {first.name} and was copied {told}. "
    path = run.path
    held = [
        share > 1 / len(check.particles)
        for check in run.checks
        for name, share in zip(check.particles, check.shares, strict=False)
        if (name, check.boundary) in path and not run.thoughts
    ]
    if held:
        checks = words.many(len(held), "check")
        text += f"At {sum(held)} of {checks} its line held more than an equal share of the weight."
    return text.strip()


def _chosen(run: RunRecord, winner: Particle, others: list[Particle]) -> str:
    if winner.status == "failed":
        return f"Nobody came to an end: {words.many(len(others) + 1, 'run')} failed, and {winner.name} stands for all."
    ended = {"interrupted": "paused", "truncated": "were cut off before their end"}.get(
        winner.status or "", "came to an end"
    )
    among = f"Of {words.many(len(others) + 1, 'run')} that {ended}"
    if not others:
        return f"{winner.name} is the only one that {ended.replace('were', 'was').replace('their', 'its')}."
    rule = run.selected_by.split(", by=")[-1].rstrip(")")
    for name, what, known in (
        ("best_reward", "the highest reward that was observed", "reward"),
        ("best_value", "the value function's highest rating", "value"),
    ):
        mine = winner.reward if known == "reward" else winner.value
        rest = [(r, p) for p in others if (r := p.reward if known == "reward" else p.value) is not None]
        if rule == name and mine is not None:
            text = f"{among}, {winner.name} has {what}: {words.number(mine)}"
            if not rest:
                return f"{text}, the only one that is known."
            best, runner_up = max(rest, key=lambda pair: pair[0])
            if best == mine:
                equal = [p for r, p in rest if r == mine]
                as_good = f"as {'has' if len(equal) == 1 else 'have'} {words.many(len(equal), 'other')}"
                return f"{text}, {as_good}{_before(winner, equal)}."
            return f"{text}. The next best is {runner_up.name} with {words.number(best)}."
    rules = {
        "vote": "its answer has the most weight behind it, counting everybody who gave the same one",
        "argmax": "it has the most weight",
        "sample": "it was drawn by chance, in proportion to the weights",
    }
    return f"{among}, {winner.name} was chosen by {_rule(run.selected_by, rules.get(rule))}."


def _before(winner: Particle, equal: Sequence[Particle]) -> str:
    """What decided between those with the same rating, where weights tell."""
    weights = [p.log_weight for p in equal if p.log_weight is not None]
    if winner.log_weight is None or len(weights) < len(equal):
        return ""
    if winner.log_weight > max(weights):
        return "; of those, it has the most weight"
    return "; the first of those with the most weight was taken"


def _rule(name: str, meaning: str | None) -> str:
    named = f"the rule “{name}”" if name else "the app's rule"
    return named if meaning is None else f"{named}: {meaning}"


def _cost(run: RunRecord) -> str:
    used = run.usage
    took = [] if run.seconds is None else [words.span(run.seconds)]
    if not used.calls and not used.tokens:
        return " ".join([*(f"{text}." for text in took), "The model reported no usage."])
    text = ", ".join([words.many(used.calls, "model call"), words.used(used), *took])
    text += "." if took else " so far."
    if used.cost is None:
        text += " The price of a model is not known, so there is no sum in dollars."
    judged = used.tokens - sum(p.usage.tokens for p in run.particles)
    if judged > 0:
        text += f" Of these, {words.many(judged, 'token')} went to the models that judged."
    plain = plain_run(run)
    if plain is not None and plain.tokens and len(run.particles) > 1:
        price = "" if not plain.cost else f" ({words.money(plain.cost)})"
        times = used.tokens / plain.tokens
        source = (
            f"the average of {words.many(plain.runs, 'particle')} that ran from start to end"
            if plain.runs
            else "estimated from the average step"
        )
        text += f" One plain run takes about {plain.tokens:,.0f} tokens{price}, {source}."
        text += f" So this cost {times:.1f} times as much."
    return text


def _effects(run: RunRecord) -> str:
    states = Counter(effect.state for effect in run.effects)
    named = {
        "committed": "happened, for the selected line only",
        "dropped": "held back and dropped with the runs that were not selected",
        "held": "still held back",
        "denied": "refused, as the policy of the tool says",
        "failed": "failed",
        "unknown": "begun by a process that died, so that nobody knows whether they happened",
    }
    return "; ".join(f"{words.many(n, 'effect')} {named[state]}" for state, n in states.most_common()) + "."
