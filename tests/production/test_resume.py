"""Going on with a run by its id, from code and from the command line, and settling what nobody knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError

from .support import agent, happened, serving, texts
from .test_kills import ASK, CONFIG, FORK, SEED, child, start

ROOT = Path(__file__).parents[2]
APP = """
import os
from pathlib import Path
from tests.production.support import agent
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
import aiosqlite

folder = Path(os.environ["FOLDER"])


async def better():
    saver = AsyncSqliteSaver(await aiosqlite.connect(folder / "app.sqlite"))
    return agent(os.environ["MODEL"], folder / "world", saver, journal=folder / "runs.sqlite", seed=5)
"""


def broken_off(url: str, folder: Path, asked: list, answers: int) -> str:
    """Kill a run after so many answers; its id."""
    process = start(url, folder)
    deadline = time.monotonic() + 30
    while len(asked) < answers and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join(30)
    with amc.Journal(folder / "runs.sqlite") as journal:
        (run,) = journal.runs()
        assert run.status == "resumable"
        return run.id


def test_resume_goes_on_where_the_call_would_have(tmp_path: Path) -> None:
    with serving(latency=0.02) as server:
        run = broken_off(server.url, tmp_path, server.asked, 6)
        with SqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver:
            app = agent(server.url, tmp_path / "world", saver, journal=tmp_path / "runs.sqlite", seed=SEED)
            state = amc.resume(app, run[:8])
            assert state.amc.run_id == run
            assert app.get_state(CONFIG).values["messages"][-1].content == state["messages"][-1].content
            with pytest.raises(amc.JournalError, match="has ended"):
                amc.resume(app, run)
    assert len(happened(tmp_path / "world")) == 1


def test_a_thread_that_has_moved_on_is_not_resumed(tmp_path: Path) -> None:
    with serving(latency=0.02) as server:
        run = broken_off(server.url, tmp_path, server.asked, 6)
        with SqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver:
            app = agent(server.url, tmp_path / "world", saver, journal=tmp_path / "runs.sqlite", seed=SEED)
            app._amc_app.update_state(CONFIG, {"messages": [("user", "never mind")]}, as_node="tools")
            for _ in range(2):
                with pytest.raises(amc.JournalError, match="moved on"):
                    amc.resume(app, run)
            state = app.invoke(ASK, CONFIG)
            assert state.amc.run_id != run, "the same call is a new turn, and the old run is given up"
        with amc.Journal(tmp_path / "runs.sqlite") as journal:
            assert {r.id: r.status for r in journal.runs()}[run] == "abandoned"


def test_resume_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(latency=0.02) as server:
        run = broken_off(server.url, tmp_path, server.asked, 6)
        done = subprocess.run(
            [sys.executable, "-m", "langgraph_amc", "resume", run[:10], f"{tmp_path}/app.py:better", "--json"],
            env={**os.environ, "FOLDER": str(tmp_path), "MODEL": server.url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["run"] == run
    assert "draw" in said["answer"]
    assert len(happened(tmp_path / "world")) == 1


def dying(url: str, folder: Path) -> None:
    """A run whose process dies while its effect happens."""
    from tests.production import support

    def order(world: Path) -> object:
        tool = original(world)

        def body(number: int) -> str:
            tool.func(number)
            os._exit(9)

        return tool.model_copy(update={"func": body})

    original, support.ordering = support.ordering, order
    child(url, folder, None, True)


@pytest.mark.parametrize("happened_outside", [True, False])
def test_an_effect_nobody_knows_of_stops_the_run_until_somebody_says(tmp_path: Path, happened_outside: bool) -> None:
    with serving() as server:
        process = FORK.Process(target=dying, args=(server.url, tmp_path))
        process.start()
        process.join(60)
        assert process.exitcode == 9
        with (
            SqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver,
            amc.Journal(tmp_path / "runs.sqlite") as journal,
        ):
            app = agent(server.url, tmp_path / "world", saver, journal=journal, seed=SEED)
            for _ in range(2):
                with pytest.raises(amc.EffectUnknownError, match="amc settle"):
                    app.invoke(ASK, CONFIG)
            (run,) = journal.runs()
            assert run.status == "resumable"
            (effect,) = journal.show(run.id).effects
            outcome = {"result": "ordered, says the shop"} if happened_outside else {"error": RuntimeError("no stock")}
            amc.settle(journal, run.id, effect.key, **outcome)
            if happened_outside:
                assert "ordered, says the shop" in texts(app.invoke(ASK, CONFIG))
            else:
                with pytest.raises(Exception, match="no stock"):
                    app.invoke(ASK, CONFIG)
    assert len(happened(tmp_path / "world")) == 1, "it is not repeated"


def test_only_a_wrapped_app_with_a_journal_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="journal="):
        amc.resume(agent("http://127.0.0.1:9/", tmp_path / "world"), "abc")
