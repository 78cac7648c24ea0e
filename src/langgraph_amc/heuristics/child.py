"""The program that runs one candidate function in a process of its own; started by path, it imports nothing of ours.

The first line on standard input is the job; once the process has confined itself, each further line is a list of
argument lists, answered by one line. Everything that could be needed from the disk is loaded before the filter.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

_ANSWERS = 3
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
"""Of prctl(2)."""
_OUT_OF_MEMORY = b'{"failure": "memory", "detail": "out of memory"}\n'
_TELLING = ("open", "os.", "socket.", "subprocess.", "shutil.", "ctypes.", "import", "signal.", "_thread.", "mmap.")


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]  # as ctypes wants it


def main() -> None:
    """Confine this process, define the function, answer."""
    job = json.loads(_line())
    sys.path += job["path"]
    for name in job["modules"]:
        importlib.import_module(name)
    _limit(job)
    _install(base64.b64decode(job["filter"]))
    _listen()
    _write(b"true\n")
    function = _guarded(lambda: _define(job["source"], job["name"]))
    if function is None:
        return
    _write(b"true\n")
    while questions := _line():
        if _guarded(lambda: _answer(function, questions)) is None:  # called at once
            return


def _line() -> bytes:
    return sys.stdin.buffer.readline()


def _limit(job: dict[str, Any]) -> None:
    """Descriptors as the filter knows them, and limits that the kernel keeps."""
    os.dup2(1, _ANSWERS)
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    os.closerange(_ANSWERS + 1, 64)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    for what, most in (
        (resource.RLIMIT_FSIZE, job["output"]),
        (resource.RLIMIT_AS, job["memory"]),
        (resource.RLIMIT_NOFILE, _ANSWERS + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"] + 1))  # the first is a signal that tells why


def _install(code: bytes) -> None:
    """Give up all privileges, and every system call that is not on the list, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(held))
    for call in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the kernel has no seccomp filters")


def _listen() -> None:
    """Name the first thing that the function tries which needs the system; what stops it is the kernel."""
    told = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal told
        if not told and event.startswith(_TELLING):
            told = True
            named = " ".join(a for a in arguments if type(a) is str)[:200]
            _write(json.dumps({"tried": f"{event} {named}".strip()}).encode() + b"\n")

    sys.addaudithook(hook)


def _define(source: str, name: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate", "exec"), space)  # noqa: S102  # what this process is for
    found: Callable[..., Any] = space[name]
    return found


def _answer(function: Callable[..., Any], questions: bytes) -> bool:
    answers = [function(*arguments) for arguments in json.loads(questions)]
    _write(json.dumps({"answers": answers}).encode() + b"\n")
    return True


def _guarded(do: Callable[[], Any]) -> Any:
    """What it returns, or None after having told why there is nothing."""
    try:
        return do()
    except MemoryError:
        _write(_OUT_OF_MEMORY)
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error)[:300]}"
        _write(json.dumps({"failure": "error", "detail": said}).encode() + b"\n")
    return None


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_ANSWERS, data) :]


if __name__ == "__main__":
    main()
