"""Whole runs as training data: the chosen ones for SFT, all of them with a label for KTO.

Rejection sampling in the words of the field: what the policy did when it went well is what it is to do (SFT), or every
run is called desirable or not (KTO, Ethayarajh et al. 2024). Runs whose return nobody knows are in neither: a pruned
particle has not failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from langgraph_amc.checks import check_items, check_whole, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.skills.evidence import ALIKE, return_of
from langgraph_amc.trajectories.transcript import Transcript
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.targets import task_of
from langgraph_amc_trl.conversations import (
    Message,
    NotAConversationError,
    Tool,
    conversation,
    key_of,
    up_to_last_answer,
)


@dataclass(frozen=True, slots=True)
class Example:
    """One run: what the policy was given first, and everything after.

    Attributes
    ----------
    returned: what the run earned. desirable: KTO's label; ``None`` where it has none (SFT).
    """

    task: str
    run: str
    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    returned: float
    desirable: bool | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Examples, and why other runs are none."""

    examples: tuple[Example, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def selected_runs(
    trajectories: Iterable[Trajectory],
    *,
    success: float | None = None,
    per_task: int = 1,
    tools: Sequence[Tool] = (),
    transcript: Transcript | None = None,
) -> Chosen:
    """The best runs of each task, for SFT; equal conversations count once.

    Parameters
    ----------
    success: the least return; by default the best that any run has.
    per_task: at most so many runs of a task, the better and then the shorter first, so that easy tasks do not drown
        the others.
    tools, transcript: see `conversations.conversation`.
    """
    check_whole("per_task", per_task, 1)
    examples, left_out = _examples(trajectories, tools, transcript)
    enough = _threshold(examples, success)
    by_task: dict[str, dict[str, Example]] = defaultdict(dict)
    for example in examples:
        if example.returned < enough:
            left_out["not a success"] += 1
            continue
        by_task[example.task].setdefault("".join(map(key_of, example.completion)), example)
    chosen: list[Example] = []
    for different in by_task.values():
        ranked = sorted(different.values(), key=lambda e: (-e.returned, len(e.completion)))
        chosen.extend(ranked[:per_task])
    return Chosen(tuple(chosen), dict(left_out))


def labelled_runs(
    trajectories: Iterable[Trajectory],
    *,
    success: float | None = None,
    tools: Sequence[Tool] = (),
    transcript: Transcript | None = None,
) -> Chosen:
    """Every run with a return, desirable where it reached ``success`` (by default the best that any run has)."""
    examples, left_out = _examples(trajectories, tools, transcript)
    enough = _threshold(examples, success)
    labelled = (Example(e.task, e.run, e.prompt, e.completion, e.returned, e.returned >= enough) for e in examples)
    return Chosen(tuple(labelled), dict(left_out))


def _threshold(examples: Sequence[Example], success: float | None) -> float:
    if success is not None and not is_number(success):
        raise ConfigurationError(f"success is a return, a number, got {success!r}")
    best = max((e.returned for e in examples), default=0.0)
    return (best if success is None else success) - ALIKE


def _examples(
    trajectories: Iterable[Trajectory], tools: Sequence[Tool], transcript: Transcript | None
) -> tuple[list[Example], Counter[str]]:
    found: list[Example] = []
    left_out: Counter[str] = Counter()
    for trajectory in check_items("trajectories", trajectories, Trajectory):
        worth = return_of(trajectory)
        if worth is None:
            left_out[trajectory.status if trajectory.status != "finished" else "no outcome"] += 1
            continue
        try:
            said = up_to_last_answer(conversation(trajectory, tools, transcript))
        except NotAConversationError:
            left_out["no conversation, or a rewritten one"] += 1
            continue
        first = next((i for i, s in enumerate(said) if s.by_model), None)
        if first is None:
            left_out["the policy said nothing"] += 1
            continue
        prompt, completion = (tuple(s.message for s in part) for part in (said[:first], said[first:]))
        found.append(Example(task_of(trajectory), trajectory.run_id, prompt, completion, worth))
    return found, left_out


def check_labels(examples: Sequence[Example]) -> None:
    """KTO wants both kinds; raises ConfigurationError otherwise."""
    labels = {example.desirable for example in examples}
    if labels != {True, False}:
        raise ConfigurationError(
            "KTO wants desirable and undesirable runs, and there is only one kind: label them with labelled_runs, with "
            "a success= that some runs reach and others do not"
        )
