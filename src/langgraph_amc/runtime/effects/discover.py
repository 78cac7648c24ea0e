"""Finding the tools of a compiled graph: those of its tool nodes, and those its nodes' functions refer to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

ATTRIBUTE = "__amc_effect__"
_FRAMEWORKS = ("langchain.", "langchain_core.", "langgraph.")
"""Nodes made by these call tools through tool nodes only."""


@dataclass(slots=True)
class Discovery:
    """What was found.

    Attributes
    ----------
    tools: by name.
    functions: functions decorated with `amc.effect` that nodes refer to, by name.
    custom: whether a node runs code in which not every tool can be seen.
    """

    tools: dict[str, BaseTool] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    custom: bool = False


def tools_of(app: Any) -> dict[str, BaseTool]:
    """The tools of a compiled graph by name, subgraphs included; best effort."""
    return discover(app).tools


def discover(app: Any) -> Discovery:
    """Tools and decorated functions of a compiled graph."""
    found = Discovery()
    seen: set[int] = set()
    todo: list[Any] = [app]
    while todo:
        graph = todo.pop()
        if id(graph) in seen or not isinstance(graph, Pregel):
            found.custom = found.custom or id(graph) not in seen
            continue
        seen.add(id(graph))
        for node in graph.nodes.values():
            todo.extend(node.subgraphs or ())
            for part in _parts(node.bound):
                if isinstance(part, Pregel):
                    todo.append(part)
                else:
                    _look_into(part, found, todo)
    return found


def _parts(runnable: Any) -> Iterator[Any]:
    """A node's runnable and, for sequences, its steps."""
    steps = getattr(runnable, "steps", None)
    if isinstance(runnable, RunnableSequence) or (isinstance(runnable, Runnable) and isinstance(steps, list)):
        for step in steps or ():
            yield from _parts(step)
    else:
        yield runnable


def _look_into(part: Any, found: Discovery, graphs: list[Any]) -> None:
    by_name = getattr(part, "tools_by_name", None)  # ToolNode, and look-alikes
    if isinstance(by_name, Mapping):
        _note(list(by_name.values()), found, graphs)
        return
    functions = [part] if isinstance(part, BaseTool) else _functions(part)
    for function in functions:
        if isinstance(function, BaseTool) or hasattr(function, ATTRIBUTE):
            _note(function, found, graphs)
            continue
        if not str(getattr(function, "__module__", "")).startswith(_FRAMEWORKS):
            found.custom = True
            for value in _referred(function):
                _note(value, found, graphs)


def _functions(part: Any) -> list[Any]:
    if isinstance(part, RunnableLambda):
        return [getattr(part, "func", None) or getattr(part, "afunc", None)]
    functions = [getattr(part, "func", None), getattr(part, "afunc", None)]
    return [f for f in functions if f is not None]


def _referred(function: Any) -> Iterator[Any]:
    """What a function's code refers to by name: globals, closure, bound object, partial's arguments."""
    while isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    if inspect.ismethod(function):
        yield from vars(function.__self__).values() if hasattr(function.__self__, "__dict__") else ()
    elif not inspect.isfunction(function) and hasattr(function, "__dict__"):
        yield from vars(function).values()
        function = type(function).__call__
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = getattr(function, "__closure__", None) or ()
    yield from (cell.cell_contents for cell in cells if cell != type(cell)())
    names = set(code.co_names)
    for constant in code.co_consts:  # inner functions
        if inspect.iscode(constant):
            names.update(constant.co_names)
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _note(value: Any, found: Discovery, graphs: list[Any]) -> None:
    if isinstance(value, BaseTool):
        found.tools.setdefault(value.name, value)
    elif isinstance(value, Pregel):
        graphs.append(value)
    elif inspect.isfunction(value) and hasattr(value, ATTRIBUTE):
        found.functions.setdefault(value.__name__, value)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            if isinstance(item, BaseTool | Pregel) or inspect.isfunction(item):
                _note(item, found, graphs)
    elif isinstance(value, Mapping):
        _note([v for v in value.values() if isinstance(v, BaseTool)], found, graphs)
