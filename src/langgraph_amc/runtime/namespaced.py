"""The part of another graph's saver that belongs to a run inside one of its tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

Keeps = Literal["nothing", "last", "all"]

SEPARATOR = "|"
"""Between the levels of a checkpoint namespace."""


class NamespacedSaver(BaseCheckpointSaver):
    """The part of another graph's saver that belongs to a run inside one of its tasks.

    Parameters
    ----------
    base: the saver of the graph around.
    outer: its thread id and the checkpoint namespace of the task.
    thread_id: how the run inside calls its own thread.
    keeps: what is to be left of a run that has finished: nothing, its last state, or, as the memory of the next,
        all of it. The last state lets a node that runs again find the same answer.
    """

    def __init__(self, base: BaseCheckpointSaver, outer: tuple[str, str], thread_id: str, keeps: Keeps) -> None:
        super().__init__(serde=base.serde)
        self.base = base
        self.outer = outer
        self.thread_id = thread_id
        self.keeps = keeps

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._inward(self.base.get_tuple(self._outward(config)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._inward(await self.base.aget_tuple(self._outward(config)))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        where = self._outward(config or {"configurable": {}})
        for found in self.base.list(where, filter=filter, before=before, limit=limit):
            yield self._mine(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        where = self._outward(config or {"configurable": {}})
        async for found in self.base.alist(where, filter=filter, before=before, limit=limit):
            yield self._mine(found)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._back(self.base.put(self._outward(config), checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._back(await self.base.aput(self._outward(config), checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.base.put_writes(self._outward(config), writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.base.aput_writes(self._outward(config), writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        return self.base.get_next_version(current, channel)

    def located(self, payload: Any) -> Any:
        """A checkpoint event's payload with the addresses the graph around knows."""
        if isinstance(payload, list):
            return [self.located(v) for v in payload]
        if not isinstance(payload, dict):
            return payload
        if payload.keys() == {"configurable"} and payload["configurable"].get("thread_id") == self.thread_id:
            return self._outward(payload)  # type: ignore[arg-type]
        return {k: v if k == "values" else self.located(v) for k, v in payload.items()}

    def _outward(self, config: RunnableConfig) -> RunnableConfig:
        inner = config["configurable"]
        thread_id, prefix = self.outer
        ns = inner.get("checkpoint_ns", "")
        names = {"thread_id": thread_id, "checkpoint_ns": f"{prefix}{SEPARATOR}{ns}" if ns else prefix}
        return {**config, "configurable": {**inner, **names}}

    def _back(self, config: RunnableConfig) -> RunnableConfig:
        outer = config["configurable"]
        ns = outer.get("checkpoint_ns", "").removeprefix(self.outer[1]).removeprefix(SEPARATOR)
        return {**config, "configurable": {**outer, "thread_id": self.thread_id, "checkpoint_ns": ns}}

    def _mine(self, found: CheckpointTuple) -> CheckpointTuple:
        parent = None if found.parent_config is None else self._back(found.parent_config)
        return found._replace(config=self._back(found.config), parent_config=parent)

    def _inward(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        return None if found is None else self._mine(found)
