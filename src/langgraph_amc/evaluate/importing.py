"""Importing what production logged: traces and checkpoints become trajectories that V can be trained on.

The states of a logged invocation are written by the record of a live run (`langgraph_amc.runtime.record`), so that V
reads in `wrap` what it was trained on. Feedback becomes the outcome; what has none is kept, unjudged.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.messages import convert_to_openai_messages
from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.checkpoints import open_sqlite, read_checkpoints
from langgraph_amc.evaluate.import_report import ImportReport, Tally
from langgraph_amc.evaluate.runner import FAILED
from langgraph_amc.runtime.record import Record
from langgraph_amc.tasks.task import Task, TaskSet
from langgraph_amc.trajectories._rows import check_id
from langgraph_amc.trajectories.importers import (
    Conversation,
    ParticleOf,
    Score,
    Span,
    System,
    Unusable,
    invocations,
    read_conversation,
    read_file,
    traces,
    with_lineages,
)
from langgraph_amc.trajectories.store import Record as StoreRecord
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.transcript import Transcript, TranscriptBuilder
from langgraph_amc.trajectories.types import Trajectory, Usage

PARTICLE = "p0"
ReadFeedback = Callable[[Any], float | None]
"""A reward from what the log has as a score: a number, a bool or a label; ``None`` is missing."""


def import_logs(
    store: TrajectoryStore,
    source: str | Path | BaseCheckpointSaver[Any] | Sequence[str | Path],
    *,
    format: str = "auto",
    feedback: str | None = None,
    read_feedback: ReadFeedback | None = None,
    rewards: Mapping[str, float] | None = None,
    failed: float | None = FAILED,
    transcript: Transcript | None = None,
    system: System = "auto",
    split: str | None = None,
) -> ImportReport:
    """Add the invocations of an app that logs or checkpoints hold to the store, one trajectory each.

    Parameters
    ----------
    source: file(s) of traces, a LangGraph checkpointer, or with ``format="checkpoints"`` its SQLite file(s).
    format: ``auto``, ``otlp``, ``langsmith``, ``phoenix``, ``langfuse`` or ``checkpoints``.
    feedback: the name of the score that is the reward of an invocation. One given to the invocation as a whole goes
        before one given to its parts; several are averaged.
    read_feedback: the reward from a score, needed for labels; without it numbers are taken as they are, True as 1.
    rewards: rewards by trace id, or by thread or session id for its last invocation; they go before feedback.
    failed: outcome of an invocation that broke and that nobody judged, as `collect` has it; ``None``: missing.
    transcript: options that the app will be wrapped with (default: the defaults).
    system: whether system messages that only model calls show belong to the state, see `importers.System`.
    split: split of all tasks; a task is what an invocation began with.

    A bad record never raises: it is counted in the report. Importing the same again changes nothing but outcomes
    that were missing.

    Raises
    ------
    ImportFileError: a file that is missing or of no known format. ConfigurationError: options that cannot work.
    """
    transcript = transcript or Transcript()
    if transcript.text_of is not None:
        raise ConfigurationError("logs hold messages, not states: a transcript of your own function cannot read them")
    left_out, notes = Tally(), Tally()
    read, scores = _read(source, format, transcript.messages_key, system, left_out)
    judge = _Judge(read, scores, feedback, read_feedback, rewards or {}, failed, notes)
    records: list[StoreRecord] = []
    for conversation in read:
        try:
            records.append(_record(conversation, judge.outcome(conversation), transcript, split))
        except (AMCError, ValueError) as error:
            left_out.add(f"cannot be written ({type(error).__name__})", conversation.id)
            continue
        if conversation.uncounted:
            notes.add("model calls without a number of tokens", conversation.id)
        if conversation.dropped:
            notes.add("system prompts that only model calls show were left out", conversation.id)
    return _stored(store, records, left_out, notes)


def _read(
    source: Any, format: str, key: str, system: System, left_out: Tally
) -> tuple[list[Conversation], list[Score]]:
    """All conversations of a source, and all feedback in it."""
    scores: list[Score] = []
    opened = ExitStack()
    found: Iterable[Conversation | Unusable]
    if isinstance(source, BaseCheckpointSaver):
        found = read_checkpoints(source, key=key)
    else:
        paths = [source] if isinstance(source, str | Path) else list(source)
        if not paths:
            raise ConfigurationError("there is nothing to import: give a file or a checkpointer")
        if format == "checkpoints":
            savers = [opened.enter_context(open_sqlite(path)) for path in paths]
            found = (c for saver in savers for c in read_checkpoints(saver, key=key))
        else:
            found = _read_files(paths, format, key, system, scores)
    read: dict[str, Conversation] = {}
    with opened:
        for item in found:
            if isinstance(item, Unusable):
                left_out.add(item.reason, item.where)
            else:
                read[item.id] = item
    return list(read.values()), scores


def _read_files(
    paths: Sequence[str | Path], format: str, key: str, system: System, scores: list[Score]
) -> Iterator[Conversation | Unusable]:
    spans: list[Span] = []
    for path in paths:
        for item in read_file(path, format, key):
            if isinstance(item, Span):
                spans.append(item)
            elif isinstance(item, Score):
                scores.append(item)
            else:
                yield item
    for trace in traces(spans):
        roots, lost = invocations(trace)
        yield from lost
        read = [read_conversation(trace, root, system) for root in roots]
        yield from (item for item in read if isinstance(item, Unusable))
        yield from with_lineages(item for item in read if isinstance(item, Conversation))


class _Judge:
    """Finds the outcome of an invocation: a reward given for it, feedback, or that it broke."""

    def __init__(
        self,
        read: Sequence[Conversation],
        scores: Sequence[Score],
        feedback: str | None,
        read_feedback: ReadFeedback | None,
        rewards: Mapping[str, float],
        failed: float | None,
        notes: Tally,
    ) -> None:
        self._read, self._rewards, self._failed, self._notes = read_feedback, rewards, failed, notes
        self._by_span: dict[str, list[Any]] = defaultdict(list)
        self._by_trace: dict[str, list[Any]] = defaultdict(list)
        for score in scores:
            if score.key != feedback:
                continue
            if score.span is not None:
                self._by_span[score.span].append(score.value)
            elif score.trace is not None:
                self._by_trace[score.trace].append(score.value)
        self._last = {c.session: c.id for c in sorted(read, key=lambda c: c.start) if c.session is not None}
        self._in_trace = Counter(c.trace for c in read)
        self._below = Counter(span for c in read for span in c.around)
        if feedback is not None and not (self._by_span or self._by_trace):
            known = sorted({score.key for score in scores})
            notes.add(f"no feedback {feedback!r}; there is {', '.join(map(repr, known)) or 'none at all'}", "")

    def outcome(self, conversation: Conversation) -> float | None:
        """The reward, ``None`` where it is missing."""
        session = conversation.session
        if conversation.trace in self._rewards:
            return self._number(self._rewards[conversation.trace], conversation)
        if session is not None and session in self._rewards and self._last[session] == conversation.id:
            return self._number(self._rewards[session], conversation)
        values = [v for given in self._given(conversation) if (v := self._reward(given, conversation)) is not None]
        if values:
            return math.fsum(values) / len(values)
        return self._failed if conversation.status == "failed" else None

    def _given(self, conversation: Conversation) -> Sequence[Any]:
        root, *parts = conversation.spans
        if root in self._by_span:
            return self._by_span[root]
        for span in conversation.around:  # of one that holds nothing else
            if span in self._by_span and self._below[span] == 1:
                return self._by_span[span]
        if conversation.trace in self._by_trace:
            if self._in_trace[conversation.trace] == 1:
                return self._by_trace[conversation.trace]
            self._notes.add("feedback on a trace of several invocations", conversation.trace)
        return [value for part in parts for value in self._by_span.get(part, ())]

    def _reward(self, value: Any, conversation: Conversation) -> float | None:
        if self._read is None:
            return self._number(value, conversation)
        try:
            found = self._read(value)
        except Exception as error:  # the user's function
            self._notes.add(f"feedback that read_feedback failed on ({type(error).__name__})", conversation.id)
            return None
        return None if found is None else self._number(found, conversation)

    def _number(self, value: Any, conversation: Conversation) -> float | None:
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        what = (
            "empty" if value is None else "not finite" if isinstance(value, float) else "no number: give read_feedback"
        )
        self._notes.add(f"feedback that is {what}", conversation.id)
        return None


def _record(
    conversation: Conversation, outcome: float | None, transcript: Transcript, split: str | None
) -> StoreRecord:
    """The trajectory of an invocation, written as a live run's is, with its task and what is known of its run."""
    record = Record(TranscriptBuilder(transcript))
    for state in conversation.states:
        record = record.extend({transcript.messages_key: list(state)})
    particle = conversation.particle or ParticleOf(PARTICLE)
    trajectory = Trajectory(
        run_id=check_id(conversation.run or conversation.id, "the id of an invocation"),
        particle=particle.id,
        parent=particle.parent,
        forked_at=particle.forked_at,
        segments=record.segments,
        rewards=record.rewards,
        outcome=outcome,
        status=conversation.status,
        usage=conversation.usage,
        fingerprint=transcript.fingerprint,
        error=conversation.error,
    )
    about = {"session": conversation.session, "started": conversation.start, "imported": True}
    return StoreRecord(trajectory, replace(_task(conversation, transcript), split=split), about)


def _task(conversation: Conversation, transcript: Transcript) -> Task:
    """What the invocation began with, with the id that the same input has in a `TaskSet`.

    Nothing is in it that one log has and another has not: names, ids of messages, the order of arguments.
    """
    messages = convert_to_openai_messages([m.model_copy(update={"name": None}) for m in conversation.states[0]])
    for message in messages:
        for call in message.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    return TaskSet.from_iterable([{"input": {transcript.messages_key: messages}}])[0]


def _stored(store: TrajectoryStore, records: Sequence[StoreRecord], left_out: Tally, notes: Tally) -> ImportReport:
    """Add what is new, and outcomes that were missing; the report."""
    trajectories = [record.trajectory for record in records]
    ids = [t.run_id for t in trajectories]
    stored = store.trajectories(run_ids=ids) if ids else ()
    wanted = {(t.run_id, t.particle) for t in trajectories}
    before = {key: t.outcome for t in stored if (key := (t.run_id, t.particle)) in wanted}
    imported = store.add_records(lambda: records, on_conflict="skip")
    late = [t for t in trajectories if t.outcome is not None and before.get((t.run_id, t.particle), t.outcome) is None]
    for trajectory in late:
        store.set_outcome(trajectory.run_id, trajectory.particle, trajectory.outcome)
    returns = [t.total for t in trajectories if t.total is not None]
    return ImportReport(
        imported=imported,
        known=len(before),
        updated=len(late),
        judged=len(returns),
        unjudged=len(trajectories) - len(returns),
        failed=sum(t.status == "failed" for t in trajectories),
        mean_return=math.fsum(returns) / len(returns) if returns else None,
        usage=sum((t.usage for t in trajectories), Usage()),
        left_out=left_out.result(),
        notes=notes.result(),
    )
