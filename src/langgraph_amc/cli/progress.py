"""Progress on a terminal and nothing where there is none; warnings as one line each; tables that are not cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

UNCUT = 1000
"""Characters that no table is wide."""

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.run import Standing

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


@contextmanager
def standing(quiet: bool = False) -> Iterator[Callable[[Standing], None]]:
    """Two lines that say where a run of evolution stands; without a terminal, one line per generation."""
    shown = -1
    with ExitStack() as stack:
        live = None
        if stderr.is_terminal and not quiet:
            live = stack.enter_context(Live(Text("starting"), console=stderr))

        def update(at: Standing) -> None:
            nonlocal shown
            number = -1 if at.generation is None else at.generation.number
            if live is not None:
                live.update(Text(f"{at.doing}: {at.done}/{at.total} rollouts · {_used(at)}\n{_found(at)}", style="dim"))
            elif number > shown and not quiet:
                told = f"generation {number + 1}/{at.generations}: {_found(at)} · {_used(at)}"
                stderr.print(told, highlight=False, markup=False, soft_wrap=True)
            shown = max(shown, number)

        yield update


def _found(at: Standing) -> str:
    """The last generation and validation."""
    parts = []
    if (g := at.generation) is not None:
        noise = "-" if g.signal_to_noise is None else f"{g.signal_to_noise:.2f}"
        parts += [f"reward {g.reward} best {g.best:.3f}", f"sigma {g.sigma:.2g}", f"signal/noise {noise}"]
    if at.validation is not None:
        parts.append(f"validation {at.validation.reward.mean:.3f}")
    return " · ".join(parts)


def _used(at: Standing) -> str:
    """What was used, and how long it may still take."""
    used = f"{at.tokens:,} tokens"
    if at.seconds_left is None:
        return used
    minutes, seconds = divmod(round(at.seconds_left), 60)
    return f"{used} · {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
