"""The copy-on-write checkpoint saver of one particle.

Checkpoints form parent-pointer chains of immutable nodes that clones share; a particle owns only its heads
and the writes that are pending on them, so a fork costs O(namespaces) whatever the history. Checkpoint ids
are kept, because LangGraph derives task ids, subgraph namespaces and interrupt ids from them: a clone that
keeps the id continues half-finished super-steps exactly. Writes live on the edge from a checkpoint to its
child, per particle: two clones of one checkpoint must never see each other's results.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from langgraph_amc.runtime.cells import (
    ATOMS,
    Cell,
    MessageFreezer,
    MessageList,
    Shared,
    freeze,
    freeze_write,
    is_message_list,
)
from langgraph_amc.runtime.nodes import Key, Log, Node, Write, Writes, chain, ordered


@dataclass(slots=True)
class _State:
    """The mutable part; one object, because LangGraph may shallow-copy a saver."""

    heads: dict[Key, Node] = field(default_factory=dict)
    pending: dict[tuple[str, str, str], Writes] = field(default_factory=dict)
    log: Log | None = None
    freezers: dict[tuple[Key, str], MessageFreezer] = field(default_factory=dict)
    written: dict[tuple[str, str, str], set[int]] = field(default_factory=dict)
    saved: threading.Condition = field(default_factory=threading.Condition)


class ParticleSaver(BaseCheckpointSaver):
    """Checkpoints of one particle over the app's own saver, which it reads through and never writes."""

    def __init__(self, base: BaseCheckpointSaver | None = None) -> None:
        super().__init__(serde=None if base is None else base.serde)
        self.base = base
        self.bound: str | None = None
        """Where a run that was addressed at a past checkpoint reads subgraphs' memories: not after this id."""
        self._s = _State()

    # -- particles -------------------------------------------------------------------------------

    def fork(self) -> ParticleSaver:
        """An independent saver at the same point; O(number of namespaces and pending writes)."""
        clone = self.blank()
        clone.bound = self.bound
        clone._s.heads = dict(self._s.heads)
        clone._s.pending = {k: dict(w) for k, w in self._s.pending.items()}
        clone._s.log = self._s.log
        return clone

    def head(self, thread_id: str, ns: str = "") -> Node | None:
        """Newest checkpoint of a namespace."""
        return self._s.heads.get((thread_id, ns))

    def wait_saved(self, thread_id: str, checkpoint_id: str, timeout: float = 60.0) -> bool:
        """Block until the background save of ``checkpoint_id`` has landed; ``False`` on time-out."""
        with self._s.saved:
            return self._s.saved.wait_for(lambda: self.is_saved(thread_id, checkpoint_id), timeout)

    def is_saved(self, thread_id: str, checkpoint_id: str) -> bool:
        head = self._s.heads.get((thread_id, ""))
        return head is not None and head.id == checkpoint_id

    def lineage(self) -> list[Node]:
        """All nodes this lineage saved itself, oldest first."""
        nodes: list[Node] = []
        log = self._s.log
        while log is not None:
            nodes.append(log.node)
            log = log.previous
        nodes.reverse()
        return nodes

    def pending_writes(self) -> dict[tuple[str, str, str], Writes]:
        """Writes waiting on heads, by (thread, namespace, checkpoint id)."""
        return self._s.pending

    def shared_channels(self) -> set[str]:
        """Channels whose values could not be copied, so that particles share them."""
        return {
            name
            for head in self._s.heads.values()
            for name, cell in head.values.items()
            if isinstance(cell, Shared) and type(cell.value) not in ATOMS
        }

    def adopt(self, found: CheckpointTuple) -> Node:
        """Take a checkpoint of the app's own saver as the root of a namespace."""
        configurable = found.config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        checkpoint: dict[str, Any] = dict(found.checkpoint)
        values = checkpoint.pop("channel_values")
        parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        node = Node(
            key,
            found.checkpoint["id"],
            None,
            parent,
            checkpoint,
            {name: self._freeze(key, name, value) for name, value in values.items()},
            found.metadata,
            {},
            {},
        )
        self._s.heads[key] = node
        if found.pending_writes:
            counts: dict[str, int] = {}
            writes: Writes = {}
            for order, (task_id, channel, value) in enumerate(found.pending_writes):
                index = WRITES_IDX_MAP.get(channel, counts.get(task_id, 0))
                counts[task_id] = counts.get(task_id, 0) + 1
                # the tuple does not tell task paths; its order is theirs
                writes[(task_id, index)] = Write(task_id, channel, freeze(value), f"~{order:010d}", index)
            self._s.pending[(*key, node.id)] = writes
        return node

    # -- BaseCheckpointSaver, reading --------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = self._find(config)
        if found is not None or self.base is None or not self._reads_base(config):
            return found
        if before := self._before(config):
            return self._adopt_latest(config, next(iter(self.base.list(config, before=before, limit=1)), None))
        return self._adopt_latest(config, self.base.get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = self._find(config)
        if found is not None or self.base is None or not self._reads_base(config):
            return found
        if before := self._before(config):
            newest = [t async for t in self.base.alist(config, before=before, limit=1)]
            return self._adopt_latest(config, newest[0] if newest else None)
        return self._adopt_latest(config, await self.base.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        own = self._own(config, filter, before, limit)
        yield from own
        left = None if limit is None else limit - len(own)
        if self.base is not None and left != 0:
            for found in self.base.list(config, filter=filter, before=before, limit=left):
                if not self._holds(found):
                    yield found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        own = self._own(config, filter, before, limit)
        for mine in own:
            yield mine
        left = None if limit is None else limit - len(own)
        if self.base is not None and left != 0:
            async for found in self.base.alist(config, filter=filter, before=before, limit=left):
                if not self._holds(found):
                    yield found

    # -- BaseCheckpointSaver, writing --------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        configurable = config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        parent_id = configurable.get("checkpoint_id")
        parent = self._node(key, parent_id)[0] if parent_id else None
        bare: dict[str, Any] = dict(checkpoint)
        live = bare.pop("channel_values")
        edge_key = (*key, parent_id or "")
        rewritten = frozenset(self._s.written.pop(edge_key, ()))
        values: dict[str, Cell] = {}
        for name in bare["channel_versions"]:
            if parent is not None and name not in new_versions and name in parent.values:
                values[name] = parent.values[name]
            elif name in live:
                values[name] = self._freeze(key, name, live[name], rewritten)
        node = Node(
            key,
            checkpoint["id"],
            parent,
            parent_id if parent is None else None,
            bare,
            values,
            get_checkpoint_metadata(config, metadata),
            new_versions,
            self._s.pending.pop(edge_key, {}),
        )
        with self._s.saved:
            self._s.heads[key] = node
            self._s.log = Log(node, self._s.log)
            self._s.saved.notify_all()
        return node.config(node.id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        configurable = config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        checkpoint_id = configurable["checkpoint_id"]
        # LangGraph may save a task's writes after the checkpoint they led to: they belong on that edge
        _, child = self._node(key, checkpoint_id)
        target = child.edge if child is not None else self._s.pending.setdefault((*key, checkpoint_id), {})
        touched = self._s.written.setdefault((*key, checkpoint_id), set()) if child is None else set()
        for index, (channel, value) in enumerate(writes):
            slot = (task_id, WRITES_IDX_MAP.get(channel, index))
            if slot[1] >= 0 and slot in target:
                continue
            target[slot] = Write(task_id, channel, freeze_write(value), task_path, slot[1])
            touched.update(id(v) for v in value) if isinstance(value, list) else touched.add(id(value))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        for key in [k for k in self._s.heads if k[0] == thread_id]:
            del self._s.heads[key]
        for pending in [k for k in self._s.pending if k[0] == thread_id]:
            del self._s.pending[pending]

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        if self.base is not None:
            return self.base.get_next_version(current, channel)
        return 1 if current is None else int(current) + 1

    # -- inside --------------------------------------------------------------------------------------

    def blank(self) -> ParticleSaver:
        return ParticleSaver(self.base)

    def _own(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Sequence[CheckpointTuple]:
        """This particle's checkpoints that match, newest first; all are newer than those of the app's saver."""
        configurable = (config or {}).get("configurable", {})
        bound = (before or {}).get("configurable", {}).get("checkpoint_id")
        wanted = configurable.get("checkpoint_id")
        heads: dict[Key, Node] = self._s.heads
        nodes = [
            (node, child)
            for key, head in heads.items()
            if configurable.get("thread_id", key[0]) == key[0] and configurable.get("checkpoint_ns", key[1]) == key[1]
            for node, child in chain(head)
            if (not wanted or node.id == wanted)
            and (not bound or node.id < bound)
            and all(node.metadata.get(k) == v for k, v in (filter or {}).items())
        ]
        nodes.sort(key=lambda pair: pair[0].id, reverse=True)
        return [self._tuple(node, child) for node, child in nodes[:limit]]

    def _holds(self, found: CheckpointTuple) -> bool:
        configurable = found.config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        return self._node(key, found.checkpoint["id"])[0] is not None

    def _node(self, key: Key, checkpoint_id: str | None) -> tuple[Node | None, Node | None]:
        """The node with this id (the head for ``None``) and its child on this particle's path."""
        head = self._s.heads.get(key)
        if checkpoint_id is None or head is None:
            return head, None
        for node, child in chain(head):
            if node.id == checkpoint_id:
                return node, child
        return None, None

    def _find(self, config: RunnableConfig) -> CheckpointTuple | None:
        configurable = config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        node, child = self._node(key, configurable.get("checkpoint_id"))
        return None if node is None else self._tuple(node, child)

    def _reads_base(self, config: RunnableConfig) -> bool:
        """Older checkpoints live in the app's saver; a namespace with a head has its newest one here."""
        configurable = config["configurable"]
        key = (configurable["thread_id"], configurable.get("checkpoint_ns", ""))
        return bool(configurable.get("checkpoint_id")) or key not in self._s.heads

    def _before(self, config: RunnableConfig) -> RunnableConfig | None:
        configurable = config["configurable"]
        if self.bound is None or configurable.get("checkpoint_id") or not configurable.get("checkpoint_ns"):
            return None
        return {"configurable": {"checkpoint_id": self.bound}}

    def _adopt_latest(self, config: RunnableConfig, found: CheckpointTuple | None) -> CheckpointTuple | None:
        if found is None or config["configurable"].get("checkpoint_id"):
            return found
        return self._tuple(self.adopt(found), None)

    def holds(self, channel: str, value: Any) -> MessageList | None:
        """The cell in a newest checkpoint as which this live list of messages was saved."""
        for key, head in self._s.heads.items():
            cell = head.values.get(channel)
            if isinstance(cell, MessageList) and self._freezer(key, channel).is_frozen(value, cell):
                return cell
        return None

    def _freezer(self, key: Key, channel: str) -> MessageFreezer:
        return self._s.freezers.setdefault((key, channel), MessageFreezer())

    def _freeze(self, key: Key, channel: str, value: Any, rewritten: frozenset[int] = frozenset()) -> Cell:
        if is_message_list(value):
            return self._freezer(key, channel).freeze(value, rewritten)
        return freeze(value)

    def _thaw(self, node: Node, channel: str, cell: Cell) -> Any:
        if isinstance(cell, MessageList) and self._s.heads.get(node.key) is node:
            return self._freezer(node.key, channel).thaw(cell)
        return cell.thaw()

    def _tuple(self, node: Node, child: Node | None) -> CheckpointTuple:
        checkpoint: Any = {
            **node.checkpoint,
            "channel_versions": dict(node.checkpoint["channel_versions"]),
            "versions_seen": {k: dict(v) for k, v in node.checkpoint["versions_seen"].items()},
            "channel_values": {name: self._thaw(node, name, cell) for name, cell in node.values.items()},
        }
        writes = child.edge if child is not None else self._s.pending.get((*node.key, node.id), {})
        return CheckpointTuple(
            node.config(node.id),
            checkpoint,
            {**node.metadata},
            node.config(node.parent_id) if node.parent_id else None,
            [(w.task_id, w.channel, w.cell.thaw()) for w in ordered(writes)],
        )
