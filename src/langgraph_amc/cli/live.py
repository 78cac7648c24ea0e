"""The live views of the commands: runs side by side, a run of evolution; nothing with ``--quiet`` or ``--json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from langgraph_amc.cli.progress import stderr

if TYPE_CHECKING:
    from rich.console import RenderableType

    from langgraph_amc.evaluate.evolving import Standing
    from langgraph_amc.evaluate.optimizing import Standing as Searched
    from langgraph_amc.evaluate.runner import Progress
    from langgraph_amc.runtime.settings import Settings
    from langgraph_amc.runtime.watching import Callback


@contextmanager
def watching(title: str, quiet: bool = False) -> Iterator[tuple[tuple[Callback, ...], Progress]]:
    """Show runs side by side; yields the callbacks for their settings, and what to tell (done, total)."""
    if quiet:
        yield (), lambda done, total: None
        return
    from langgraph_amc.live import LiveView

    with LiveView(title, console=stderr) as view:
        yield (view,), view.progress
    if not stderr.is_terminal:
        stderr.print(f"{title}: done")


def watched(settings: Settings, callbacks: tuple[Callback, ...], executor: str) -> Settings:
    """The settings with these callbacks, where the runs take place in this process."""
    from langgraph_amc.evaluate.execution.executor import LOCAL

    return replace(settings, callbacks=(*settings.callbacks, *callbacks)) if executor == LOCAL else settings


class Followed(Protocol):
    """What a run that is told of as it goes looks like."""

    def hear(self, at: Any) -> bool:
        """Take in where it stands; whether there is a line to be said."""
        ...

    def line(self) -> str: ...

    def picture(self, width: int) -> RenderableType: ...


@contextmanager
def standing(quiet: bool = False) -> Iterator[Callable[[Standing], Any]]:
    """Show a run of evolution; without a terminal, one line per generation."""
    from langgraph_amc.live.evolution import Course

    with _following(Course(), quiet) as hear:
        yield hear


@contextmanager
def searching(quiet: bool = False) -> Iterator[Callable[[Searched], Any]]:
    """Show a run of optimising, under what it may take; without a terminal, one line per proposal."""
    from langgraph_amc.live.optimization import Search

    planned = quiet
    with _following(Search(), quiet) as hear:

        def told(at: Searched) -> None:
            nonlocal planned
            if at.plan is not None and not planned:
                planned = True
                _say(str(at.plan))
            hear(at)

        yield told


@contextmanager
def _following(view: Followed, quiet: bool) -> Iterator[Callable[[Any], Any]]:
    """Draw it, or say it line by line."""
    if quiet:
        yield lambda at: None
        return
    from rich.live import Live

    from langgraph_amc.live.terminals import fitting

    if not stderr.is_terminal:
        yield lambda at: _say(view.line()) if view.hear(at) else None
        return
    with Live(console=stderr, get_renderable=lambda: fitting(view.picture(stderr.width), stderr)):
        yield view.hear


def _say(line: str) -> None:
    from langgraph_amc.live.terminals import speaks_unicode, to_ascii

    stderr.print(line if speaks_unicode(stderr) else to_ascii(line), highlight=False, markup=False, soft_wrap=True)
