"""Which app and which reward a run is of, so that going on with others is noticed.

An identity is a qualified name and, where Python finds it, a digest of the source: of the reward, and of the functions
and tools of the app's nodes. What those call, prompts kept elsewhere, and libraries are not in it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableSequence
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.discover import tools_of
from langgraph_amc.tasks.rewards import RewardFunction

PARTS = ("app", "reward", "effects")
"""Names under which a history keeps what `identities` gives."""
_LIBRARIES = ("langchain.", "langchain_core.", "langgraph.", "langgraph_amc.")
"""An update of these is not another app."""


class ChangedError(ConfigurationError):
    """A folder holds a run of another app, another reward or other effects."""


def identities(app: Any, reward: RewardFunction, effects: Any) -> dict[str, Any]:
    """What a history keeps of them, as plain data."""
    functions = {**_functions(app, ""), **{f"tool {name}": tool for name, tool in tools_of(app).items()}}
    judged = _source(reward.function)
    sources = [f"{name}\n{_source(function) or ''}" for name, function in sorted(functions.items())]
    return {
        "app": {"name": app.get_name(), "nodes": sorted(app.nodes), "source": _digest("\n".join(sources))},
        "reward": {"name": _owner(reward.function).__qualname__, "source": None if judged is None else _digest(judged)},
        "effects": dict(sorted(effects.items())) if isinstance(effects, Mapping) else effects,
    }


def digest(said: Any) -> str:
    """A digest of plain data; what JSON does not know counts by its repr."""
    return _digest(json.dumps(said, sort_keys=True, default=repr))


def check_identities(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path, *, accept: bool) -> None:
    """Raise ChangedError where a run is gone on with other ones; with ``accept`` only warn.

    What an older history does not tell, or Python has no source of, is not compared.
    """
    changed = [said for part in PARTS if part in old and (said := _difference(part, old[part], new[part])) is not None]
    if not changed:
        return
    said = f"{folder} holds a run {', and '.join(changed)}"
    if accept:
        warnings.warn(
            f"{said}: going on; generations from before stay as they were, and their validations are not compared",
            stacklevel=3,
        )
        return
    raise ChangedError(
        f"{said}: put it back, give another folder, or go on all the same with accept_changes=True (--accept-changes)"
    )


def _difference(part: str, old: Any, new: Any) -> str | None:
    """What differs, in words."""
    if part == "effects" or not isinstance(old, Mapping):
        return None if old == new else f"with other {part} ({old!r}, now {new!r})"
    if old.get("name") != new["name"]:
        return f"of another {part} ({old.get('name')!r}, now {new['name']!r})"
    if old.get("nodes") != new.get("nodes"):
        return f"of another {part} (its nodes were {old.get('nodes')}, now {new['nodes']})"
    known = old.get("source") is not None and new["source"] is not None
    return f"whose {part} {new['name']!r} has been edited since" if known and old["source"] != new["source"] else None


def _functions(graph: Pregel, prefix: str) -> dict[str, Any]:
    """The functions of a graph's nodes, subgraphs included, by node."""
    found: dict[str, Any] = {}
    for name, node in graph.nodes.items():
        for number, part in enumerate(_parts(node.bound)):
            place = f"{prefix}{name}.{number}"
            if isinstance(part, Pregel):
                found |= _functions(part, f"{place}/")
                continue
            for kind in ("func", "afunc"):  # of the runnables that langgraph and langchain make of functions
                function = getattr(part, kind, None)
                if callable(function):
                    found[f"{place}.{kind}"] = function
    return found


def _parts(runnable: Any) -> Iterator[Any]:
    """A node's runnable or, of a sequence, its steps."""
    if isinstance(runnable, RunnableSequence):
        for step in runnable.steps:
            yield from _parts(step)
    else:
        yield runnable


def _source(function: Any) -> str | None:
    """The text of a function, of a tool's function, or of a callable object's class."""
    if isinstance(function, BaseTool):
        inner = getattr(function, "func", None) or getattr(function, "coroutine", None)
        function = type(function) if inner is None else inner
    owner = _owner(function)
    if str(owner.__module__).startswith(_LIBRARIES):
        return None
    try:
        return textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):  # made in a shell, or of C
        return None


def _owner(function: Any) -> Any:
    """What has a name and a source: the function itself, or the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
