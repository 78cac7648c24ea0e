"""Particles inside a node of another graph, as its subgraph: with the saver, the answers and the stream of that graph.

A run that is nested becomes an ordinary run over a `NamespacedSaver`, which keeps its checkpoints where
LangGraph would keep those of a subgraph. Only a winner that is interrupted is written there: its interrupts go
outward as a subgraph's do, and when the graph around is resumed, the node runs again, finds the paused
lineage and goes on from it as N particles.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.types import Command

from langgraph_amc.context import current_particle
from langgraph_amc.runtime.engine import Engine, Owned
from langgraph_amc.runtime.launch import Event, parse_event
from langgraph_amc.runtime.request import StreamRequest, emission_of
from langgraph_amc.runtime.result import AMCResult

Keeps = Literal["nothing", "last", "all"]

SEPARATOR = "|"
"""Between the levels of a checkpoint namespace."""

_FORWARDED = {"values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"}

Run = Callable[[StreamRequest, Engine, Callable[[AMCResult], None]], AsyncGenerator[Any, None]]


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the graph around it a run stands: its task's own part of that graph's config."""

    configurable: dict[str, Any]
    handlers: tuple[Any, ...] = ()
    """Those by which the graph around streams messages."""
    whole: bool = False
    """Whether the run is all that its node does, so that a node that runs again does not need to find it finished."""

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The saver the graph around lends to what runs inside it."""
        found = self.configurable.get("__pregel_checkpointer")
        return found if isinstance(found, BaseCheckpointSaver) else None

    @property
    def stream(self) -> Any:
        """Takes (namespace, mode, payload); ``None`` unless the graph around streams its subgraphs."""
        return self.configurable.get("__pregel_stream")

    @property
    def modes(self) -> tuple[str, ...]:
        """What the graph around streams of its subgraphs."""
        return () if self.stream is None else tuple(sorted(self.stream.modes & _FORWARDED))

    def namespace(self, lasting: bool) -> str:
        """The checkpoint namespace of this call; counts the calls made by the task, as LangGraph does."""
        ns = str(self.configurable.get("checkpoint_ns", ""))
        if count := self.configurable["__pregel_scratchpad"].subgraph_counter():
            ns = f"{ns}{SEPARATOR}{count}"
        return SEPARATOR.join(part.split(":")[0] for part in ns.split(SEPARATOR)) if lasting else ns

    def answers(self, pending: Sequence[Any]) -> dict[str, Any]:
        """What the graph around was told in answer to these interrupts, by their ids."""
        given = self.configurable.get("__pregel_resume_map") or {}
        answers = {i.id: given[i.id] for i in pending if i.id in given}
        if not answers and len(pending) == 1:
            answer = self.configurable["__pregel_scratchpad"].get_null_resume(True)
            answers = {} if answer is None else {pending[0].id: answer}
        return answers

    def show(self, saver: NamespacedSaver, event: Event) -> None:
        """Hand an event to the graph around, as one of a subgraph of its."""
        inner, mode, payload, _ = event
        if mode not in self.stream.modes:
            return
        if mode == "messages":
            for handler in self.handlers:
                handler.seen.add(payload[0].id)  # or it is streamed again when the node returns it
        elif mode in ("checkpoints", "debug"):
            payload = saver.located(payload)
        self.stream((tuple(saver.outer[1].split(SEPARATOR)) + inner, mode, payload))


def place_of(request: StreamRequest, *, whole: bool) -> Place | None:
    """Where a nested run stands; ``None`` if it is not nested, or may not or cannot be saved there."""
    if not request.nested or request.app.checkpointer is False:
        return None
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    handlers = callbacks.inheritable_handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    messages = tuple(h for h in handlers if type(h).__module__ == "langgraph.pregel._messages")
    place = Place(dict(request.config["configurable"]), messages, whole)
    return None if place.saver is None else place


async def nested_stream(
    run: Run, request: StreamRequest, place: Place, engine: Engine, note: Callable[[AMCResult], None]
) -> AsyncGenerator[Any, None]:
    """Run particles inside a node; yields what its caller asked for, raises what a subgraph there would.

    Raises
    ------
    GraphInterrupt: the winner is interrupted, or its questions have not been answered yet.
    ParentCommand: the winner's command to the graph around.
    """
    assert place.saver is not None
    lasting = request.app.checkpointer is True
    ns = place.namespace(lasting)
    keeps: Keeps = "all" if lasting else "nothing" if place.whole else "last"
    saver = NamespacedSaver(place.saver, (str(place.configurable["thread_id"]), ns), _thread(place), keeps)
    emission = emission_of(request)
    inside = _inside(request, saver, (*emission.modes, *place.modes), request.watched or place.stream is not None)
    paused = await _state(inside, engine)
    if paused is not None:
        saver.keeps = "all" if lasting else "last"  # it must not be found paused once more
        inside = replace(inside, input=_answered(place, paused, request.input))
    records: list[AMCResult] = []
    try:
        async with aclosing(run(inside, engine, records.append)) as events:
            async for raw in Owned(events):
                event = parse_event(raw)
                if place.stream is not None:
                    place.show(saver, event)
                for out in emission.event(event):
                    yield out
    except ParentCommand as bubble:
        # particles are roots, whose parent LangGraph calls ""; in truth it is the graph around
        raise ParentCommand(replace(bubble.args[0], graph=place.configurable.get("checkpoint_ns", ""))) from None
    note(records[0])
    if records[0].winner.trajectory.status == "interrupted":
        state = await _state(inside, engine)
        raise GraphInterrupt(() if state is None else tuple(state.interrupts))


def _thread(place: Place) -> str:
    """A thread id that is the same when the task is run again, and another one in every particle around."""
    outer = current_particle.get()
    suffix = "" if outer is None else f"-{outer.particle}"
    return f"amc-{place.configurable['__pregel_task_id']}{suffix}"


def _inside(request: StreamRequest, saver: NamespacedSaver, modes: Sequence[str], watched: bool) -> StreamRequest:
    """The request as one of an app that stands alone, with a saver of its own."""
    app, configurable = request.app, request.config["configurable"]
    app.checkpointer = saver
    options = {k: v for k, v in request.options.items() if k not in ("print_mode", "debug")}
    runtime = configurable.get("__pregel_runtime")
    if runtime is not None:
        app.store = runtime.store or app.store
        if runtime.context is not None:
            options.setdefault("context", runtime.context)
    if "__pregel_durability" in configurable:
        options.setdefault("durability", configurable["__pregel_durability"])
    # a list of modes with subgraphs: every event comes with its namespace and mode
    options |= {"stream_mode": list(dict.fromkeys(modes)), "subgraphs": True}
    kept = {k: v for k, v in configurable.items() if not k.startswith(("__pregel_", "checkpoint_"))}
    config: RunnableConfig = {**request.config, "configurable": {**kept, "thread_id": saver.thread_id}}
    return replace(request, app=app, config=config, options=options, watched=watched)


async def _state(request: StreamRequest, engine: Engine) -> Any:
    """What is paused in this namespace; ``None`` where nothing is."""
    config: RunnableConfig = {"configurable": {"thread_id": request.config["configurable"]["thread_id"]}}
    state = await request.app.aget_state(config) if engine.is_async else request.app.get_state(config)
    return state if state.created_at is not None and (state.next or request.app.checkpointer.keeps != "all") else None


def _answered(place: Place, paused: Any, given: Any) -> Any:
    """How to go on from a pause: with the answers, or, from a breakpoint or a crash, just on."""
    if not paused.interrupts:
        return None
    answers = place.answers(paused.interrupts)
    if not answers:
        raise GraphInterrupt(tuple(paused.interrupts))
    return Command(resume=answers)
