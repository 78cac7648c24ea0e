"""From the tree of an invocation to the states a live run would have recorded.

`langgraph_amc.runtime` records a state before each model call it stops at and one at the end. A model call is such a
point where it is the first of the run or where its node has called a model before; calls of one super-step are one.
States come from the input of the node around the call, which is the app's state, and where no node is logged from
the messages the model was called with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage

from langgraph_amc.trajectories.importers.spans import ParticleOf, Span, Trace, Unusable, is_sublist
from langgraph_amc.trajectories.transcript import Transcript, turns
from langgraph_amc.trajectories.types import Status, Usage

System = Literal["auto", "keep", "drop"]
"""Whether system messages that only a model call shows belong to the state; ``auto``: where the app's own input or
output has one. Agents of `create_agent` add their prompt at each call, so that no state has it."""

Messages = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One invocation of the app.

    Attributes
    ----------
    id, session, start: of the invocation; the thread it belongs to; seconds since the epoch.
    states: messages at each point a live run records, oldest first.
    spans: ids of its spans, its own first: what feedback can be given to.
    uncounted: model calls without a number of tokens.
    dropped: whether system messages of model calls were taken as no part of the state.
    around: ids of the spans that it lies below, innermost first.
    particle, run: which particle of which run of langgraph-amc it is, where that was traced.
    """

    id: str
    trace: str
    session: str | None
    start: float
    states: tuple[Messages, ...]
    status: Status
    error: str | None
    usage: Usage
    spans: tuple[str, ...]
    uncounted: int = 0
    dropped: bool = False
    around: tuple[str, ...] = ()
    particle: ParticleOf | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """A model call and the span whose start is its super-step's: the node around it, or the call itself."""

    span: Span
    holder: Span


def _step(span: Span) -> Any:
    """What spans of one super-step have in common."""
    return span.id if span.step is None else span.step


def read_conversation(trace: Trace, root: Span, system: System = "auto") -> Conversation | Unusable:
    """The invocation whose span is ``root``, or why it cannot be used."""
    name = root.id if root.id == root.trace else f"{root.trace}:{root.id}"
    if root.end is None:
        return Unusable("still running", name)
    inside = list(trace.below(root))
    models = [s for s in inside if s.kind == "llm" and not any(up.kind == "llm" for up in trace.above(s))]
    reader = _Reader(trace, root, tuple(inside), _calls(trace, root, models), system)
    states = reader.states() if reader.steps else _untraced(root, models)
    if isinstance(states, str):
        return Unusable(states, name)
    answered = [s.usage or Usage(1, cost=None) for s in models if s.error is None]
    around = list(trace.above(root))
    return Conversation(
        id=name,
        trace=root.trace,
        session=root.session or next((s.session for s in inside if s.session), None),
        start=root.start,
        states=states,
        status="failed" if root.error is not None else "interrupted" if reader.interrupted else "finished",
        error=root.error,
        usage=sum(answered, Usage()) if models or reader.steps else _usage_of(states),
        spans=tuple(s.id for s in inside),
        uncounted=sum(s.usage is None and s.error is None for s in models),
        dropped=reader.dropped,
        around=tuple(s.id for s in around),
        particle=next((s.particle for s in around if s.particle is not None), None),
        run=next((s.run for s in around if s.run is not None), None),
    )


def _calls(trace: Trace, root: Span, models: Sequence[Span]) -> list[_Call]:
    """Model calls by the time they began; those inside a tool that is no node are the tool's own affair."""
    calls = []
    last = max(models, key=lambda s: s.start, default=None)
    for span in models:
        line = [span]
        for up in trace.above(span):
            if up.id == root.id:
                break
            line.append(up)
        nodes = [s for s in line if s.node is not None]
        # without nodes, a call that broke and was not the last was tried again
        if nodes or not (any(s.kind == "tool" for s in line) or (span.error is not None and span is not last)):
            calls.append(_Call(span, nodes[-1] if nodes else span))
    return sorted(calls, key=lambda c: (c.holder.start, c.span.start))


class _Reader:
    """Puts the states of one invocation together; ``dropped`` is known afterwards."""

    def __init__(
        self, trace: Trace, root: Span, inside: tuple[Span, ...], calls: Sequence[_Call], system: System
    ) -> None:
        self.root, self.calls = root, calls
        self.dropped = False
        self.interrupted = root.interrupted
        self._keep = system == "keep" or (system == "auto" and _has_system((*root_messages(root),)))
        around = {call.holder.id for call in calls}
        # the steps of the app: its nodes where they are logged, else the model calls
        self.steps = sorted(
            (s for s in inside if s.id in around or (s.node is not None and _is_outermost(trace, root, s))),
            key=lambda s: s.end or s.start,
        )
        self.interrupted |= any(s.interrupted for s in self.steps)
        broken = [s.step for s in self.steps if (s.error or s.interrupted) and s.step is not None]
        ends_early = root.error is not None or self.interrupted
        self._failed_at = min(broken, default=None) if ends_early else None  # a step that was tried again is done

    def states(self) -> tuple[Messages, ...] | str:
        """The states, or the reason for which one of them is unknown."""
        found: list[Messages] = []
        points = self._points()
        for last, point in zip([points[0], *points], points, strict=False):
            now = self._before(point, found[-1] if found else None, last)
            if isinstance(now, str):
                return now
            found.append(now)
        done = self._done_since(points[-1])
        if self.root.state_out is not None:
            if done or self.root.error is None:
                found.append(self.root.state_out)
        elif done:
            end = _advanced(found[-1], done)
            if isinstance(end, str):
                return end
            found.append(end)
        elif self.root.error is None:
            return self.root.problem or "no messages"
        return tuple(found)

    def _points(self) -> list[Span]:
        """Steps that a live run stops before: the first to call a model, then those of nodes that have called one."""
        callers: dict[Any, set[str | None]] = defaultdict(set)
        for call in self.calls:
            callers[_step(call.holder)].add(call.holder.node)
        together: dict[Any, list[Span]] = defaultdict(list)
        for span in sorted(self.steps, key=lambda s: s.start):
            together[_step(span)].append(span)
        if not self.calls:  # a live run then keeps the last state before its end
            return [list(together.values())[-1][0]]
        points: list[Span] = []
        seen: set[str | None] = set()
        for step, spans in together.items():
            if seen.intersection(s.node for s in spans) if points else callers[step]:
                points.append(next((s for s in spans if s.node in callers[step]), spans[0]))
            seen |= callers[step]
        return points

    def _before(self, step: Span, state: Messages | None, last: Span) -> Messages | str:
        """The state before a step, given the one before ``last``."""
        if step.kind != "llm" and step.state_in is not None and not step.pushed:
            return step.state_in
        if step.kind != "llm" and state is not None:
            return _advanced(state, self._done_since(last, before=step.start))
        call = next((c.span for c in self.calls if c.holder is step), step)
        if call.asked is None:
            return call.problem or step.problem or "no messages"
        return self._without_rules(call.asked)

    def _without_rules(self, messages: Messages) -> Messages:
        if self._keep or not _has_system(messages):
            return messages
        self.dropped = True
        start = next((i for i, m in enumerate(messages) if m.type != "system"), len(messages))
        return messages[start:]

    def _done_since(self, step: Span, before: float = float("inf")) -> list[Span]:
        """Steps that ended well, in whole super-steps, from ``step`` on."""
        return [
            s
            for s in self.steps
            if step.start <= s.start < before
            and s.error is None
            and not s.interrupted
            and s.end is not None
            and (self._failed_at is None or s.step is None or s.step < self._failed_at)
        ]


def root_messages(root: Span) -> Messages:
    """What the app's own input and output show of its state."""
    return (*(root.state_in or ()), *(root.state_out or ()))


def _has_system(messages: Messages) -> bool:
    return any(m.type == "system" for m in messages)


def _is_outermost(trace: Trace, root: Span, span: Span) -> bool:
    up = trace.parent(span)
    return up is not None and up.id == root.id


def _advanced(state: Messages, steps: Sequence[Span]) -> Messages | str:
    """The state after these steps' updates, as LangGraph's reducer of messages makes it."""
    messages = list(state)
    for step in steps:
        update = step.answered if step.kind == "llm" else step.state_out
        if update is None:
            if step.problem or step.kind == "llm":
                return step.problem or "no messages"
            continue  # a step that touches no messages
        for message in update:
            place = next((i for i, m in enumerate(messages) if m.id is not None and m.id == message.id), None)
            if place is None:
                messages.append(message)
            else:
                messages[place] = message
    return tuple(messages)


def _untraced(root: Span, models: Sequence[Span]) -> tuple[Messages, ...] | str:
    """States of an invocation of which the log has only its input and output."""
    if models:
        return "no messages"
    if root.state_out is None:
        if root.state_in and root.error is not None:
            return (root.state_in,)
        return root.problem or "no messages"
    begin = _turn_begins(root.state_in or (), root.state_out)
    return states_of_turn(root.state_out, begin)


def states_of_turn(messages: Messages, begin: int) -> tuple[Messages, ...]:
    """States before each AI message from ``begin`` on, and the last one."""
    first, *rest = turns(messages[begin:])
    states = [(*messages[:begin], *first)]
    for turn in rest:
        states.append((*states[-1], *turn))
    return tuple(states)


def _turn_begins(given: Messages, end: Messages) -> int:
    """How many messages of the last state were there when the app was called, as far as the two tell."""
    text = Transcript()
    start = is_sublist([text.render([m]) for m in given], [text.render([m]) for m in end])
    if start is not None:
        return start + len(given)
    asked = [i for i, m in enumerate(end) if m.type == "human"]
    return asked[-1] + 1 if asked else 0


def _usage_of(states: Sequence[Messages]) -> Usage:
    """Tokens that the AI messages of this invocation say they took."""
    new = [m for m in states[-1][len(states[0]) :] if isinstance(m, AIMessage)]
    used = [m.usage_metadata for m in new if m.usage_metadata]
    return Usage(len(new), sum(u["input_tokens"] for u in used), sum(u["output_tokens"] for u in used), None)
