"""kill -9 in the middle of a search: called again, it answers as if nothing had happened, and orders once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent

import langgraph_amc as amc
from langgraph_amc.search import bfs, mcts
from tests.production.support import HTTPModel, Server, happened, judge, ordering, serving, texts, think
from tests.production.test_kills import ASK, FORK

SEARCHES = {"mcts": mcts(3, 20), "bfs": bfs(2, 2)}


def child(url: str, folder: Path, name: str, answer: Path | None, kill_after: int | None) -> None:
    from langgraph_amc.runtime.journal.writer import Writer

    if kill_after is not None:
        put, left = Writer.put, [kill_after]

        def counted(self: Any, changes: Any, **how: Any) -> int:
            ticket = put(self, changes, **how)
            left[0] -= bool(changes)
            if left[0] == 0 and changes:
                self.wait()
                os.kill(os.getpid(), 9)
            return ticket

        Writer.put = counted  # type: ignore[method-assign]
    app = amc.wrap(
        create_agent(HTTPModel(url=url), [think, ordering(folder / "world")]),
        search=SEARCHES[name],
        value=judge,
        effects={"order": "commit", "think": "pure"},
        journal=folder / "runs.sqlite",
        seed=5,
    )
    said = texts(app.invoke(ASK))
    if answer is not None:
        answer.write_text("\n".join(said))
    os._exit(0)


def attempt(server: Server, folder: Path, name: str, kill_after: int | None = None) -> str | None:
    """What a process answers, ``None`` if it was killed."""
    answer = folder / "answer"
    process = FORK.Process(target=child, args=(server.url, folder, name, answer, kill_after))
    process.start()
    process.join(60)
    return answer.read_text() if process.exitcode == 0 else None


@pytest.mark.parametrize("name", SEARCHES)
def test_killed_after_some_writes(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    with serving() as server:
        undisturbed = attempt(server, tmp_path_factory.mktemp("whole"), name)
        killed = 0
        for count in range(3, 400, 19):
            folder = tmp_path_factory.mktemp("cut")
            if attempt(server, folder, name, count) is not None:
                break
            killed += 1
            with amc.Journal(folder / "runs.sqlite") as journal:
                ended = [run for run in journal.runs() if run.status == "finished"]
                unknown = [e for run in journal.runs() for e in journal.show(run.id).effects if e.outcome == "unknown"]
            if ended or unknown:
                continue  # cut off before it could answer, or in the middle of an effect
            assert attempt(server, folder, name) == undisturbed, f"after {count} writes"
            assert len(happened(folder / "world")) == 1
        assert killed >= 2
