"""The one place where LangChain is patched: every tool call of a particle passes the gate.

Whatever calls a tool ends in `BaseTool.run` or `BaseTool.arun`: LangGraph's tool node, `create_agent`, retries and
other middleware, and nodes that call ``tool.invoke``. There is no hook before them: callbacks cannot stop a call
or answer in its stead, and wrapping the tools would mean to rebuild the user's graph. So these two methods are
wrapped once, at the class; outside a particle the wrapper costs one look at a context variable. A tool class of
the app that overrides them is wrapped too; where it calls the inherited method, that one passes no second gate.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, StructuredTool, Tool

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.current import current_effects, opening
from langgraph_amc.runtime.effects.gate import AWAITING, BLOCKING, Call, gate
from langgraph_amc.runtime.effects.identity import jsonable
from langgraph_amc.runtime.effects.outcome import decode, decode_error
from langgraph_amc.runtime.effects.policy import ATTRIBUTE, EffectRules
from langgraph_amc.runtime.effects.records import Answer, StatefulCall
from langgraph_amc.runtime.effects.scope import EffectScope
from langgraph_amc.runtime.engine import complete

_installing = threading.Lock()
_patched: dict[type[BaseTool], dict[str, Any]] = {}
"""Original methods by class."""


def install(rules: EffectRules) -> None:
    """Wrap `BaseTool.run` and `arun`, and the overrides of the app's own tool classes; once per class."""
    for kind in {BaseTool, *(k for tool in rules.tools.values() for k in type(tool).__mro__)}:
        if issubclass(kind, BaseTool):
            _wrap(kind)


def _wrap(kind: type[BaseTool]) -> None:
    if kind in _patched:
        return
    with _installing:
        if kind in _patched:
            return
        originals = {name: vars(kind)[name] for name in ("run", "arun") if name in vars(kind)}
        if "run" in originals:
            setattr(kind, "run", _gated_run(originals["run"]))  # noqa: B010 - mypy does not let one assign a method
        if "arun" in originals:
            setattr(kind, "arun", _gated_arun(originals["arun"]))  # noqa: B010
        _patched[kind] = originals


def _gated_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_effects.get()
        if scope is None:
            return original(self, tool_input, *args, **kwargs)
        if scope.rules.of_tool(self) == "pure":
            with opening(_decorated_function(self)):
                return original(self, tool_input, *args, **kwargs)
        call = _tool_call(scope, self, original, tool_input, args, kwargs)
        return complete(gate(scope, call, BLOCKING))

    return run


def _gated_arun(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_effects.get()
        if scope is None:
            return await original(self, tool_input, *args, **kwargs)
        if scope.rules.of_tool(self) == "pure":
            with opening(_decorated_function(self)):
                return await original(self, tool_input, *args, **kwargs)
        return await gate(scope, _tool_call(scope, self, original, tool_input, args, kwargs), AWAITING)

    return arun


def _decorated_function(tool: BaseTool) -> Any:
    """The function a tool is made of, if it is decorated: the tool's policy counts, not the function's."""
    if isinstance(tool, StructuredTool | Tool):
        for function in (tool.coroutine, tool.func):
            if function is not None and hasattr(function, ATTRIBUTE):
                return function
    return None


def _tool_call(
    scope: EffectScope,
    tool: BaseTool,
    original: Callable[..., Any],
    tool_input: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    tool_call_id: str | None = kwargs.get("tool_call_id")
    config = ensure_config(kwargs.get("config"))
    given = dict(tool_input) if isinstance(tool_input, dict) else tool_input

    def again() -> Any:
        quiet = cast(RunnableConfig, {**config, "callbacks": None})
        own = dict(given) if isinstance(given, dict) else given
        return original(tool, own, config=quiet, tool_call_id=tool_call_id)

    def refuse(text: str) -> Any:
        if tool_call_id is None:
            return text
        return ToolMessage(text, name=tool.name, tool_call_id=tool_call_id, status="error")

    return Call(
        tool.name,
        scope.rules.of_tool(tool),
        _arguments(tool, given),
        tool_call_id,
        config,
        lambda: original(tool, tool_input, *args, **{**kwargs, "config": config}),
        again,
        refuse,
    )


def _arguments(tool: BaseTool, tool_input: Any) -> Any:
    """What the model gave, as JSON, without what the framework injects."""
    if not isinstance(tool_input, dict):
        return {"input": jsonable(tool_input)}
    return jsonable(tool._filter_injected_args(tool_input))


def logged_call(rules: EffectRules, stored: Mapping[str, Any]) -> StatefulCall:
    """A stateful call read from a journal, made again by the app's tool of that name."""
    tool, function = rules.tools.get(stored["tool"]), rules.functions.get(stored["tool"])
    arguments, call_id = stored["arguments"], stored["call"]
    is_async = inspect.iscoroutinefunction(function)
    if isinstance(tool, StructuredTool | Tool):
        is_async = tool.func is None

    def again() -> Any:
        if tool is not None:
            config: RunnableConfig = {}
            if not is_async:
                return tool.run(dict(arguments), config=config, tool_call_id=call_id)
            return tool.arun(dict(arguments), config=config, tool_call_id=call_id)
        if function is not None:
            return function(**arguments)
        raise ConfigurationError(
            f"the journal has a call of {stored['tool']!r}, which is no tool of this app: resume with the app that ran"
        )

    error = stored["error"]
    answer = Answer(decode(stored["result"])) if error is None else Answer(error=decode_error(error))
    return StatefulCall(stored["key"], stored["step"], stored["tool"], arguments, call_id, answer, again, is_async)
