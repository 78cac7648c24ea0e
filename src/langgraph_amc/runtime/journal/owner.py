"""Who runs a run: a process, named so that another one can tell whether it is still alive."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

_GONE = ("Z", "X")
"""States of a process that has ended and was not yet waited for."""


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
