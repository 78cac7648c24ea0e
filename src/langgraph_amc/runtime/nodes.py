"""Checkpoints as an immutable tree: nodes with parent pointers, shared by every particle that descends from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, CheckpointMetadata, writes_sort_key

from langgraph_amc.runtime.cells import Cell

Key = tuple[str, str]
"""(thread id, checkpoint namespace)"""
WriteKey = tuple[str, int]
"""(task id, index of the write within the task)"""


@dataclass(frozen=True, slots=True)
class Write:
    task_id: str
    channel: str
    cell: Cell
    task_path: str
    index: int


Writes = dict[WriteKey, Write]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One saved checkpoint, shared by every particle that descends from it."""

    key: Key
    id: str
    parent: Node | None
    external_parent: str | None
    """Parent in the app's own saver, for the root that was adopted from it."""
    checkpoint: Mapping[str, Any]
    """The checkpoint without its channel values."""
    values: Mapping[str, Cell]
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    edge: Writes
    """Writes stored on the parent that led to this node."""

    @property
    def parent_id(self) -> str | None:
        return self.parent.id if self.parent is not None else self.external_parent

    def config(self, checkpoint_id: str | None) -> RunnableConfig:
        thread, ns = self.key
        configurable: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ns}
        if checkpoint_id is not None:
            configurable["checkpoint_id"] = checkpoint_id
        return {"configurable": configurable}


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Every node a lineage saved, newest first, over all namespaces."""

    node: Node
    previous: Log | None


def ordered(writes: Writes) -> list[Write]:
    """Writes in the order in which LangGraph replays them."""
    return sorted(writes.values(), key=lambda w: writes_sort_key(w.task_path, w.task_id, w.index))


def chain(head: Node) -> Iterator[tuple[Node, Node | None]]:
    node: Node | None = head
    child: Node | None = None
    while node is not None:
        yield node, child
        node, child = node.parent, node
