"""Progress on a terminal and nothing where there is none; warnings as one line each; tables that are not cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

UNCUT = 1000
"""Characters that no table is wide."""

stderr = Console(stderr=True)


def print_whole(table: Table) -> None:
    """Print a table at least as wide as its columns need, so that nothing in it is cut."""
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=UNCUT), table)
    Console(width=max(console.width, needed.minimum if console.is_terminal else needed.maximum)).print(table)


def plain_warning(message: Warning | str, *_: object, **__: object) -> None:
    """`warnings.showwarning` for a command line, where the line of code that warned says nothing."""
    text = " ".join(str(message).split())
    if "wrap(effects=" in text:
        text += "; on the command line: --effects NAME=POLICY"
    stderr.print(f"amc: warning: {text}", markup=False, highlight=False, soft_wrap=True)


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
