"""The sandbox, for real: what must be contained is really tried, without the screening in front of it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.heuristics.errors import HeuristicFailure
from langgraph_amc.heuristics.sandbox import Limits, check_sandbox, sandboxed

QUICK = Limits(seconds=1.5, cpu_seconds=2, memory=192 << 20, output=64_000)


def outcome(body: str, limits: Limits = QUICK) -> HeuristicFailure:
    """How the function f with this body fails."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    with pytest.raises(HeuristicFailure) as caught, sandboxed(f"def f(x):\n{lines}\n", "f", limits) as f:
        f.map([[1]])
    assert f_is_gone(caught.value)
    return caught.value


def f_is_gone(_: HeuristicFailure) -> bool:
    """No child of this process runs the sandbox's program."""
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    return "heuristics/child.py" not in listed.stdout


def test_a_function_computes_and_keeps_nothing_but_its_own_globals() -> None:
    source = "import math\nfrom collections import Counter\ncalls = Counter()\n\ndef f(x, y):\n    calls['n'] += 1\n"
    source += "    return [math.hypot(x, y), calls['n']]\n"
    with sandboxed(source, "f") as f:
        assert f.map([[3, 4], [6, 8]]) == [[5.0, 1], [10.0, 2]]
        assert f.map([]) == []
        big = [[i, 0] for i in range(20_000)]  # more than a pipe holds
        assert [r[0] for r in f.map(big)] == [float(i) for i in range(20_000)]
    check_sandbox()


def test_numpy_where_it_is_asked_for() -> None:
    limits = Limits(memory=1 << 30, modules=("numpy",))
    with sandboxed("import numpy as np\n\ndef f(x):\n    return float(np.linalg.norm(x))\n", "f", limits) as f:
        assert f.map([[[3.0, 4.0]]]) == [5.0]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("while True: pass", "time"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "time"),
        ("return 10 ** 10 ** 9", "time"),  # in C, where no Python hook looks
        ("held = []\nwhile True: held.append(bytearray(1 << 20))", "memory"),
        ("return len('x' * (1 << 40))", "memory"),
        ("import posix\nposix.fork()", "forbidden"),
        ("import posix\nwhile True:\n    try: posix.fork()\n    except BaseException: pass", "forbidden"),
        ("import _thread\n_thread.start_new_thread(print, ())", "forbidden"),
        ("import posix\nposix.execv('/bin/sh', ['sh', '-c', 'true'])", "forbidden"),
        ("return open('/etc/passwd').read()", "forbidden"),
        ("open('here', 'w').write('x')", "forbidden"),
        ("import posix\nposix.kill(posix.getppid(), 15)", "forbidden"),
        ("import posix\nposix.unlink('printed')", "forbidden"),
        ("import time\ntime.sleep(60)", "forbidden"),
        ("while True: print('x' * 1000)", "output"),
        ("return 'x' * (1 << 20)", "output"),
        ("return 1 / 0", "error"),
        ("import sys\nsys.exit(0)", "error"),
        ("import posix\nposix._exit(0)", "crash"),
        ("return {1, 2}", "error"),
        ("import posix\nposix.write(3, b'no json\\n')", "invalid"),
        ("import posix\nposix.write(3, b'{\"answers\": []}\\n')", "invalid"),
        ("import posix\nwhile True: posix.write(3, b'{\"tried\": 1}\\n' * 5000)", "invalid"),  # to keep the caller busy
        ("def g(n): return g(n + 1)\nreturn g(0)", "error"),
    ],
)
def test_whatever_it_tries_is_contained_and_has_a_name(body: str, kind: str) -> None:
    began = time.monotonic()
    failure = outcome(body)
    assert failure.kind == kind, failure
    assert time.monotonic() - began < 10


def test_the_network_is_not_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        failure = outcome(f"import _socket\n_socket.socket().connect(('127.0.0.1', {port}))")
        assert failure.kind == "forbidden"
        with pytest.raises(TimeoutError):
            server.accept()


def test_files_outside_stay_as_they_are_and_the_failure_names_the_call(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    failure = outcome(f"open({str(victim)!r}, 'w')")
    assert failure.kind == "forbidden"
    assert str(victim) in failure.detail
    assert victim.read_text() == "whole"


def test_machine_code_gains_nothing() -> None:
    """Around Python altogether: libc called through ctypes, past every hook."""
    source = "import ctypes\n\ndef f(x):\n    return ctypes.CDLL(None).{}\n"
    for call in ("fork()", "system(b'true')", "socket(2, 1, 0)", "open(b'/etc/passwd', 0)", "mprotect(0, 4096, 7)"):
        with (
            pytest.raises(HeuristicFailure) as caught,
            sandboxed(source.format(call), "f", Limits(modules=("ctypes",))) as f,
        ):
            f.map([[1]])
        assert caught.value.kind == "forbidden", call


def test_nothing_of_this_process_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with sandboxed("import posix\n\ndef f():\n    return [k.decode() for k in posix.environ]\n", "f") as f:
        [names] = f.map([[]])
    assert "OPENAI_API_KEY" not in names


def test_what_fails_while_it_is_defined() -> None:
    for source, kind in (
        ("f = 1 / 0", "error"),
        ("def g(): pass", "error"),
        ("while True: pass", "time"),
    ):
        with pytest.raises(HeuristicFailure) as caught, sandboxed(source, "f", QUICK):
            pass
        assert caught.value.kind == kind, source


def test_many_at_a_time_from_threads() -> None:
    found: list[float] = []

    def one(n: int) -> None:
        with sandboxed("def f(x):\n    return x * x\n", "f") as f:
            found.append(f.map([[n]])[0])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found) == [n * n for n in range(6)]


def test_limits_are_checked() -> None:
    for wrong in ({"seconds": 0}, {"cpu_seconds": 0.5}, {"memory": 0}, {"output": True}):
        with pytest.raises(ConfigurationError):
            Limits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not installed"), sandboxed("", "f", Limits(modules=("nothere",))):
        pass
