"""Processes that are killed at random points: the run comes out the same, and no answer is paid twice.

``AMC_KILLS=20`` kills more often than the few times that are enough for every day.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_amc.skills.validation import problems_in
from tests.evaluate.optimizing.worlds import BRIEF, SMALL, in_a_process, optimize
from tests.support import parcels
from tests.support.openai_server import Broken, OpenAIServer

KILLS = int(os.environ.get("AMC_KILLS", "2"))
CONCURRENCY = (1, 4) if "AMC_KILLS" in os.environ else (1,)
_KEPT = ("trials", "held_out", "validation_old", "validation_new", "archive", "rounds", "stopped", "changed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        running.reply = parcels.reply
        monkeypatch.setenv("OPENAI_API_BASE", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield running


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("concurrency", CONCURRENCY)
def test_killed_runs_go_on_and_pay_nothing_twice(server: OpenAIServer, tmp_path: Path, concurrency: int) -> None:
    world = parcels.made(tmp_path, talks=True, **SMALL)
    whole = optimize(world, "whole", SMALL, concurrency=concurrency, **BRIEF)
    asked = Counter(map(_said, server.requests))
    assert set(asked.values()) == {1}
    total = len(server.requests)

    answered: Counter[str] = Counter()
    victim: list[int] = []
    rng = random.Random(concurrency)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.evaluate.optimizing.worlds", "langgraph_amc.policy.litellm_chat"])
    for kill in range(KILLS + 1):
        left = max(1, total - sum(answered.values()))
        at = rng.randint(1, max(1, left // (KILLS + 1 - kill))) if kill < KILLS else None
        count = iter(range(1, 10**6))

        def reply(body: dict[str, Any], number: int, at: int | None = at, count: Iterator[int] = count) -> Any:
            if next(count) == at:
                os.kill(victim[-1], signal.SIGKILL)  # before it has this answer: it was not paid
                raise Broken("drop")
            answered[_said(body)] += 1
            return parcels.reply(body, number)

        server.reply = reply
        process = context.Process(target=in_a_process, args=(world, "killed", server.base_url, concurrency))
        process.start()
        assert process.pid is not None
        victim.append(process.pid)
        process.join(timeout=120)
        assert process.exitcode == (0 if at is None else -signal.SIGKILL)

    twice = sum(n - 1 for n in answered.values())
    # answers that were on their way to other rollouts when the process died never reached it
    assert twice <= KILLS * (concurrency - 1)
    assert set(answered) == set(asked)
    found = json.loads((world / "killed" / "result.json").read_text())
    expected = whole.to_json()
    assert {name: found[name] for name in _KEPT} == {name: expected[name] for name in _KEPT}
    assert problems_in(world / "killed" / "skills") == []
    with sqlite3.connect(world / "killed" / "answers.sqlite") as database:
        [(kept,)] = database.execute("SELECT COUNT(*) FROM answers").fetchall()
    assert kept == len(asked)


def _said(body: dict[str, Any]) -> str:
    return json.dumps([body["messages"], body.get("seed")])
