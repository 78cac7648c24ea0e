"""What is left of a command that is interrupted: each says so itself, and those that keep nothing say nothing."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path

kept: ContextVar[str] = ContextVar("amc_kept", default="")
"""What to tell who interrupts the command that runs."""


def keeps_trajectories(store: str) -> None:
    """Runs that have ended are in this store, whose address has no password in it."""
    kept.set(f"the runs that have ended are kept in {store}")


def goes_on(folder: Path) -> None:
    """The same command goes on with what is in this folder."""
    kept.set(f"what has ended is kept in {folder}, and the same command goes on with it")
