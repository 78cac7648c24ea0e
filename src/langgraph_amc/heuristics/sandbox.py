"""One Python function in a process that can compute and answer, and nothing else.

Layers, from the outside in: a fresh interpreter without site-packages and environment, in an empty folder that is
removed; limits of the kernel on memory, CPU time and output; a seccomp filter (`confinement`) under which no file,
socket or process can be opened, not even in the folder; a clock here that kills. `screening` refuses most of what
would fail before a process is started, with a better message.

The caller drives: the function sees the arguments it is called with, and no more.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import select
import shutil
import signal
import subprocess  # the point of this module
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.heuristics.confinement import compiled_filter
from langgraph_amc.heuristics.errors import HeuristicFailure, SandboxUnavailableError

_CHILD = Path(__file__).with_name("child.py")
_STARTED = 10.0
"""Seconds for the interpreter to start, which is not the function's fault; a loaded machine may need some."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one function may use in its life.

    Attributes
    ----------
    seconds: of waiting for its answers. cpu_seconds: of the process, whole ones. memory: bytes of address space.
    output: bytes that it may print, and bytes of one answer. modules: of the standard library, and ``"numpy"`` where
        it is installed, that are loaded for it before it is confined; it cannot import others.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory: int = 512 << 20
    output: int = 1 << 20
    modules: tuple[str, ...] = ("math", "itertools", "functools", "heapq", "bisect", "statistics", "collections")

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ConfigurationError(f"seconds must be a finite number above 0, got {self.seconds!r}")
        for name in ("cpu_seconds", "memory", "output"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} is a whole number of at least 1, got {value!r}")


@dataclass(slots=True)
class SandboxedFunction:
    """A function in its process; made by `sandboxed`."""

    process: subprocess.Popen[bytes]
    limits: Limits
    left: float = field(init=False)
    _buffer: bytearray = field(default_factory=bytearray)
    _tried: str | None = None

    def __post_init__(self) -> None:
        self.left = self.limits.seconds

    def map(self, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """What the function returns for each list of arguments: plain JSON data, one value each.

        Raises HeuristicFailure, after which the function is gone.
        """
        self._send(json.dumps([list(a) for a in arguments]).encode() + b"\n")
        answer = self._receive()
        found = answer.get("answers") if isinstance(answer, dict) else None
        if not isinstance(found, list) or len(found) != len(arguments):
            self._fail("invalid", "its answer is not one value for each call")
        return found

    def ready(self) -> None:
        """Wait until the process has confined itself, which is not on the function's time, and has defined it."""
        self.left = _STARTED
        self._receive()
        self.left = self.limits.seconds
        if self._receive() is not True:
            self._fail("invalid", "it wrote something before it was asked")

    def _send(self, data: bytes) -> None:
        pipe = self.process.stdin
        assert pipe is not None
        view = memoryview(data)
        while view:
            self._wait(pipe.fileno(), select.POLLOUT)
            try:
                view = view[os.write(pipe.fileno(), view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                break  # it has ended: why is in what it said before

    def _receive(self) -> Any:
        """The next answer; what it tried on the way is remembered."""
        while True:
            said = self._parsed(self._next_line())
            if isinstance(said, dict) and "tried" in said and self._tried is None:  # more would cost time of ours
                self._tried = str(said["tried"])[:300]
            elif isinstance(said, dict) and "failure" in said:
                kind = "memory" if said["failure"] == "memory" else "error"
                self._fail(kind, str(said.get("detail", ""))[:500])
            else:
                return said

    def _parsed(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            self._fail("invalid", "it wrote something else than answers")

    def _next_line(self) -> bytes:
        pipe = self.process.stdout
        assert pipe is not None
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > self.limits.output:
                self._fail("output", f"an answer of more than {self.limits.output:,} bytes")
            self._wait(pipe.fileno(), select.POLLIN)
            if not (chunk := os.read(pipe.fileno(), 1 << 16)):
                self._ended()
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _wait(self, descriptor: int, event: int) -> None:
        """Until the pipe is ready, for as long as there is time left."""
        poll = select.poll()
        poll.register(descriptor, event)
        began = time.monotonic()
        found = poll.poll(max(0.0, self.left) * 1000)
        self.left -= time.monotonic() - began
        if not found or self.left <= 0:
            self._fail("time", f"more than {self.limits.seconds:g} seconds")

    def _ended(self) -> NoReturn:
        """It is gone without a word: the signal says why."""
        code = self.process.wait()
        if code == -signal.SIGSYS:
            self._fail("forbidden", self._tried or "a system call that computing does not need")
        if code == -signal.SIGXCPU:
            self._fail("time", f"more than {self.limits.cpu_seconds} seconds of CPU time")
        if code == -signal.SIGXFSZ:
            self._fail("output", f"it printed more than {self.limits.output:,} bytes")
        self._fail(
            "crash", f"the interpreter died of signal {-code}" if code < 0 else f"the interpreter left with {code}"
        )

    def _fail(self, kind: Any, detail: str) -> NoReturn:
        self.end()
        raise HeuristicFailure(kind, detail)

    def end(self) -> None:
        """Kill whatever is there."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: the group is its pid
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def sandboxed(source: str, name: str, limits: Limits | None = None) -> Iterator[SandboxedFunction]:
    """The function ``name`` that the source defines, in a process of its own until the end of the block.

    Blocks: call it from a thread. The source is not screened here; what it may do, the kernel decides.

    Raises
    ------
    HeuristicFailure: it could not be defined, or broke a limit while it was.
    MissingExtraError, SandboxUnavailableError: this machine cannot confine it.
    """
    limits = limits or Limits()
    job = {
        "source": source,
        "name": name,
        "modules": limits.modules,
        "path": _folders(limits.modules),
        "cpu": limits.cpu_seconds,
        "memory": limits.memory,
        "output": limits.output,
        "filter": base64.b64encode(compiled_filter()).decode(),
    }
    scratch = tempfile.mkdtemp(prefix="amc-sandbox-")
    try:
        process = subprocess.Popen(  # noqa: S603  # our own program, under our own interpreter
            [sys.executable, "-I", "-S", "-B", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        function = SandboxedFunction(process, limits)
        try:
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
            function._send(json.dumps(job).encode() + b"\n")
            function.ready()
            yield function
        finally:
            function.end()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_sandbox() -> None:
    """Run one harmless function; raises SandboxUnavailableError where this kernel does not confine it."""
    try:
        with sandboxed("def double(x):\n    return 2 * x\n", "double") as double:
            double.map([[1]])
    except HeuristicFailure as failure:
        raise SandboxUnavailableError(
            f"a harmless function does not run in the sandbox here ({failure}): the kernel, or the container's own "
            "filter, has no seccomp filters for it"
        ) from failure


def _folders(modules: Sequence[str]) -> list[str]:
    """Where modules live that are not of the standard library."""
    folders = []
    for name in modules:
        if name.partition(".")[0] in sys.stdlib_module_names:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigurationError(f"the module {name!r} is not installed: leave it out of Limits.modules")
        folders.append(str(Path(spec.origin).parents[1]))
    return folders
