"""Progress on a terminal, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

stderr = Console(stderr=True)


@contextmanager
def bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; yields the function to call with (done, total)."""
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=stderr, disable=quiet) as progress:
        task = progress.add_task(title, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
    if not quiet and not stderr.is_terminal:
        stderr.print(f"{title}: done")
