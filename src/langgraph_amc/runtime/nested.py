"""Particles inside a node of another graph, as its subgraph: with the saver, the answers and the stream of that graph.

A run that is nested becomes an ordinary run over a `namespaced.NamespacedSaver`, which keeps its checkpoints where
LangGraph would keep those of a subgraph. Only a winner that is interrupted is written there: its interrupts go
outward as a subgraph's do, and when the graph around is resumed, the node runs again, finds the paused
lineage and goes on from it as N particles.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.types import Command

from langgraph_amc.context import current_particle
from langgraph_amc.runtime.engine import Engine, Owned
from langgraph_amc.runtime.launch import Event, parse_event
from langgraph_amc.runtime.namespaced import SEPARATOR, Keeps, NamespacedSaver
from langgraph_amc.runtime.request import StreamRequest, emission_of
from langgraph_amc.runtime.result import AMCResult

_FORWARDED = {"values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"}

Run = Callable[[StreamRequest, Engine, Callable[[AMCResult], None]], AsyncGenerator[Any, None]]


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

    def show(self, ns: str, saver: NamespacedSaver | None, event: Event) -> None:
        """Hand an event to the graph around, as one of a subgraph of its."""
        inner, mode, payload, _ = event
        if mode not in self.stream.modes:
            return
        if mode == "messages":
            for handler in self.handlers:
                handler.seen.add(payload[0].id)  # or it is streamed again when the node returns it
        elif saver is not None and mode in ("checkpoints", "debug"):
            payload = saver.located(payload)
        self.stream((tuple(ns.split(SEPARATOR)) + inner, mode, payload))


def place_of(request: StreamRequest, *, whole: bool) -> Place | None:
    """Where a nested run stands; ``None`` if it is not nested, or the graph around neither saves nor streams it."""
    if not request.nested:
        return None
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    handlers = callbacks.inheritable_handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    messages = tuple(h for h in handlers if type(h).__module__ == "langgraph.pregel._messages")
    place = Place(dict(request.config["configurable"]), messages, whole)
    return None if place.saver is None and place.stream is None else place


async def nested_stream(
    run: Run, request: StreamRequest, place: Place, engine: Engine, note: Callable[[AMCResult], None]
) -> AsyncGenerator[Any, None]:
    """Run particles inside a node; yields what its caller asked for, raises what a subgraph there would.

    Raises
    ------
    GraphInterrupt: the winner is interrupted, or its questions have not been answered yet.
    ParentCommand: the winner's command to the graph around.
    """
    lasting = request.app.checkpointer is True
    ns = place.namespace(lasting)
    emission = emission_of(request)
    inside = _visible(request, (*emission.modes, *place.modes), place.stream is not None)
    saver = None
    if place.saver is not None and request.app.checkpointer is not False:
        keeps: Keeps = "all" if lasting else "nothing" if place.whole else "last"
        outer = (str(place.configurable["thread_id"]), ns)
        saver = NamespacedSaver(place.saver, outer, _thread(place), keeps)
        inside = await _continued(_saved(inside, saver), saver, place, engine)
    records: list[AMCResult] = []

    def noted(result: AMCResult) -> None:
        records.append(result)
        note(result)

    try:
        async with aclosing(run(inside, engine, noted)) as events:
            async for raw in Owned(events):
                event = parse_event(raw)
                if place.stream is not None:
                    place.show(ns, saver, event)
                for out in emission.event(event):
                    yield out
    except ParentCommand as bubble:
        # particles are roots, whose parent LangGraph calls ""; in truth it is the graph around
        raise ParentCommand(replace(bubble.args[0], graph=place.configurable.get("checkpoint_ns", ""))) from None
    if records[0].winner.trajectory.status == "interrupted":
        state = await _state(inside, engine)
        raise GraphInterrupt(() if state is None else tuple(state.interrupts))


def _thread(place: Place) -> str:
    """A thread id that is the same when the task is run again, and another one in every particle around."""
    outer = current_particle.get()
    suffix = "" if outer is None else f"-{outer.particle}"
    return f"amc-{place.configurable['__pregel_task_id']}{suffix}"


def _visible(request: StreamRequest, modes: Sequence[str], forwarded: bool) -> StreamRequest:
    """The request with every event labelled by its namespace and mode."""
    options = {k: v for k, v in request.options.items() if k not in ("print_mode", "debug")}
    options |= {"stream_mode": list(dict.fromkeys(modes)), "subgraphs": True}
    return replace(request, options=options, watched=request.watched or forwarded)


def _saved(request: StreamRequest, saver: NamespacedSaver) -> StreamRequest:
    """The request as one of an app that stands alone, with a saver of its own."""
    app, options, configurable = request.app, dict(request.options), request.config["configurable"]
    app.checkpointer = saver
    runtime = configurable.get("__pregel_runtime")
    if runtime is not None:
        app.store = runtime.store or app.store
        if runtime.context is not None:
            options.setdefault("context", runtime.context)
    if "__pregel_durability" in configurable:
        options.setdefault("durability", configurable["__pregel_durability"])
    kept = {k: v for k, v in configurable.items() if not k.startswith(("__pregel_", "checkpoint_"))}
    config: RunnableConfig = {**request.config, "configurable": {**kept, "thread_id": saver.thread_id}}
    return replace(request, app=app, config=config, options=options)


async def _continued(request: StreamRequest, saver: NamespacedSaver, place: Place, engine: Engine) -> StreamRequest:
    """The request as it stands, or, where its task has paused or broken off before, as one to go on from there."""
    paused = await _state(request, engine)
    if paused is None:
        return request
    if saver.keeps == "nothing":
        saver.keeps = "last"  # it must not be found paused once more
    if not paused.interrupts:
        return replace(request, input=None)
    answers = place.answers(paused.interrupts)
    if not answers:
        raise GraphInterrupt(tuple(paused.interrupts))
    return replace(request, input=Command(resume=_resume(paused.interrupts, answers)))


def _resume(pending: Sequence[Any], answers: dict[str, Any]) -> Any:
    """What to resume with; a single answer is given as such, since LangGraph stores it at once, and a map never."""
    if len(pending) > 1:
        return answers
    (answer,) = answers.values()
    return answers if isinstance(answer, dict) else answer  # which it might take for a map


async def _state(request: StreamRequest, engine: Engine) -> Any:
    """What lies in this namespace to be gone on with; ``None`` if nothing does."""
    config: RunnableConfig = {"configurable": {"thread_id": request.config["configurable"]["thread_id"]}}
    state = await request.app.aget_state(config) if engine.is_async else request.app.get_state(config)
    return state if state.created_at is not None and (state.next or request.app.checkpointer.keeps != "all") else None
