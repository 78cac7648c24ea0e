"""Who runs a run: a process, named so that another one can tell whether it is still alive."""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal.writer import Writer

_GONE = ("Z", "X")
"""States of a process that has ended and was not yet waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """That this process runs a run, for as long as its writer can write."""

    writer: Writer


_holds: dict[str, Hold] = {}
"""By the id of a run; a database knows a process only, which outlives its journals."""


def hold(run_id: str, hold: Hold) -> None:
    _holds[run_id] = hold


def let_go(run_id: str, hold: Hold) -> None:
    """The opposite, unless another hold has come since."""
    if _holds.get(run_id) is hold:
        del _holds[run_id]


def is_held(run_id: str, hold: Hold) -> bool:
    return _holds.get(run_id) is hold


def is_run(row: Any, lease: float, now: float) -> bool:
    """Whether somebody runs a run of the table of runs that has not ended."""
    if row.owner is None:
        return False
    if row.owner == this_process():
        held = _holds.get(row.id)
        return held is not None and not held.writer.failed
    return is_alive(row.owner, now - row.heartbeat, lease)


def this_process() -> str:
    """``host:pid:start`` of this process."""
    return f"{_host()}:{os.getpid()}:{_start(os.getpid()) or 0}"


def is_alive(owner: str, seconds: float, lease: float) -> bool:
    """Whether an owner that was last heard of ``seconds`` ago still has to be respected.

    On its own host that is whether the process exists; elsewhere, whether its lease has run out.
    """
    host, pid, start = owner.rsplit(":", 2)
    if host != _host() or os.name == "nt":  # Windows has no harmless way to ask with what is at hand
        return seconds < lease
    if Path("/proc/self/stat").exists():
        return str(_start(int(pid))) == start
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's, and alive
        return True
    return True


@functools.cache
def _host() -> str:
    """Name of this host; process ids mean something within one namespace only, so containers tell theirs."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{namespace}"


def _start(pid: int) -> int | None:
    """When a process started, in ticks since the host did; ``None`` if it does not run or cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in _GONE else int(fields[19])
