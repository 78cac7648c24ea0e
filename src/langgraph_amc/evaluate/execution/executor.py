"""Where jobs run: one Protocol for collecting, comparing and evolving; this process by default.

An executor in other processes comes from an integration: the attribute ``executor`` of what its entry point names
(`RemoteExecutors`). The core has no scheduler of its own and never imports an integration by name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.execution.work import Work
from langgraph_amc.evaluate.runner import Job, Outcome, Progress, run_jobs
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.integrations import load_integration
from langgraph_amc.tasks.rewards import RewardFunction

LOCAL = "local"


class Executor(Protocol):
    """Runs jobs and yields what comes of each as it ends; the account that is open around it pays."""

    def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Run ``concurrency`` jobs at a time, in about their order; closing the generator ends those on their way."""
        ...


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs jobs in this process."""

    app: Any
    reward: RewardFunction

    def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """`run_jobs` with this app and reward."""
        return run_jobs(self.app, jobs, self.reward, concurrency=concurrency, progress=progress)


@dataclass(frozen=True, slots=True)
class Processes:
    """How many other processes, and where: ``address`` of a running cluster, ``None`` starts one on this machine."""

    workers: int = 2
    address: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise ConfigurationError(f"workers is a whole number of at least 1, got {self.workers!r}")


@runtime_checkable
class RemoteExecutors(Protocol):
    """What an integration offers that runs jobs in other processes."""

    executor: Callable[[Work, Settings, Processes], AbstractAsyncContextManager[Executor]]
    """Entered, its processes are up. The settings are those that the jobs' own are changed from."""


def remote_executor(
    name: str, work: Work, settings: Settings, processes: Processes
) -> AbstractAsyncContextManager[Executor]:
    """The executor of an installed integration.

    Raises IntegrationError where it is not installed, ConfigurationError where it offers none.
    """
    return _integration(name).executor(work, settings, processes)


def _integration(name: str) -> RemoteExecutors:
    found = load_integration(name)
    if not isinstance(found, RemoteExecutors):
        raise ConfigurationError(f"the integration {name!r} runs no jobs: use --executor {LOCAL}, or one that does")
    return found
