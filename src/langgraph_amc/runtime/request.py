"""A call of ``stream`` or ``astream``: its config and options as the graph around it, the app and AMC shape them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import RemoveMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langchain_core.utils.input import get_bolded_text, get_colored_text
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Durability

from langgraph_amc.runtime.launch import MODES, Event
from langgraph_amc.runtime.settings import Settings

DEFAULT_RECURSION_LIMIT = int(os.environ.get("LANGGRAPH_DEFAULT_RECURSION_LIMIT", "10007"))
"""LangGraph's own."""

TASK_KEY = "amc_task"
"""Key of ``config["configurable"]`` under which the task of a run may be passed to its reward."""


RUN_KEY = "amc_run"
"""Key of ``config["configurable"]`` by which a caller may name a durable run."""

JOURNAL_KEY = "amc_journal_key"
"""Key of ``config["configurable"]`` by which a run that was left is called again."""

CONTEXT = "context="
"""Stands for the runtime context in a journal's list of what a call was given beside its input."""

_TASK = "__pregel_task_id"
"""In the config of a call that a graph makes to run a part of itself."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A call of ``stream``/``astream``."""

    app: Any
    settings: Settings
    input: Any
    config: RunnableConfig
    options: dict[str, Any]
    watched: bool = True
    """Whether anybody sees the stream's events before the run is over."""

    @property
    def nested(self) -> bool:
        """Whether the call comes from inside another graph, to run a part of it."""
        return _TASK in self.config["configurable"]


def call_config(app: Any, config: RunnableConfig | None) -> RunnableConfig:
    """The caller's config with what LangGraph would add to it from the graph around the call and from the app.

    As there, a config that names a thread or checkpoint of its own has nothing to do with the graph around it.
    The handlers by which that graph streams are left out: its users would get the tokens of N particles.
    """
    given: Any = config or {}
    bound: Any = app.config or {}
    around: Any = var_child_runnable_config.get() or {}
    configurable = {**(bound.get("configurable") or {}), **(given.get("configurable") or {})}
    if all(configurable.get(key) in (None, {}) for key in _ADDRESS):
        configurable = {**(around.get("configurable") or {}), **configurable}
    limits = [c["recursion_limit"] for c in (given, bound, around) if c.get("recursion_limit") is not None]
    merged: Any = {
        **{k: v for k, v in around.items() if k == "max_concurrency" and v is not None},
        **given,
        "tags": list(dict.fromkeys([*(around.get("tags") or []), *(given.get("tags") or [])])),
        "metadata": {**(around.get("metadata") or {}), **(given.get("metadata") or {})},
        "callbacks": _without_streams(_both(around.get("callbacks"), given.get("callbacks"))),
        "configurable": configurable,
    }
    if limits:
        merged["recursion_limit"] = limits[0]
    return merged


_ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def _both(around: Any, given: Any) -> Any:
    if not around or not given:
        return given or around
    return merge_configs({"callbacks": around}, {"callbacks": given})["callbacks"]


def _without_streams(callbacks: Any) -> Any:
    if not isinstance(callbacks, BaseCallbackManager):
        return callbacks
    callbacks = callbacks.copy()
    for handler in [*callbacks.handlers, *callbacks.inheritable_handlers]:
        if type(handler).__module__.startswith("langgraph.pregel."):
            callbacks.remove_handler(handler)
    return callbacks


@dataclass(frozen=True, slots=True)
class Emission:
    """Which of a particle's stream events the caller asked for, and in which form.

    Attributes
    ----------
    modes: those that have to be kept, to be given out or printed.
    given: those to be given out.
    printed: those of ``print_mode`` or ``debug``, written to the console.
    single: whether the caller asked for one mode and so gets bare payloads.
    saved: whether a plain run would save checkpoints; if not, those of particles are nothing to show.
    """

    modes: tuple[str, ...]
    given: frozenset[str]
    printed: frozenset[str]
    single: bool
    subgraphs: bool
    version: str
    saved: bool
    _removed: set[str] = field(default_factory=set)

    def event(self, event: Event) -> tuple[Any, ...]:
        """The event as the caller gets it, as a one-tuple; empty if it was not asked for. Prints it if it was."""
        ns, mode, payload, raw = event
        if (ns and not self.subgraphs) or self._internal(mode, payload):
            return ()
        if mode in self.printed:
            _print(ns, mode, payload)
        if mode not in self.given or (mode == "messages" and self._repeats(payload)):
            return ()
        if self.version == "v2":
            return ({"type": mode, "ns": ns, "data": payload} if raw is None else raw,)
        if self.single:
            return ((ns, payload),) if self.subgraphs else (payload,)
        return ((ns, mode, payload) if self.subgraphs else (mode, payload),)

    def gives(self, event: Event) -> bool:
        """Whether the caller gets events like this one."""
        ns, mode, payload, _ = event
        return mode in self.given and (self.subgraphs or not ns) and not self._internal(mode, payload)

    def _internal(self, mode: str, payload: Any) -> bool:
        if self.saved:
            return False
        return mode == "checkpoints" or (mode == "debug" and payload["type"] == "checkpoint")

    def _repeats(self, payload: Any) -> bool:
        """LangGraph streams one removal of all messages per run, and a clone is a run of its own."""
        message = payload[0]
        if not isinstance(message, RemoveMessage):
            return False
        known = message.id in self._removed
        self._removed.add(str(message.id))
        return known


def _print(ns: tuple[str, ...], mode: str, payload: Any) -> None:
    """As LangGraph prints an event."""
    where = [get_colored_text(f"[graph={ns}]", color="yellow")] if ns else []
    print(" ".join([get_bolded_text(f"[{mode}]"), *where, repr(payload)]))


def emission_of(request: StreamRequest) -> Emission:
    """What the caller wants to see; inside another graph the default is values, as for a subgraph."""
    options = request.options
    modes = options.get("stream_mode") or ("values" if request.nested else request.app.stream_mode)
    printed = ("updates", "values") if options.get("debug") else options.get("print_mode") or ()
    given, shown = _names(modes), _names(printed)
    return Emission(
        tuple(dict.fromkeys((*given, *shown))),
        frozenset(given),
        frozenset(shown),
        not isinstance(modes, list),
        bool(options.get("subgraphs")),
        options.get("version", "v1"),
        _saves(request),
    )


def _saves(request: StreamRequest) -> bool:
    saver = request.app.checkpointer
    if saver is not False and not isinstance(saver, BaseCheckpointSaver) and request.nested:
        saver = request.config["configurable"].get("__pregel_checkpointer")
    return isinstance(saver, BaseCheckpointSaver)


def _names(modes: str | Sequence[str]) -> tuple[str, ...]:
    return (modes,) if isinstance(modes, str) else tuple(modes)


def durability_of(request: StreamRequest) -> Durability:
    """When the app's saver is written to: as asked for in the call, or by the graph around it."""
    options = request.options
    during = options.get("checkpoint_during")
    if during is not None and options.get("durability") is not None:
        raise ValueError("Cannot use both `checkpoint_during` and `durability` parameters.")
    given = options.get("durability") or (None if during is None else "async" if during else "exit")
    inherited = request.config["configurable"].get("__pregel_durability")
    return cast(Durability, given or inherited or "async")


def particle_config(request: StreamRequest) -> RunnableConfig:
    """The caller's config as particles may have it."""
    config: RunnableConfig = {**request.config}
    configurable = dict(request.config["configurable"])
    if request.nested:
        # particles run as roots, not as N copies of the caller's task
        keep = {k: v for k, v in configurable.items() if not k.startswith(("__pregel_", "checkpoint_"))}
        configurable = {**keep, "thread_id": f"amc-{uuid.uuid4().hex}"}
    config["configurable"] = configurable
    if request.settings.particles > 1:
        config.pop("run_id", None)  # one id cannot name N runs
    return config


def particle_options(request: StreamRequest, emission: Emission) -> dict[str, Any]:
    """The caller's options as particles may have them."""
    dropped = ("stream_mode", "print_mode", "debug", "durability", "checkpoint_during")
    kept = {k: v for k, v in request.options.items() if k not in dropped and v is not None}
    if _is_plain(request) and (durability := durability_of(request)) != "async":
        kept["durability"] = durability  # a plain run: it writes to the app's saver itself
    runtime = request.config["configurable"].get("__pregel_runtime")
    if runtime is not None and runtime.context is not None:
        kept.setdefault("context", runtime.context)
    return {**kept, "stream_mode": list(dict.fromkeys((*MODES, *emission.modes)))}


def _is_plain(request: StreamRequest) -> bool:
    saved = isinstance(request.app.checkpointer, BaseCheckpointSaver) and not request.nested
    return saved and request.settings.particles == 1


def breakpoints(request: StreamRequest, name: str) -> Any:
    """Nodes of a static breakpoint, ``interrupt_before`` or ``interrupt_after``; ``"*"`` for all."""
    nodes = request.options.get(name) or getattr(request.app, f"{name}_nodes")
    return "*" if nodes == "*" else frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def store_of(request: StreamRequest) -> Any:
    """The store that nodes would see in a plain run."""
    runtime = request.config["configurable"].get("__pregel_runtime")
    return request.app.store if runtime is None else runtime.store or request.app.store
