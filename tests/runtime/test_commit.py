"""Handing the winner to the app's saver where that is not easy: locked databases, values that cannot be written."""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

import langgraph_amc as amc
from langgraph_amc.runtime import commit
from langgraph_amc.runtime.commit import SaverBusyError
from langgraph_amc.runtime.journal.errors import UnserialisableStateError
from tests.runtime.support import THREAD


class State(TypedDict):
    log: Annotated[list[Any], lambda a, b: [*a, *b]]


def app(saver: Any, write: Any = lambda s: {"log": ["done"]}) -> Any:
    graph = StateGraph(State)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    return graph.compile(checkpointer=saver)


class Holder:
    """Another writer, who keeps the database locked."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)

    def hold(self, seconds: float | None) -> None:
        self.connection.execute("BEGIN EXCLUSIVE")
        if seconds is not None:
            threading.Timer(seconds, self.release).start()

    def release(self) -> None:
        self.connection.execute("ROLLBACK")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saver.db"


@pytest.fixture
def holder(path: Path) -> Iterator[Holder]:
    found = Holder(path)
    yield found
    found.connection.close()


def locking(holder: Holder, seconds: float | None) -> Any:
    """A reward that is asked for when a run has ended; the first time it locks the database."""
    once = functools.cache(lambda: holder.hold(seconds))

    def reward(run: amc.FinishedRun) -> float:
        once()
        return 1.0

    return reward


def test_a_locked_database_is_waited_for(path: Path, holder: Holder) -> None:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=0.01)
    saver = SqliteSaver(connection)
    saver.setup()
    better = amc.wrap(app(saver), particles=3, reward=locking(holder, 0.5), seed=1)
    assert better.invoke({"log": []}, THREAD) == {"log": ["done"]}
    assert better.get_state(THREAD).values == {"log": ["done"]}
    assert len(list(better.get_state_history(THREAD))) == 3
    connection.close()


async def test_a_locked_database_is_waited_for_async(path: Path, holder: Holder) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        await saver.conn.execute("PRAGMA busy_timeout = 10")
        better = amc.wrap(app(saver), particles=3, reward=locking(holder, 0.5), seed=1)
        assert await better.ainvoke({"log": []}, THREAD) == {"log": ["done"]}
        assert len([s async for s in better.aget_state_history(THREAD)]) == 3


def test_who_never_lets_go_is_an_error_that_says_so(
    path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "PATIENCE", 0.3)
    connection = sqlite3.connect(path, check_same_thread=False, timeout=0.01)
    saver = SqliteSaver(connection)
    saver.setup()
    better = amc.wrap(app(saver), particles=2, reward=locking(holder, None), seed=1)
    with pytest.raises(SaverBusyError, match="locked by others"):
        better.invoke({"log": []}, THREAD)
    holder.release()
    assert better.get_state(THREAD).values == {}
    connection.close()


def test_other_errors_of_the_database_are_not_waited_for(path: Path) -> None:
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()

    def reward(run: amc.FinishedRun) -> float:
        connection.execute("DROP TABLE IF EXISTS checkpoints")
        return 1.0

    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        amc.wrap(app(saver), particles=2, reward=reward, seed=1).invoke({"log": []}, THREAD)
    connection.close()


@pytest.mark.parametrize("particles", [2, 3])
def test_a_value_that_cannot_be_saved_is_named(particles: int) -> None:
    better = amc.wrap(app(InMemorySaver(), lambda s: {"log": [threading.Lock()]}), particles=particles, seed=1)
    with pytest.raises(UnserialisableStateError, match=r"channel 'log'.*lock"):
        better.invoke({"log": []}, THREAD)
