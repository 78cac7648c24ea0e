"""Preference pairs: what siblings did differently at one point, and what came of it.

The particles of an AMC run are a tree: they have everything in common up to where they were cloned, or up to where the
policy first answered them differently. Each fork of that tree at which the policy speaks is one prompt with several
answers, whose worth is known from the returns of all runs that went on from them. That is the data of DPO (Rafailov et
al. 2023), and a judge of preferences is not needed.

What resampling does to such data, and what is done about it:

* A pruned particle, and one that a limit broke off, has no return. It is not a failure and is not counted as one; an
  answer all of whose runs were pruned has no known worth and is in no pair.
* What looked good had more descendants. In the mean return of an answer each run therefore counts as often as the
  policy itself would have come there, 1/(expected offspring) per later resampling (`value.targets`, the same weights as
  in training V). A run counts not at all where that was not recorded.
* A run that failed has the return it had earned until then, as everywhere else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from langgraph_amc.checks import check_items, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.skills.evidence import ALIKE, return_of
from langgraph_amc.trajectories.transcript import Transcript
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.targets import importance, known_from, task_of
from langgraph_amc_trl.conversations import (
    Message,
    NotAConversationError,
    Said,
    Tool,
    conversation,
    key_of,
    up_to_last_answer,
)

Completion = Literal["step", "rest"]
"""``step``: the one answer in which siblings differ; ``rest``: it and all that followed, to the end of a run."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, a better and a worse way on.

    Attributes
    ----------
    prompt: all messages before siblings differ. chosen, rejected: what followed; an answer of the policy is first, and
        last.
    step: how often the policy had answered before.
    chosen_return, rejected_return: mean return of the runs that went on from the answer (``step``), or the return of
        the very run (``rest``).
    """

    task: str
    run: str
    step: int
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_return: float
    rejected_return: float

    @property
    def margin(self) -> float:
        """By how much the one was better."""
        return self.chosen_return - self.rejected_return


@dataclass(frozen=True, slots=True)
class Found:
    """Pairs, and what there was besides: why runs were left out, and forks that gave no pair."""

    pairs: tuple[Pair, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def sibling_pairs(
    trajectories: Iterable[Trajectory],
    *,
    completion: Completion = "step",
    margin: float = 0.0,
    across_runs: bool = False,
    tools: Sequence[Tool] = (),
    transcript: Transcript | None = None,
) -> Found:
    """At most one pair for each prompt: the best way on from it, and the worst.

    Parameters
    ----------
    trajectories: whole runs, pruned particles included.
    completion: ``step`` compares answers by the mean return of all runs that went on from them. ``rest`` compares
        single runs: more tokens, and the blame for a failure is on all of them.
    margin: least difference between the two; equals never make a pair.
    across_runs: also compare runs of one task that were not siblings but had the same conversation up to a point.
        Right where the messages are all there is to the state.
    tools, transcript: see `conversations.conversation`.
    """
    if completion not in get_args(Completion):
        raise ConfigurationError(f"completion is 'step' or 'rest', got {completion!r}")
    if not is_number(margin) or margin < 0:
        raise ConfigurationError(f"margin is a number of at least 0, got {margin!r}")
    runs = check_items("trajectories", trajectories, Trajectory)
    known = known_from(runs)
    left_out: Counter[str] = Counter()
    groups: dict[tuple[str, str], list[_Line]] = defaultdict(list)
    for trajectory in runs:
        worth = return_of(trajectory)
        if worth is None:
            left_out[trajectory.status if trajectory.status != "finished" else "no outcome"] += 1
            continue
        try:
            said = up_to_last_answer(conversation(trajectory, tools, transcript))
        except NotAConversationError:
            left_out["no conversation, or a rewritten one"] += 1
            continue
        counts = importance(trajectory, known.get(trajectory.run_id, 0))
        line = _Line(trajectory, said, tuple(key_of(s.message) for s in said), worth, tuple(counts.tolist()))
        groups[task_of(trajectory), "" if across_runs else trajectory.run_id].append(line)
    best: dict[tuple[str, ...], Pair] = {}
    for lines in groups.values():
        for at, ways in _forks(lines):
            pair = _pair(at, ways, completion, max(margin, ALIKE))
            if pair is None:
                left_out["forks whose ways on are alike"] += 1
                continue
            prompt = (pair.task, *ways[0][0].keys[:at])
            if prompt not in best or best[prompt].margin < pair.margin:
                best[prompt] = pair
    return Found(tuple(best.values()), dict(left_out))


@dataclass(frozen=True, slots=True)
class _Line:
    """A run with a return: its messages, and for each of its states how much the return counts there."""

    trajectory: Trajectory
    said: tuple[Said, ...]
    keys: tuple[str, ...]
    worth: float
    counts: tuple[float, ...]

    def count(self, at: int) -> float:
        """How much its return says about the answer at this place.

        As much as for the state before it: a resampling at the state after it has seen what the world answered.
        """
        return self.counts[max(0, self.said[at].state - 1)]


Way = list[_Line]
"""The runs that had the same next answer."""


def _forks(lines: Sequence[_Line]) -> Iterator[tuple[int, list[Way]]]:
    """Where the policy answered equal conversations differently: after how many messages, and the ways on."""
    todo: list[tuple[int, list[_Line]]] = [(0, list(lines))]
    while todo:
        at, together = todo.pop()
        ways: dict[str, Way] = defaultdict(list)
        for line in together:
            if len(line.keys) > at:
                ways[line.keys[at]].append(line)
        answers = [way for way in ways.values() if way[0].said[at].by_model]
        if len(answers) > 1:
            yield at, answers
        todo.extend((at + 1, way) for way in ways.values() if len(way) > 1)


def _pair(at: int, ways: Sequence[Way], completion: Completion, least: float) -> Pair | None:
    if completion == "step":
        means = [(mean, way) for way in ways if (mean := _mean(at, way)) is not None]
        if len(means) < 2:
            return None
        high, low = max(means, key=lambda m: m[0]), min(means, key=lambda m: m[0])
        (better, good), (worse, bad) = (high[0], high[1][0]), (low[0], low[1][0])
        ends = (at + 1, at + 1)
    else:
        good = max((line for way in ways for line in way), key=lambda line: line.worth)
        others = (line for way in ways for line in way if line.keys[at] != good.keys[at])
        bad = min(others, key=lambda line: line.worth)
        better, worse = good.worth, bad.worth
        ends = (len(good.said), len(bad.said))
    if better - worse < least:
        return None
    return Pair(
        task=task_of(good.trajectory),
        run=good.trajectory.run_id,
        step=sum(said.by_model for said in good.said[:at]),
        prompt=_plain(good.said[:at]),
        chosen=_plain(good.said[at : ends[0]]),
        rejected=_plain(bad.said[at : ends[1]]),
        chosen_return=float(better),
        rejected_return=float(worse),
    )


def _mean(at: int, way: Way) -> float | None:
    """Mean return of the runs that had this answer, had nobody chosen among them; ``None`` where nobody knows."""
    counts = np.array([line.count(at) for line in way])
    if counts.sum() <= 0:
        return None
    return float(counts @ np.array([line.worth for line in way]) / counts.sum())


def _plain(said: Iterable[Said]) -> tuple[Message, ...]:
    return tuple(s.message for s in said)
