"""kill -9 at random moments: no answer that was received is paid again, no effect happens twice, none is lost.

Attempts run in processes forked from a test process that has imported everything, and are killed for real.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import re
import signal
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import langgraph_amc as amc

from .support import agent, happened, serving, texts

FORK = multiprocessing.get_context("fork")
CONFIG = {"configurable": {"thread_id": "t"}}
ASK = {"messages": [("user", "how many?")]}
SEED = 5


async def attempt(url: str, folder: Path) -> list[str]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(folder / "app.sqlite")) as saver:
        app = agent(url, folder / "world", saver, journal=folder / "runs.sqlite", seed=SEED)
        return texts(await app.ainvoke(ASK, CONFIG))


def attempt_in_threads(url: str, folder: Path) -> list[str]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(folder / "app.sqlite")) as saver:
        app = agent(url, folder / "world", saver, journal=folder / "runs.sqlite", seed=SEED)
        return texts(app.invoke(ASK, CONFIG))


def child(url: str, folder: Path, answer: Path | None, sync: bool) -> None:
    said = attempt_in_threads(url, folder) if sync else asyncio.run(attempt(url, folder))
    if answer is not None:
        answer.write_text("\n".join(said))
    os._exit(0)


def start(
    url: str, folder: Path, answer: Path | None = None, sync: bool = False
) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=child, args=(url, folder, answer, sync))
    process.start()
    return process


def finish(url: str, folder: Path) -> list[str]:
    answer = folder / "answer"
    process = start(url, folder, answer)
    process.join(60)
    assert process.exitcode == 0
    return answer.read_text().split("\n")


def received(journal: Path) -> set[int]:
    """Numbers of the answers that are in the journal."""
    if not journal.exists():
        return set()
    with sqlite3.connect(journal) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        found: set[int] = set()
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                for value in row:
                    data = value if isinstance(value, bytes) else str(value).encode()
                    found.update(int(n) for n in re.findall(rb"#(\d+) draw", data))
        return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the run answers when nobody disturbs it."""
    with serving() as server:
        return finish(server.url, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("seed", range(10))
def test_killed_and_called_again(tmp_path: Path, undisturbed: list[str], seed: int) -> None:
    rng = random.Random(seed)
    kills = 5
    with serving(latency=0.02) as server:
        paid: set[tuple[str, str]] = set()
        for _ in range(kills):
            asked = len(server.asked)
            process = start(server.url, tmp_path, sync=seed % 2 == 1)
            time.sleep(rng.uniform(0.05, 0.6))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(30)
            again = paid & set(server.asked[asked:])
            assert not again, "an answer that had been received was paid again"
            paid |= {server.asked[number] for number in received(tmp_path / "runs.sqlite")}
            assert len(happened(tmp_path / "world")) <= 1
            if process.exitcode == 0:
                break
        else:
            asked = len(server.asked)
            assert finish(server.url, tmp_path) == undisturbed
            assert not paid & set(server.asked[asked:])
    (effect,) = happened(tmp_path / "world")
    assert str(effect["number"]) in "\n".join(undisturbed)


@pytest.mark.parametrize("sync", [True, False])
def test_ctrl_c_leaves_a_run_that_can_be_gone_on_with(tmp_path: Path, undisturbed: list[str], sync: bool) -> None:
    with serving(latency=0.05) as server:
        process = start(server.url, tmp_path, sync=sync)
        deadline = time.monotonic() + 30
        while len(server.asked) < 6 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGINT)
        process.join(30)
        assert process.exitcode != 0
        before = len(server.asked)
        journal = amc.Journal(tmp_path / "runs.sqlite")
        assert [run.status for run in journal.runs()] == ["resumable"]
        journal.close()
        assert finish(server.url, tmp_path) == undisturbed
        assert len(set(server.asked)) == len(server.asked), "what was under way at Ctrl-C had been waited for"
        assert len(server.asked) > before


# -- after any write ------------------------------------------------------------------------------


def dying_after(count: int, url: str, folder: Path, sync: bool) -> None:
    """A run whose process is killed by itself once so many things have been written to the journal."""
    from langgraph_amc.runtime.journal.writer import Writer

    put, left = Writer.put, [count]

    def counted(self: Writer, changes: Sequence[Any], **how: Any) -> int:
        ticket = put(self, changes, **how)
        left[0] -= bool(changes)
        if left[0] == 0 and changes:
            self.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return ticket

    Writer.put = counted  # type: ignore[method-assign]
    child(url, folder, None, sync)


@pytest.mark.parametrize("first", range(6))
def test_killed_after_any_write_to_the_journal(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: list[str], first: int
) -> None:
    """Wherever a run is cut off, it ends as if it had not been."""
    with serving() as server:
        for count in range(1 + first, 200, 6):
            folder = tmp_path_factory.mktemp("cut")
            process = FORK.Process(target=dying_after, args=(count, server.url, folder, first % 2 == 0))
            process.start()
            process.join(60)
            if process.exitcode == 0:
                assert count > 40, "it has not been cut off before"
                return
            with amc.Journal(folder / "runs.sqlite") as journal:
                ended = [run for run in journal.runs() if run.status == "finished"]
                unknown = [e for run in journal.runs() for e in journal.show(run.id).effects if e.outcome == "unknown"]
            if ended or unknown:
                continue  # cut off before it could answer, or in the middle of an effect: see test_resume
            assert finish(server.url, folder) == undisturbed, f"after {count} writes"
            assert len(happened(folder / "world")) == 1
    raise AssertionError("the run writes without end")
