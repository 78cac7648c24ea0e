"""The options that say where jobs run: in this process, or in others through an integration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from langgraph_amc.cli.options import in_runs

T = TypeVar("T")
ExecutorName = Annotated[
    str, in_runs("--executor", help="local, or an installed integration that runs jobs elsewhere: ray")
]
Workers = Annotated[int, in_runs(help="Processes, for an executor that is not local", min=1)]


async def with_executor(
    name: str,
    workers: int,
    app: str,
    reward: str,
    options: Mapping[str, Any],
    settings: Any,
    run: Callable[[Any], Awaitable[T]],
) -> T:
    """Await ``run`` with the executor, ``None`` for this process; its processes are ended afterwards.

    ``options`` are the arguments of `wrap` that the settings were read from, a value function by its name.
    """
    from langgraph_amc.evaluate.execution.executor import LOCAL, Processes, remote_executor
    from langgraph_amc.evaluate.execution.work import Work

    if name == LOCAL:
        return await run(None)
    async with remote_executor(name, Work(app, reward, options), settings, Processes(workers)) as executor:
        return await run(executor)
