"""Integrations: packages for outside systems, found by their entry points and never imported by name.

A package announces itself in the group ``langgraph_amc.integrations``; its name there stands for it wherever an
object is named: ``textcraft:graph``. ``integrations/README.md`` says how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from langgraph_amc.errors import AMCError
from langgraph_amc.tasks.task import Task

GROUP = "langgraph_amc.integrations"


@runtime_checkable
class TaskFamily(Protocol):
    """What the module or object of an integration offers that brings tasks and an agent for them.

    Rewards, `langgraph_amc.tasks.Reward`, stand beside them under names of their own, e.g. ``solved``.
    """

    graph: Any
    """A compiled app, or a function that builds it."""
    tasks: Callable[..., Iterable[Task]]
    """Makes the tasks, with splits; its keyword arguments are options."""


class IntegrationError(AMCError, ImportError):
    """An integration that is not installed, or that does not load."""


def available() -> Mapping[str, EntryPoint]:
    """The installed integrations by name, in sorted order; none of them is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def load_integration(name: str) -> Any:
    """The module or object of an installed integration.

    Raises `IntegrationError` with the way to install it, or with what went wrong in it.
    """
    installed = available()
    if name not in installed:
        raise IntegrationError(f"there is no integration {name!r}: {how_to_install(name)}")
    try:
        return installed[name].load()
    except Exception as exc:
        where = installed[name].value
        raise IntegrationError(
            f"the integration {name!r} ({where}) does not load: {type(exc).__name__}: {exc}; reinstall it"
        ) from exc


def how_to_install(name: str) -> str:
    """What to do about an integration that is missing, and what there is."""
    return f"pip install langgraph-amc-{name} (installed: {', '.join(available()) or 'none'})"
