"""The verdict in words: the first rule that applies, its reason in numbers, and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from langgraph_amc.evaluate.advice.gain import Column, Gain
from langgraph_amc.evaluate.advice.measure import Diversity, Rewards, ToolUse
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.value.metrics import Ranking

Answer = Literal["will help", "will not help", "cannot tell"]
Reason = Literal[
    "gain",
    "few tasks",
    "few runs",
    "hopeless",
    "saturated",
    "no diversity",
    "few boundaries",
    "irreversible early",
    "no value function",
    "blind value",
    "recoverable",
    "verifier",
    "no gain",
    "uncertain",
]

FEWEST_TASKS = 8
ALIKE = 0.7
"""Share of pairs of identical runs from which on a policy counts as one without diversity."""
UNDECIDED = 0.25
"""Share of the outcome that is decided half-way, below which mid-run states hardly differ."""
SMALL = 2.5
"""Gains below so many times what counts are small."""
MARGIN = 0.1
"""How far above chance a ranking must possibly be for V not to count as blind (in AUC; twice as much in tau)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to expect, and why.

    Attributes
    ----------
    because: one sentence with the numbers it rests on.
    attempt: what to try, most promising first.
    """

    answer: Answer
    reason: Reason
    because: str
    attempt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the verdict looks at; see `measure` and `gain`.

    Attributes
    ----------
    runs_per_task: fewest. highest: the best reward seen. worth: the least gain that counts, in units of reward.
    middle: a typical run's steps, halved.
    """

    tasks: int
    runs_per_task: int
    particles: int
    observable: bool
    worth: float
    highest: float
    rewards: Rewards | None
    diversity: Diversity | None
    tools: tuple[ToolUse, ...]
    gain: Gain | None
    ranking: Ranking | None
    ranking_final: Ranking | None
    middle: int
    first_check: float

    @property
    def column(self) -> Column | None:
        """The one that counts."""
        if self.gain is None:
            return None
        return self.gain.observable if self.observable else self.gain.selected

    @property
    def best(self) -> Estimate | None:
        """Best-of-N as it can be had."""
        if self.rewards is None:
            return None
        return self.rewards.best if self.observable else self.rewards.chosen or self.rewards.best

    @property
    def half_decided(self) -> float:
        """Share of the outcome that is decided half-way."""
        assert self.gain is not None
        return self.gain.decided[min(self.middle, len(self.gain.decided) - 1)]


def verdict(evidence: Evidence) -> Verdict:
    """The first that applies."""
    return next(found for rule in _RULES for found in rule(evidence))


def tasks_needed(tasks: int, gain: Estimate, worth: float) -> int:
    """So many tasks that the interval of a gain of this size would exclude 0, or be as narrow as what counts."""
    half = (gain.high - gain.low) / 2
    target = max(abs(gain.mean), worth)
    return max(tasks + 1, math.ceil(tasks * (half / target) ** 2))


def _too_little(e: Evidence) -> Iterator[Verdict]:
    if e.runs_per_task < 2 or e.rewards is None:
        yield Verdict(
            "cannot tell",
            "few runs",
            f"the tasks have {e.runs_per_task} independent run(s) each, and how runs of one task differ is what counts",
            (f"run {max(FEWEST_TASKS, e.tasks)} tasks {e.particles} times each",),
        )
    elif e.tasks < FEWEST_TASKS:
        yield Verdict(
            "cannot tell",
            "few tasks",
            f"{e.tasks} task(s) say too little",
            (f"run at least {FEWEST_TASKS - e.tasks} more tasks, {e.particles} times each; 20 to 50 are a good pilot",),
        )


def _nothing_varies(e: Evidence) -> Iterator[Verdict]:
    r = e.rewards
    assert r is not None
    alike = e.diversity is not None and e.diversity.same_run >= ALIKE
    if alike:
        assert e.diversity is not None
        yield Verdict(
            "will not help",
            "no diversity",
            f"{e.diversity.same_run:.0%} of the pairs of runs of one task are the same run: there is nothing to choose "
            "among",
            (
                "raise the model's temperature, e.g. to 1",
                "leave out a fixed seed, and switch off caches in front of the model",
            ),
        )
    elif e.highest <= 0 or r.hopeless >= 0.9:
        yield Verdict(
            "will not help",
            "hopeless",
            f"hardly any run succeeds: one run earns {r.single.mean:.3f}, the best of {r.best_of} {r.best.mean:.3f}, "
            "and no resampling makes what the policy never does",
            ("a stronger model, better tools or prompt", "easier tasks, or a reward that counts parts of a success"),
        )


def _saturated(e: Evidence) -> Iterator[Verdict]:
    r, best = e.rewards, e.best
    assert r is not None
    assert best is not None
    if e.highest - best.mean < e.worth:
        yield Verdict(
            "will not help",
            "saturated",
            f"best-of-{r.best_of} earns {best.mean:.3f} of {e.highest:g} already, one run {r.single.mean:.3f}",
            (f"best-of-N with fewer runs than {r.best_of}", "harder tasks, if there are such in production"),
        )


def _structure(e: Evidence) -> Iterator[Verdict]:
    if e.gain is not None and e.gain.checks < 1:
        yield Verdict(
            "will not help",
            "few boundaries",
            f"a run has {e.gain.checks:.1f} boundaries at which it could be resampled: that is best-of-N",
            (
                ("a denser schedule, e.g. resample=every(1), and " if e.first_check > 1 else "")
                + "boundary='step' or the name of a node",
                "best-of-N, which `wrap(…, resample=never())` is",
            ),
        )
    for tool in e.tools:
        first = tool.first_step
        if tool.policy == "commit" and tool.runs >= 0.5 and first is not None and first <= e.first_check:
            yield Verdict(
                "will not help",
                "irreversible early",
                f"{tool.runs:.0%} of the runs call {tool.name}, which cannot be undone, in their step {first:.0f} "
                f"(median), before particles are compared first: one of them would have to be chosen there",
                (
                    f"let the agent call {tool.name} later, e.g. after the work that can be undone",
                    f"a sandbox or a dry run of {tool.name}, with the policy 'stateful' or 'pure'",
                ),
            )


def _by_gain(e: Evidence) -> Iterator[Verdict]:
    column, gain = e.column, e.gain
    if e.ranking is None:
        assert e.rewards is not None
        yield Verdict(
            "cannot tell",
            "no value function",
            f"there is no value function to steer by; best-of-{e.rewards.best_of} has {e.rewards.headroom} over one "
            "run, where the reward can be observed",
            ("train one on these runs (`amc train-value`), or give a judge, and advise again",),
        )
        return
    if column is not None and gain is not None and column.gain.low > 0 and column.gain.mean >= e.worth:
        yield Verdict(
            "will help",
            "gain",
            f"AMC is expected to earn {column.amc:.3f} against {column.best_of_n.mean:.3f} of best-of-"
            f"{gain.particles}: {_signed(column.gain)} at {gain.spent:.2f} times its cost",
            ("`amc compare` on tasks that V has not learned from",),
        )


def is_blind(ranking: Ranking) -> bool:
    """Whether V does not rank the states of one task, as far as that can be told."""
    chance, margin = _scale(ranking)
    low, high = ranking.low, ranking.high
    return low is None or high is None or (low <= chance + 0.3 * margin and high < chance + margin)


def _scale(ranking: Ranking) -> tuple[float, float]:
    """What chance is, and `MARGIN`, in a ranking's own measure."""
    return (0.5, MARGIN) if ranking.metric == "auc" else (0.0, 2 * MARGIN)


def _blind(e: Evidence) -> Iterator[Verdict]:
    assert e.ranking is not None
    chance, margin = _scale(e.ranking)
    blind, last = is_blind(e.ranking), e.ranking_final
    small = e.column is None or e.column.gain.mean < SMALL * e.worth or e.column.gain.high < e.worth
    reads_ends = last is not None and last.low is not None and last.low > chance + margin
    if e.gain is not None and reads_ends and (blind or small) and e.half_decided < UNDECIDED:
        yield Verdict(
            "will not help",
            "recoverable",
            f"half-way through a run {e.half_decided:.0%} of its outcome is decided (V ranks states there with "
            f"{_metric(e.ranking)}, finished runs with {_metric(last)}): mistakes can be made good, so there is "
            "little to resample away",
            (
                "best-of-N, which costs the same",
                "resample late, e.g. at(…) near the end of a run",
                "longer or harder tasks, in which mistakes are final",
            ),
        )
    elif blind:
        yield Verdict(
            "will not help",
            "blind value",
            f"V does not rank the states of one task: {_metric(e.ranking)}, chance is {chance:g}",
            (
                "more runs to learn from, or a larger base model (`amc train-value`)",
                "a judge that knows the task (`value=` takes any function of the transcript)",
                "tool results and intermediate states in the transcript, so that V can see mistakes",
            ),
        )


def _no_gain(e: Evidence) -> Iterator[Verdict]:
    column, gain = e.column, e.gain
    assert column is not None
    assert gain is not None
    if column.gain.high < e.worth:
        reason: Reason = "verifier" if e.observable else "no gain"
        because = f"AMC is expected to gain {_signed(column.gain)} over best-of-{gain.particles}"
        if e.observable:
            because += f", which earns {column.best_of_n.mean:.3f} with a reward that tells which run succeeded"
        yield Verdict(
            "will not help",
            reason,
            because,
            (
                "best-of-N" + (" with the reward" if e.observable else ""),
                "fewer particles: steering pays where N is small",
            ),
        )
    else:
        more = tasks_needed(e.tasks, column.gain, e.worth) - e.tasks
        yield Verdict(
            "cannot tell",
            "uncertain",
            f"AMC is expected to gain {_signed(column.gain)} over best-of-{gain.particles} on {e.tasks} tasks: that "
            "may be nothing",
            (f"about {more} more tasks, {e.particles} runs each", "a V that ranks better: it raises the gain itself"),
        )


_RULES: tuple[Callable[[Evidence], Iterator[Verdict]], ...] = (
    _too_little,
    _nothing_varies,
    _saturated,
    _structure,
    _by_gain,
    _blind,
    _no_gain,
)


def _signed(e: Estimate) -> str:
    return f"{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"


def _metric(r: Ranking | None) -> str:
    if r is None or r.value is None:
        return "no AUC, as no task has states with different returns"
    name = "AUC" if r.metric == "auc" else "tau"
    return f"{name} {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"
