"""Gates inside subgraphs: a particle is held where an inner node is about to run.

With ``durability="sync"`` LangGraph does not begin a super-step before the last one is saved, in subgraphs
too. So the saver is the gate: `GatedSaver.put` does not return before the particle may go on. The held
stream learns of it by an event of its own, a knock, that comes after all the events that were emitted before;
so a particle held at a gate is, as at any other boundary, one whose stream is not pulled.

Parallel branches wait for each other: a particle stands at a boundary when everything that is under way in
it has ended or stands at a gate. Clones then repeat none of it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.errors import GraphInterrupt

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.departures import Departures
from langgraph_amc.runtime.nodes import Node
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.subgraphs import Points, next_nodes, path_of

KNOCK = object()
"""Payload of the event that says that something has come to rest at a gate."""

ROOM = 256
"""Threads a synchronous graph may use: held tasks keep theirs, and LangGraph's own default is a handful."""

SHOWN = 0.001
"""Seconds in which a thread that has saved what a task wrote gets to show it."""

_NO_TASK = "00000000-0000-0000-0000-000000000000"
_CALLED = "~__pregel_push, ~"
"""Begins the path of a task that another task calls; it belongs to that one."""


class Gate:
    """Which tasks of one particle are held; used from the threads or the event loop its graph runs in."""

    def __init__(self, points: Points, width: float, is_async: bool) -> None:
        self.points = points
        self.width = width
        self.is_async = is_async
        self._lock = threading.Lock()
        self._held: dict[str, list[Future[None]]] = {}
        self._closed: set[str] = set()
        """Namespaces in whose super-step nobody is held any more, since it ends."""
        self._departed: set[str] = set()
        """Tasks, by their own namespaces, that have ended without a write."""
        self.departures = Departures(self._depart)
        self._writer: Any = None
        self._knocks = 0
        """Knocks on their way."""
        self._early = False
        """Whether the last knock may have come before what LangGraph shows of the task that ended."""

    @property
    def held(self) -> tuple[str, ...]:
        """Namespaces that are held now."""
        with self._lock:
            return tuple(self._held)

    def attend(self, config: RunnableConfig) -> None:
        """A graph begins: the app itself, whose stream is knocked at, or a subgraph, perhaps once more."""
        configurable = config["configurable"]
        runtime = configurable.get("__pregel_runtime")
        namespace = configurable.get("checkpoint_ns", "")
        if namespace:
            with self._lock:
                self._closed.discard(namespace)
        elif runtime is not None:  # a particle that was paused has a new run
            self._writer, self._knocks, self._early = runtime.stream_writer, 0, False
            self._closed.clear()
            self._departed.clear()

    def arrive(self, saved: Node) -> Future[None] | None:
        """What a task waits for that has saved this checkpoint; ``None`` where it is not held."""
        namespace = saved.key[1]
        path = path_of(namespace)
        if not path or saved.metadata.get("source") != "loop":
            return None
        wanted = self.points.held(path)
        if not wanted or wanted.isdisjoint(next_nodes(saved, self.points.graphs.get(path))):
            return None
        opened: Future[None] = Future()
        with self._lock:
            if any(_is_in_step(namespace, ended) for ended in self._closed):
                raise GraphInterrupt()
            self._held.setdefault(namespace, []).append(opened)
        self._knock()
        return opened

    def wrote(self, namespace: str, channels: Sequence[str]) -> None:
        """A task has ended; if it failed, so do the tasks beside it, for which LangGraph's threads wait."""
        if "__error__" in channels and "__error_source_node__" not in channels:
            self.close(namespace)
        self._early = not self.is_async
        if self._held:
            self._knock()

    def departed(self, prefix: str) -> set[str]:
        """Ids of the tasks of one super-step that have ended without a write."""
        with self._lock:
            rest = [task[len(prefix) :] for task in self._departed if task.startswith(prefix)]
        return {task.partition(":")[2] for task in rest if "|" not in task}

    def _depart(self, namespace: str) -> None:
        with self._lock:
            self._departed.add(namespace)
        if self._held:
            self._knock()

    def heard(self) -> bool:
        """A knock has arrived; ``False`` where another one follows, and events before it."""
        with self._lock:
            self._knocks -= 1
            last = self._knocks == 0
            early, self._early = last and self._early, self._early and not last
        if early:
            time.sleep(SHOWN)
            self._knock()
        return last and not early

    def open(self) -> None:
        """Let everybody go on."""
        with self._lock:
            held, self._held = self._held, {}
        for opened in [f for futures in held.values() for f in futures]:
            if opened.set_running_or_notify_cancel():
                opened.set_result(None)

    def close(self, step: str = "") -> None:
        """End all that is held, or would be from now on, inside the super-step of a namespace: default, the app's."""
        with self._lock:
            self._closed.add(step)
            ended = [f for ns in list(self._held) if _is_in_step(ns, step) for f in self._held.pop(ns)]
        for opened in ended:
            if opened.set_running_or_notify_cancel():
                opened.set_exception(GraphInterrupt())

    def _knock(self) -> None:
        with self._lock:
            self._knocks += 1
        # the writer asks for the place of the node that writes, and there is none here
        around = var_child_runnable_config.set({"configurable": {"checkpoint_ns": ""}})
        try:
            self._writer(KNOCK)
        finally:
            var_child_runnable_config.reset(around)


class GatedSaver(ParticleSaver):
    """A particle's saver that holds its particle inside subgraphs.

    ``width`` is how many tasks of a super-step may run at once.
    """

    def __init__(
        self, base: BaseCheckpointSaver | None, points: Points, *, width: float = math.inf, is_async: bool
    ) -> None:
        super().__init__(base)
        self.gate = Gate(points, width, is_async)

    def is_quiet(self, thread_id: str) -> bool:
        """Whether everything that is under way has come to rest, some of it at a gate."""
        held = self.gate.held
        return bool(held) and self._step_rests(thread_id, "", held)

    def inside(self, thread_id: str) -> dict[str, Node]:
        """Heads of subgraphs of the app's unfinished super-step, by namespace, outer ones first."""
        heads = {ns: node for (thread, ns), node in list(self._s.heads.items()) if thread == thread_id}
        found = {
            ns: node
            for ns, node in heads.items()
            if ns and all(outer in heads and heads[outer].id == place for outer, place in _parents(node).items())
        }
        return dict(sorted(found.items(), key=lambda pair: (pair[0].count("|"), pair[1].id)))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self.gate.attend(config)
        return super().get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self.gate.attend(config)
        return await super().aget_tuple(config)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        where = super().put(config, checkpoint, metadata, new_versions)
        if (opened := self.gate.arrive(self._saved(where))) is not None:
            if self.gate.is_async:
                raise ConfigurationError(
                    f"the graph in node {'/'.join(path_of(where['configurable']['checkpoint_ns']))!r} runs "
                    "synchronously inside an asynchronous run, whose threads held particles would use up: "
                    "call it with ainvoke in an async function, or call the app with invoke"
                )
            opened.result()
        return where

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        where = super().put(config, checkpoint, metadata, new_versions)
        if (opened := self.gate.arrive(self._saved(where))) is not None:
            await asyncio.wrap_future(opened)
        return where

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        self.gate.wrote(config["configurable"].get("checkpoint_ns", ""), [channel for channel, _ in writes])

    # -- inside ----------------------------------------------------------------------------------

    def blank(self) -> ParticleSaver:
        return GatedSaver(self.base, self.gate.points, width=self.gate.width, is_async=self.gate.is_async)

    def _saved(self, where: RunnableConfig) -> Node:
        configurable = where["configurable"]
        return self._s.heads[configurable["thread_id"], configurable["checkpoint_ns"]]

    def _step_rests(self, thread_id: str, namespace: str, held: Sequence[str]) -> bool:
        """Whether every task of a namespace's super-step has ended or rests, or as many as may run at once."""
        inner = [ns for ns in held if _is_in_step(ns, namespace)]
        tasks = {(ns[len(namespace) + 1 :] if namespace else ns).split("|")[0] for ns in inner}
        resting = sum(
            self._task_rests(thread_id, f"{namespace}|{task}" if namespace else task, inner) for task in tasks
        )
        under_way = min(self._unfinished(thread_id, namespace), self.gate.width)
        return resting >= max(under_way, 1)

    def _task_rests(self, thread_id: str, namespace: str, held: Sequence[str]) -> bool:
        """Whether a graph that a task runs is held; a task's second graph has the task's namespace and a number."""
        mine = [ns for ns in held if _is_under(ns, namespace)]
        numbered = {f"{namespace}|{n}" for ns in mine if (n := ns[len(namespace) + 1 :].split("|")[0]).isdigit()}
        return any(ns in held or self._step_rests(thread_id, ns, mine) for ns in (namespace, *numbered))

    def _unfinished(self, thread_id: str, namespace: str) -> int:
        head = self.head(thread_id, namespace)
        if head is None:
            return 0  # a task's own calls of tasks, not a graph
        writes = list(self._s.pending.get((thread_id, namespace, head.id), {}).values())
        ended = {w.task_id for w in writes if w.task_id != _NO_TASK and not w.task_path.startswith(_CALLED)}
        inside = f"{namespace}|" if namespace else ""
        due = next_nodes(head, self.gate.points.graphs.get(path_of(namespace)))
        return len(due) - len(ended | self.gate.departed(inside))


def gated_call(
    config: RunnableConfig, options: Mapping[str, Any], is_async: bool
) -> tuple[RunnableConfig, dict[str, Any]]:
    """Config and options of a run that can be held at gates."""
    if not is_async:
        if config.get("max_concurrency") is not None:
            raise ConfigurationError(
                "max_concurrency and a boundary inside a subgraph need the asynchronous call (ainvoke, astream): "
                "a held task keeps its thread"
            )
        config = {**config, "max_concurrency": ROOM}
    modes = list(dict.fromkeys([*options["stream_mode"], "custom"]))
    return config, {**options, "durability": "sync", "stream_mode": modes}


def _is_under(namespace: str, task: str) -> bool:
    return namespace == task or namespace.startswith(f"{task}|")


def _is_in_step(namespace: str, step: str) -> bool:
    """Whether a task of a namespace's own super-step has it; not so where a task calls its next graph."""
    if not step:
        return True
    return namespace.startswith(f"{step}|") and not namespace[len(step) + 1 :].split("|")[0].isdigit()


def _parents(node: Node) -> Mapping[str, str]:
    return node.metadata.get("parents") or {}
