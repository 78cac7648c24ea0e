"""A particle that stands inside subgraphs: the state V sees there, how it is left, how a clone enters.

The state is the app's, followed by what the subgraphs under way have added to it: the messages of each, in the
order in which they appeared, so that within one run of a subgraph a state's text is a prefix of the next one's.
Messages that a subgraph drops, or keeps to itself when it ends, are gone from the state: the transcript says
that the history was rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.gate import GatedSaver
from langgraph_amc.runtime.launch import Event, parse_event
from langgraph_amc.runtime.nodes import Node
from langgraph_amc.runtime.record import Record
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.trajectories.transcript import Transcript


def state_inside(
    saver: ParticleSaver, thread_id: str, state: Any, record: Record, transcript: Transcript | None
) -> Any:
    """The app's state, overlaid with the values of the subgraphs under way, and with the messages of all.

    ``record`` is what V has read so far; outside subgraphs the state is the app's own.
    """
    inside = saver.inside(thread_id) if isinstance(saver, GatedSaver) else {}
    if not inside:
        return state
    key = "messages" if transcript is None else transcript.messages_key
    levels = [state] if isinstance(state, Mapping) else []
    levels += [{k: c.thaw() for k, c in node.values.items() if _is_state(k)} for node in inside.values()]
    merged = {k: v for level in levels for k, v in level.items()}
    if found := [message for level in levels for message in _listed(level.get(key))]:
        merged[key] = _in_order_of_appearance(found, _read_last(record))
    return merged


async def leave(saver: GatedSaver, engine: Engine, run: Any) -> None:
    """End a run that is held at gates: its tasks are interrupted, and the run ends as interrupted ones do."""
    saver.gate.close()
    try:
        ended = False
        while not ended:
            namespace, mode, _, _ = parse_event(await engine.next(run))
            # a node that goes on although its subgraph was interrupted: the run is closed at this edge
            ended = mode == "checkpoints" and not namespace
    except Exception:  # noqa: S110 - it is being given up, and how it ends is in its own trace
        pass


def steps_used(inside: Mapping[str, Node]) -> dict[int, int]:
    """Steps that subgraphs have used of their recursion limit, by the step at which they are entered again."""
    used = {}
    for node in inside.values():
        entered = node.metadata["step"] + 1
        first: Node | None = node
        while first is not None and first.metadata.get("source") != "input":
            first = first.parent
        used[entered] = 0 if first is None else entered - first.metadata["step"]
    return used


_OF_THE_GRAPH = ("source", "step", "parents", "counters_since_delta_snapshot")


class Reentry:
    """Which events of a clone that enters inside subgraphs repeat what its parent has emitted."""

    def __init__(self, root: Node, inside: Mapping[str, Node], ran: Iterable[str]) -> None:
        self._ran = Counter(ran)
        self._entries = {tuple(ns.split("|")): node.id for ns, node in inside.items()}
        self._outer = {ns for ns in self._entries if any(o != ns and o[: len(ns)] == ns for o in self._entries)}
        self._going_on: dict[tuple[str, ...], str] = {(): root.id}
        """Namespaces whose super-step is under way again, and where each was entered."""

    def repeats(self, event: Event) -> bool:
        """Whether the event is left out; events have to be asked about in their order."""
        namespace, mode, payload, _ = event
        if mode == "debug":
            mode, payload = "checkpoints" if payload["type"] == "checkpoint" else "tasks", payload["payload"]
        place = payload["config"]["configurable"]["checkpoint_id"] if mode == "checkpoints" else None
        if namespace in self._entries:
            if place != self._entries[namespace]:
                return True
            del self._entries[namespace]
            if namespace not in self._outer:
                # its parent was held before it could emit this one, which then has no more than its graph says
                payload["metadata"] = {k: v for k, v in payload["metadata"].items() if k in _OF_THE_GRAPH}
                return False
            self._going_on[namespace] = place
        if namespace not in self._going_on:
            return False
        if place is not None and place != self._going_on[namespace]:
            del self._going_on[namespace]
            return False
        return place is not None or _is_task_start(mode, payload) or self._is_known_update(namespace, mode, payload)

    def _is_known_update(self, namespace: tuple[str, ...], mode: str, payload: Any) -> bool:
        if mode != "updates" or not (payload.get("__metadata__") or {}).get("cached"):
            return False
        nodes = Counter(name for name in payload if name != "__metadata__")
        known = bool(namespace) or nodes <= self._ran
        self._ran -= nodes
        if not known:
            del payload["__metadata__"]
        return known


def _is_task_start(mode: str, payload: Any) -> bool:
    return mode == "tasks" and "triggers" in payload


def _is_state(channel: str) -> bool:
    return not channel.startswith(("__", "branch:", "join:"))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _read_last(record: Record) -> tuple[Any, ...]:
    seen = None if record.builder is None else record.builder.seen
    return seen if isinstance(seen, tuple) else record.messages


def _in_order_of_appearance(found: list[Any], before: Iterable[Any]) -> list[Any]:
    """Each message once, as its innermost graph has it; those that the last state had come first."""
    current = {_name(message): message for message in found}
    known = dict.fromkeys(name for message in before if (name := _name(message)) in current)
    return [current[name] for name in dict.fromkeys([*known, *current])]


def _name(message: Any) -> str:
    return getattr(message, "id", None) or repr(message)
