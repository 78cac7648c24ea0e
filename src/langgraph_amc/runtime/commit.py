"""Handing the winner over: its checkpoints, pending writes and store writes become the app's own.

Checkpoint ids are kept, so that ``get_state``, the history, the next turn and ``Command(resume=…)`` behave as
after a plain run.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_amc.errors import AMCError
from langgraph_amc.runtime.cells import Cell, MessageList, Packed
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.nodes import Node, Writes, ordered
from langgraph_amc.runtime.particle import Particle


class ConcurrentWriteError(AMCError):
    """The user's thread moved on while particles were running on it."""


async def commit(particle: Particle, saver: BaseCheckpointSaver | None, root_id: str | None) -> None:
    """Write a particle's lineage, oldest first, into ``saver`` and its store writes into the app's store.

    Raises ConcurrentWriteError, having written nothing, if the thread's head is no longer ``root_id``.
    """
    engine = particle.launch.engine
    if saver is not None:
        await _unmoved(engine, saver, particle.launch.thread_id, root_id)
        thaw = _Thaw()
        for node in particle.saver.lineage():
            await _commit_node(engine, saver, node, thaw)
        for (thread, ns, checkpoint_id), writes in list(particle.saver.pending_writes().items()):
            await _commit_writes(engine, saver, _config((thread, ns), checkpoint_id), writes, thaw)
    if particle.store is not None and (ops := particle.store.uncommitted()):
        await engine.store_batch(particle.store.base, ops)


class _Thaw:
    """Thaws each message once for a whole lineage, whose checkpoints share them."""

    def __init__(self) -> None:
        self._messages: dict[int, Any] = {}

    def __call__(self, cell: Cell) -> Any:
        if not isinstance(cell, MessageList):
            return cell.thaw()
        return [self._once(item) if isinstance(item, Packed) else item.thaw() for item in cell.items]

    def _once(self, item: Packed) -> Any:
        if id(item) not in self._messages:
            self._messages[id(item)] = item.thaw()
        return self._messages[id(item)]


async def _unmoved(engine: Engine, saver: BaseCheckpointSaver, thread_id: str, root_id: str | None) -> None:
    found = await engine.load(saver, _config((thread_id, "")))
    now = None if found is None else found.checkpoint["id"]
    if now != root_id:
        raise ConcurrentWriteError(
            f"thread {thread_id!r} was written to while AMC ran on it (head {root_id} is now {now}): nothing was "
            "committed; run one call at a time per thread, then invoke again"
        )


async def _commit_node(engine: Engine, saver: BaseCheckpointSaver, node: Node, thaw: _Thaw) -> None:
    parent = _config(node.key, node.parent_id)
    if node.edge:
        await _commit_writes(engine, saver, parent, node.edge, thaw)
    checkpoint = {
        **node.checkpoint,
        "channel_values": {name: thaw(cell) for name, cell in node.values.items()},
    }
    await engine.put(saver, parent, checkpoint, node.metadata, node.new_versions)


async def _commit_writes(
    engine: Engine, saver: BaseCheckpointSaver, config: RunnableConfig, writes: Writes, thaw: _Thaw
) -> None:
    by_task: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for write in ordered(writes):
        by_task.setdefault((write.task_id, write.task_path), []).append((write.channel, thaw(write.cell)))
    for (task_id, path), values in by_task.items():
        await engine.put_writes(saver, config, values, task_id, path)


def _config(key: tuple[str, str], checkpoint_id: str | None = None) -> RunnableConfig:
    configurable: dict[str, Any] = {"thread_id": key[0], "checkpoint_ns": key[1]}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}
