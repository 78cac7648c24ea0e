"""The seccomp filter under which a candidate function computes: a list of what it may ask of the kernel.

The list holds what an interpreter that has already started needs to compute and to answer: memory, locks, clocks,
reading from its pipe, writing to three open descriptors. Opening anything, sockets, processes, threads, signals to
others, executable memory: all else ends the process in the kernel, before the call has any effect.
"""

from __future__ import annotations

import functools
import sys
import tempfile

from langgraph_amc.errors import MissingExtraError
from langgraph_amc.heuristics.errors import SandboxUnavailableError

ANSWERS = 3
"""The descriptor on which the child answers; 0 is its questions, 1 and 2 are a file for what it prints."""
_PLAIN = (
    *("brk", "munmap", "mremap", "madvise", "futex", "rt_sigreturn", "rt_sigprocmask", "sigaltstack"),
    *("clock_gettime", "gettimeofday", "getrandom", "sched_yield", "restart_syscall", "getpid", "gettid"),
    *("exit", "exit_group"),
)
_PROTECTION, _EXECUTABLE = 2, 4
"""Of mmap and mprotect: the argument that says what the memory is for, and its bit for code."""


@functools.cache
def compiled_filter() -> bytes:
    """The filter as a BPF program for this machine, made once per process.

    Raises
    ------
    MissingExtraError: pyseccomp is not installed. SandboxUnavailableError: no Linux, or no libseccomp.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"functions that a model wrote run under seccomp, which {sys.platform} does not have: use Linux, for "
            "example in a container"
        )
    try:
        import pyseccomp
    except ModuleNotFoundError as error:
        raise MissingExtraError("running functions that a model wrote", "sandbox") from error
    except (RuntimeError, OSError) as error:
        raise SandboxUnavailableError(
            f"pyseccomp does not find the system's libseccomp ({error}): install the package libseccomp2 (Debian, "
            "Ubuntu) or libseccomp"
        ) from error
    made = pyseccomp.SyscallFilter(pyseccomp.KILL_PROCESS)
    for name in _PLAIN:
        made.add_rule(pyseccomp.ALLOW, name)
    for name in ("mmap", "mprotect"):
        no_code = pyseccomp.Arg(_PROTECTION, pyseccomp.MASKED_EQ, _EXECUTABLE, 0)
        made.add_rule(pyseccomp.ALLOW, name, no_code)
    made.add_rule(pyseccomp.ALLOW, "read", pyseccomp.Arg(0, pyseccomp.EQ, 0))
    for descriptor in (1, 2, ANSWERS):
        made.add_rule(pyseccomp.ALLOW, "write", pyseccomp.Arg(0, pyseccomp.EQ, descriptor))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
