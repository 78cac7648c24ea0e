"""Handing the winner over: its checkpoints, pending writes and store writes become the app's own.

Checkpoint ids are kept, so that ``get_state``, the history, the next turn and ``Command(resume=…)`` behave as
after a plain run.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Durability

from langgraph_amc.errors import AMCError
from langgraph_amc.runtime.cells import Cell, MessageList, Packed
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.namespaced import NamespacedSaver
from langgraph_amc.runtime.nodes import Key, Node, Writes, chain, ordered
from langgraph_amc.runtime.particle import Particle

NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""LangGraph's name for who wrote the answer given to a run, which need not outlive it."""

T = TypeVar("T")
Pending = dict[tuple[str, str, str], Writes]
"""Writes that wait on checkpoints, by (thread, namespace, checkpoint id)."""


class ConcurrentWriteError(AMCError):
    """The user's thread moved on while particles were running on it."""


class SaverBusyError(AMCError):
    """The app's saver stayed locked by others."""


PATIENCE = 60.0
"""Seconds for which a database that others have locked is asked again."""


async def commit(
    particle: Particle,
    saver: BaseCheckpointSaver | None,
    root_id: str | None,
    durability: Durability = "async",
) -> None:
    """Write a particle's lineage, oldest first, into ``saver`` and its store writes into the app's store.

    With ``durability="exit"`` only the last checkpoint is written, as by a plain run. Inside another graph a run
    that has finished leaves what its `NamespacedSaver` keeps.

    Raises
    ------
    ConcurrentWriteError: the thread's head is no longer ``root_id``; nothing has been written.
    UnserialisableStateError: the saver's serialiser cannot write a channel; the error names it and the type.
    SaverBusyError: the saver's database stayed locked for a minute.
    """
    engine = particle.launch.engine
    if isinstance(saver, NamespacedSaver) and particle.status != "interrupted":
        saver, durability = _left_inside(saver, durability)
    if saver is not None:
        writer = _Writer(engine, saver)
        await _unmoved(writer, particle, root_id)
        nodes, pending = particle.saver.lineage(), dict(particle.saver.pending_writes())
        if durability == "exit":
            nodes, pending = at_exit(particle, nodes, pending)
        for node in nodes:
            await writer.node(node)
        for (thread, ns, checkpoint_id), writes in pending.items():
            await writer.writes(_config((thread, ns), checkpoint_id), writes)
    if particle.store is not None and (ops := particle.store.uncommitted()):
        await engine.store_batch(particle.store.base, ops)


def _left_inside(saver: NamespacedSaver, durability: Durability) -> tuple[NamespacedSaver | None, Durability]:
    """Where and how a finished run inside another graph is kept."""
    if saver.keeps == "nothing":
        return None, durability
    return saver, "exit" if saver.keeps == "last" else durability


@dataclass(slots=True)
class _Writer:
    """Puts checkpoints into a saver; what is put twice is one, so a locked database can be asked again."""

    engine: Engine
    saver: BaseCheckpointSaver
    _thawed: dict[int, Any] = field(default_factory=dict)
    """Messages by the id of their cell: checkpoints of a lineage share them."""

    async def node(self, node: Node) -> None:
        parent = _config(node.key, node.parent_id)
        if node.edge:
            await self.writes(parent, node.edge)
        values = {name: self._thaw(cell) for name, cell in node.values.items()}
        checkpoint = {**node.checkpoint, "channel_values": values}
        await self._explained(values, self.engine.put, self.saver, parent, checkpoint, node.metadata, node.new_versions)

    async def writes(self, config: RunnableConfig, writes: Writes) -> None:
        by_task: dict[tuple[str, str], list[tuple[str, Any]]] = {}
        for write in ordered(writes):
            by_task.setdefault((write.task_id, write.task_path), []).append((write.channel, self._thaw(write.cell)))
        for (task_id, path), values in by_task.items():
            await self._explained(dict(values), self.engine.put_writes, self.saver, config, values, task_id, path)

    async def patient(self, act: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Act, again and again while others have the database locked."""
        deadline = time.monotonic() + PATIENCE
        pause = 0.01
        while True:
            try:
                return await act(*args)
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    raise
                if time.monotonic() + pause > deadline:
                    raise SaverBusyError(
                        f"the database of the app's saver was locked by others for {PATIENCE:.0f} s, so the winner "
                        "could not be committed: find who holds it, or give writers that share a file more time "
                        "(sqlite3.connect(timeout=…)) and WAL mode, then invoke again"
                    ) from error
            await self.engine.call(time.sleep, pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 1.0)

    async def _explained(self, values: Mapping[str, Any], act: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await self.patient(act, *args)
        except AMCError:
            raise
        except Exception as error:
            explain(self.saver.serde, values, error)
            raise

    def _thaw(self, cell: Cell) -> Any:
        if not isinstance(cell, MessageList):
            return cell.thaw()
        return [self._once(item) if isinstance(item, Packed) else item.thaw() for item in cell.items]

    def _once(self, item: Packed) -> Any:
        if id(item) not in self._thawed:
            self._thawed[id(item)] = item.thaw()
        return self._thawed[id(item)]


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return any(word in str(error).lower() for word in ("locked", "busy"))


def explain(serde: SerializerProtocol, values: Mapping[str, Any], error: Exception) -> None:
    """Raise UnserialisableStateError for the first channel that cannot be serialised, if there is one."""
    from langgraph_amc.runtime.journal.coding import dump  # imports SQLAlchemy

    for name, value in values.items():
        try:
            serde.dumps_typed(value)
        except Exception:  # serialisers raise whatever they like
            dump(serde, value, f"channel {name!r}")


def at_exit(particle: Particle, nodes: Sequence[Node], pending: Pending) -> tuple[list[Node], Pending]:
    """What a plain run with durability "exit" saves: the thread's last state, and the subgraphs to be gone on with.

    A `DeltaChannel` lies in the writes between checkpoints: a graph that has one keeps its lineage.
    """
    if any(isinstance(channel, DeltaChannel) for channel in particle.launch.app.channels.values()):
        return list(nodes), pending
    thread = particle.launch.thread_id
    head = particle.saver.head(thread)
    waiting = pending.get((thread, "", head.id), {}) if head is not None else {}
    asking = {write.task_id for write in waiting.values() if write.channel == "__interrupt__"}
    kept = [node for node in _last_of_each_call(nodes) if _lasts(node.key[1], asking)]
    left = {
        key: {slot: write for slot, write in writes.items() if write.task_id != NULL_TASK_ID}
        for key, writes in pending.items()
        if _lasts(key[1], asking)
    }
    return _alone(kept, {id(node) for node in nodes}), left


def _last_of_each_call(nodes: Sequence[Node]) -> list[Node]:
    """The last checkpoint of the run, and of every call of a subgraph: the next one begins with its input."""
    last: list[Node] = []
    at: dict[Key, int] = {}
    for node in nodes:
        if node.key in at and node.metadata.get("source") != "input":
            last[at[node.key]] = node
        else:
            at[node.key] = len(last)
            last.append(node)
    return last


def _lasts(ns: str, asking: set[str]) -> bool:
    """Whether a namespace outlives the run: the thread's own, a memory, or a subgraph that has been interrupted."""
    task = ns.split("|")[0].partition(":")[2]
    return ":" not in ns or task in asking


def _alone(kept: Sequence[Node], own: set[int]) -> list[Node]:
    """The nodes as each other's children, the first as the child of the checkpoint the run started from."""
    alone: list[Node] = []
    before: dict[Key, Node] = {}
    for node in kept:
        parent, external = before.get(node.key), None
        if parent is None:
            first = next(n for n, _ in chain(node) if n.parent is None or id(n.parent) not in own)
            parent, external = first.parent, first.external_parent
        versions = {} if parent is None else parent.checkpoint["channel_versions"]
        changed = {k: v for k, v in node.checkpoint["channel_versions"].items() if versions.get(k) != v}
        alone.append(replace(node, parent=parent, external_parent=external, new_versions=changed, edge={}))
        before[node.key] = node
    return alone


async def check_unmoved(particle: Particle, saver: BaseCheckpointSaver | None, root_id: str | None) -> None:
    """Raise ConcurrentWriteError if the user's thread has moved on, before a particle's effects happen."""
    if saver is not None:
        await _unmoved(_Writer(particle.launch.engine, saver), particle, root_id)


async def _unmoved(writer: _Writer, particle: Particle, root_id: str | None) -> None:
    thread_id = particle.launch.thread_id
    found = await writer.patient(writer.engine.load, writer.saver, _config((thread_id, "")))
    now = None if found is None else found.checkpoint["id"]
    if now == root_id:
        return
    records = () if particle.effects is None else particle.effects.records
    happened = [f"{record.tool} ({record.key})" for record in records if record.state == "committed"]
    advice = "run one call at a time per thread, then invoke again"
    if happened:
        advice = f"but these effects have happened: {', '.join(happened)}; calling again can make them happen once more"
    raise ConcurrentWriteError(
        f"thread {thread_id!r} was written to while AMC ran on it (head {root_id} is now {now}): nothing was "
        f"committed; {advice}"
    )


def _config(key: tuple[str, str], checkpoint_id: str | None = None) -> RunnableConfig:
    configurable: dict[str, Any] = {"thread_id": key[0], "checkpoint_ns": key[1]}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}
