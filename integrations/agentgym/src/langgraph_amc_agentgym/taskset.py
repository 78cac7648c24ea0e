"""The servers' tasks: one per index, with ids and splits that no machine changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from langgraph_amc.checks import check_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc_agentgym.dialects import Dialect, dialect_of

FRACTIONS: Mapping[str, float] = MappingProxyType({"train": 0.6, "tune": 0.15, "test": 0.25})
"""Expected shares of the splits where AgentGym's test indices are not known."""
REST: Mapping[str, float] = MappingProxyType({"train": 0.8, "tune": 0.2})
"""Of the other indices where they are."""


def tasks(server: str | Dialect = "textcraft", *, count: int | None = None, indices: int | None = None) -> TaskSet:
    """The tasks of a server, in the order of their indices; metadata has the ``index``.

    Parameters
    ----------
    server: a dialect or its name.
    count: only so many of them: a choice by id, the same everywhere.
    indices: how many there are on your server, where the dialect does not know it.
    """
    dialect = dialect_of(server)
    total = indices if indices is not None else dialect.tasks
    if total is None:
        raise ConfigurationError(
            f"how many tasks a {dialect.name} server has depends on its data: say it, tasks(…, indices=500)"
        )
    check_whole("indices", total, 1)
    if count is not None:
        check_whole("count", count, 1)
    made = [_task(dialect, index) for index in range(total)]
    test = [task for task in made if dialect.test is not None and task.metadata["index"] in dialect.test]
    held_out = {task.id for task in test}
    rest = TaskSet(task for task in made if task.id not in held_out)
    split = {task.id: task.split for task in rest.random_split(FRACTIONS if dialect.test is None else REST)}
    everything = TaskSet(
        Task(task.id, task.input, metadata=task.metadata, split=split.get(task.id, "test")) for task in made
    )
    return everything if count is None else everything.take(count, seed=0)


def _task(dialect: Dialect, index: int) -> Task:
    return Task(
        f"agentgym-{dialect.name}-{index}",
        {"task": {"server": dialect.name, "index": index}},
        metadata={"server": dialect.name, "index": index},
    )
