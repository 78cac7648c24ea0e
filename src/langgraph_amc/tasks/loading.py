"""User objects by name, as in ``langgraph.json``: ``./agent.py:graph`` or ``package.module:graph``."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from langgraph_amc.errors import AMCError
from langgraph_amc.tasks.integrations import available, how_to_install, load_integration
from langgraph_amc.tasks.rewards import RewardFunction, as_reward
from langgraph_amc.tasks.task import TaskSet


class LoadError(AMCError, ImportError):
    """A named object that cannot be loaded; says what is missing and what is there."""


def load_object(spec: str) -> Any:
    """The object that ``spec`` names: ``path/to/file.py:attribute`` or ``package.module:attribute``.

    The name of an installed integration stands for what it offers (``textcraft:graph``), and comes before a
    module of that name. A file's folder is on ``sys.path`` while the file is loaded, as if it were run. A file
    that was loaded before and has not changed is not loaded again.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name.replace(".", "_").isidentifier():
        raise LoadError(f"{spec!r} names no object: write ./file.py:attribute or package.module:attribute")
    is_file = where.endswith(".py") or "/" in where or "\\" in where
    found: Any = _load_file(Path(where)) if is_file else _load_installed(where)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            raise LoadError(f"{where} has no {part!r}{_candidates(found, part)}") from exc
    return found


def load_app(spec: str, config: Mapping[str, Any] | None = None) -> Any:
    """The compiled LangGraph app that ``spec`` names.

    It may be a compiled graph, a graph to compile, or a factory (sync or async) of no argument or of one, a
    config, which is ``config`` or ``{"configurable": {}}``. Anything else raises `LoadError`.
    """
    from langgraph.pregel import Pregel

    found = load_object(spec)
    if not isinstance(found, Pregel) and not _is_builder(found) and callable(found):
        found = _call_factory(spec, found, dict(config or {"configurable": {}}))
    if _is_builder(found):
        found = found.compile()
    if not isinstance(found, Pregel):
        raise LoadError(f"{spec} gives {type(found).__name__}, not a compiled graph: end with graph.compile()")
    return found


def load_tasks(spec: str | Path, **options: Any) -> TaskSet:
    """Tasks from a ``.jsonl`` file, or from ``file.py:attribute``: tasks or a function that returns them.

    ``options`` are the function's keyword arguments; given for anything else they raise `LoadError`.
    """
    if str(spec).endswith(".jsonl"):
        _no_options(spec, options)
        if not Path(spec).is_file():
            raise LoadError(f"there is no file {spec}")
        return TaskSet.from_jsonl(spec)
    found = load_object(str(spec))
    if callable(found):
        try:
            inspect.signature(found).bind(**options)
        except TypeError as exc:
            raise LoadError(f"{spec} cannot be called with the options {options}: {exc}") from exc
        found = found(**options)
    else:
        _no_options(spec, options)
    if isinstance(found, TaskSet):
        return found
    if not isinstance(found, Iterable) or isinstance(found, (str, Mapping)):
        raise LoadError(f"{spec} gives {type(found).__name__}: a TaskSet or an iterable of tasks is needed")
    return TaskSet.from_iterable(found)


def load_reward(spec: str, *, key: str | None = None) -> RewardFunction:
    """The reward that ``spec`` names, through `langgraph_amc.tasks.as_reward`."""
    return as_reward(load_object(spec), key=key)


def _no_options(spec: str | Path, options: Mapping[str, Any]) -> None:
    if options:
        raise LoadError(f"{spec} is no function: it takes no options, got {sorted(options)}")


def _load_installed(name: str) -> Any:
    # Entry points are looked up for bare names only: the look-up reads the metadata of every package.
    if "." in name or name not in available():
        return _load_module(name)
    return load_integration(name)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name and (name + ".").startswith(exc.name + "."):
            hint = "" if "." in name else f"; if it is an integration: {how_to_install(name)}"
            raise LoadError(f"there is no module {exc.name!r}: install it, or give a file as ./file.py{hint}") from exc
        raise LoadError(f"loading {name} failed with {type(exc).__name__}: {exc}") from exc


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise LoadError(f"there is no file {path}" + (f"; its folder has {', '.join(near)}" if near else ""))
    stat = path.stat()
    mark = f"{path}:{stat.st_mtime_ns}:{stat.st_size}"
    # Its own name: two agents may both live in an agent.py.
    name = f"amc_user_{path.stem}_{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and type hints look it up
    try:
        with _on_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if not isinstance(exc, Exception):
            raise
        raise LoadError(f"loading {path} failed with {type(exc).__name__}: {exc}") from exc
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _candidates(found: Any, wanted: str) -> str:
    public = [n for n in dir(found) if not n.startswith("_") and not isinstance(getattr(found, n), ModuleType)]
    near = difflib.get_close_matches(wanted, public, n=3) or public[:20]
    return f"; it has {', '.join(near)}" if near else ""


def _is_builder(found: Any) -> bool:
    from langgraph.graph import StateGraph

    return isinstance(found, StateGraph)


def _call_factory(spec: str, factory: Any, config: dict[str, Any]) -> Any:
    required = [
        p
        for p in inspect.signature(factory).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if len(required) > 1 or (required and required[0].kind is required[0].KEYWORD_ONLY):
        names = ", ".join(p.name for p in required)
        raise LoadError(f"{spec} requires {names}: a factory takes nothing or a config")
    if not inspect.iscoroutinefunction(factory):
        return factory(config) if required else factory()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(factory(config) if required else factory())
    raise LoadError(f"{spec} is an async factory: load it outside the event loop, or await it and pass the app")
