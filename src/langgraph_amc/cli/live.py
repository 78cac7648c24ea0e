"""The live views of the commands: runs side by side, a run of evolution; nothing with ``--quiet`` or ``--json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph_amc.cli.progress import stderr

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving import Standing
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


@contextmanager
def standing(quiet: bool = False) -> Iterator[Callable[[Standing], Any]]:
    """Show a run of evolution; without a terminal, one line per generation."""
    if quiet:
        yield lambda at: None
        return
    from rich.live import Live

    from langgraph_amc.live.evolution import Course
    from langgraph_amc.live.terminals import fitting, speaks_unicode, to_ascii

    course = Course()
    if not stderr.is_terminal:

        def hear(at: Standing) -> None:
            if course.hear(at):
                line = course.line() if speaks_unicode(stderr) else to_ascii(course.line())
                stderr.print(line, highlight=False, markup=False, soft_wrap=True)

        yield hear
        return
    with Live(console=stderr, get_renderable=lambda: fitting(course.picture(stderr.width), stderr)):
        yield course.hear
