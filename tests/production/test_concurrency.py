"""Many runs at once: on one journal and one SQLite saver, in one process and in several."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import langgraph_amc as amc

from .support import agent, happened, serving, texts

ASK = {"messages": [("user", "how many?")]}
FORK = multiprocessing.get_context("fork")


def thread(name: str) -> dict:
    return {"configurable": {"thread_id": name}}


async def test_eight_runs_of_sixty_four_particles(tmp_path: Path) -> None:
    with serving() as server, amc.Journal(tmp_path / "runs.sqlite") as journal:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver:
            app = agent(server.url, tmp_path / "world", saver, particles=64, journal=journal)
            states = await asyncio.gather(*[app.ainvoke(ASK, thread(str(i))) for i in range(8)])
            for i, state in enumerate(states):
                kept = (await app.aget_state(thread(str(i)))).values
                assert texts(kept) == texts(state)
        assert [run.status for run in journal.runs()] == ["finished"] * 8
        assert all(len(journal.show(run.id).effects) == 1 for run in journal.runs())
    assert len(happened(tmp_path / "world")) == 8


async def same_input_without_a_thread(url: str, folder: Path) -> list:
    with amc.Journal(folder / "runs.sqlite") as journal:
        app = agent(url, folder / "world", journal=journal)
        return await asyncio.gather(*[app.ainvoke(ASK) for _ in range(5)])


async def test_the_same_call_several_times_at_once_is_several_runs(tmp_path: Path) -> None:
    with serving() as server:
        states = await same_input_without_a_thread(server.url, tmp_path)
    assert len({state.amc.run_id for state in states}) == 5
    assert len(happened(tmp_path / "world")) == 5


def worker(url: str, folder: Path, name: str, sync: bool) -> None:
    async def asynchronous() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "app.sqlite")) as saver:
            app = agent(url, folder / "world", saver, journal=folder / "runs.sqlite")
            await asyncio.gather(*[app.ainvoke(ASK, thread(f"{name}-{i}")) for i in range(3)])

    if sync:
        with SqliteSaver.from_conn_string(str(folder / "app.sqlite")) as saver:
            app = agent(url, folder / "world", saver, journal=folder / "runs.sqlite")
            for i in range(3):
                app.invoke(ASK, thread(f"{name}-{i}"))
    else:
        asyncio.run(asynchronous())
    os._exit(0)


def test_four_processes_on_one_journal_and_one_saver(tmp_path: Path) -> None:
    with serving() as server:
        workers = [FORK.Process(target=worker, args=(server.url, tmp_path, f"w{i}", i % 2 == 0)) for i in range(4)]
        for process in workers:
            process.start()
        for process in workers:
            process.join(120)
        assert [process.exitcode for process in workers] == [0] * 4
    with amc.Journal(tmp_path / "runs.sqlite") as journal:
        assert [run.status for run in journal.runs()] == ["finished"] * 12
    with SqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver:
        app = agent("http://127.0.0.1:9/", tmp_path / "world", saver)
        for i in range(4):
            for k in range(3):
                said = texts(app.get_state(thread(f"w{i}-{k}")).values)
                assert any(f"ordered {e['number']}" in said for e in happened(tmp_path / "world"))
    assert len(happened(tmp_path / "world")) == 12
