"""Whole runs: an agent behind a real HTTP server, and a small local model whose weights are tuned beside its skills."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import langgraph_amc as amc
from langgraph_amc.cli.app import app
from langgraph_amc.coevolve.trials import Trials
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.coevolving import Coevolution, acoevolve, coevolve
from langgraph_amc.evaluate.coevolving.sharing import count_sharing
from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError, SkillsNotReachedError
from langgraph_amc.evolution.history import read
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.policy.budget import Budget
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.tasks import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.coevolve.agents import agent, answers, names, replying, right, tasks
from tests.coevolve.worlds import Pool, rules_of
from tests.evaluate import evolve_world
from tests.support.openai_server import OpenAIServer

WEIGHTLESS: dict[str, Any] = {
    "strategy": Strategy(population=6, seed=1),
    "generations": 12,
    "batch": 6,
    "trials": Trials(generations=2),
    "measured": 2,
    "concurrency": 16,
}


RULES = ("helpful", "idle", "harmful")


def test_skills_alone_behind_a_real_server(tmp_path: Path) -> None:
    every = tasks()
    with OpenAIServer() as server:
        server.reply = replying()
        found = coevolve(
            agent(server),
            every.split("train"),
            right,
            Pool(rules=RULES),
            out=tmp_path / "out",
            held_out=every.split("held-out"),
            **WEIGHTLESS,
        )
        answered = answers(server)
        again = coevolve(
            agent(server),
            every.split("train"),
            right,
            Pool(rules=RULES),
            out=tmp_path / "out",
            held_out=every.split("held-out"),
            **WEIGHTLESS,
        )
        assert answers(server) == answered
    assert (again.library, again.trials, again.held_out) == (found.library, found.trials, found.held_out)
    library = SkillLibrary.read(found.skills)
    assert library.digest == found.library
    assert rules_of(library) == ["helpful"]
    assert found.held_out is not None
    assert found.held_out.difference.mean > 0
    assert (found.model, found.weights) == (None, "none")
    sharing = found.sharing
    assert sharing.gate == 2 * 6 * 6 * len(found.trials)
    assert sharing.train == 6 * 6 * len(found.generations)
    assert sharing.proposer >= 6 * 6  # the first generation, on which the first proposal rests
    assert (sharing.weights, sharing.neither, sharing.measured) == (0, 0, 2 * 8 * 2)
    assert answered == sharing.train + sharing.measured
    assert found.stopped.startswith("the proposer has nothing more to try")
    assert "kept" in found.to_text()
    assert names(tmp_path / "out") == [
        "answers.sqlite",
        "history.jsonl",
        "result.json",
        "skills",
        "trajectories.sqlite",
    ]


def test_a_rule_that_stands_in_a_held_out_answer_is_refused_as_in_optimising(tmp_path: Path) -> None:
    every = tasks()
    held_out = TaskSet(replace(task, reference="Do what is helpful") for task in every.split("held-out"))
    given = {**WEIGHTLESS, "strategy": Strategy(population=2), "generations": 3}
    with OpenAIServer() as server:
        server.reply = replying()
        app, pool = agent(server), Pool(rules=("helpful",))
        found = coevolve(app, every.split("train"), right, pool, out=tmp_path / "leak", held_out=held_out, **given)
    [said] = found.refused
    assert said.startswith("create skill rules: it repeats the reference of a task: “do what is helpful”")
    assert f"never tried: {said}" in found.to_text()
    assert found.trials == ()
    assert not len(SkillLibrary.read(found.skills))


def test_cancelled_at_twenty_points_nothing_is_paid_twice(tmp_path: Path) -> None:
    """Each time it goes on from the folder; what the server has answered before is not asked again."""
    every = tasks(train=12)
    options = {**WEIGHTLESS, "strategy": Strategy(population=4), "generations": 3, "concurrency": 1}
    rng = random.Random(0)

    async def until(server: OpenAIServer, requests: int | None, out: Path) -> Coevolution | None:
        going = asyncio.create_task(acoevolve(agent(server), every.split("train"), right, Pool(), out=out, **options))
        while not going.done():
            if requests is not None and answers(server) >= requests:
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
                return None
            await asyncio.sleep(0.001)
        return going.result()

    with OpenAIServer() as server:
        server.reply = replying(3)
        whole = asyncio.run(until(server, None, tmp_path / "whole"))
        needed = answers(server)
    assert whole is not None
    with OpenAIServer() as server:
        server.reply = replying(3)
        points = sorted(rng.sample(range(2, needed - 2), 20))
        for point in points:
            asyncio.run(until(server, point, tmp_path / "out"))
        found = asyncio.run(until(server, None, tmp_path / "out"))
        total = answers(server)
    assert found is not None
    assert needed <= total <= needed + len(points)  # at most the one request that was on its way at each
    assert found.sharing.train == whole.sharing.train == 3 * 4 * 6


def test_settings_that_cannot_work_leave_nothing_that_better_ones_would_have_to_fit(tmp_path: Path) -> None:
    with OpenAIServer() as server:
        given = {**WEIGHTLESS, "trials": Trials(generations=1, alpha=1e-9)}
        with pytest.raises(ConfigurationError, match="no challenger can reach"):
            coevolve(agent(server), tasks().split("train"), right, Pool(), out=tmp_path / "out", **given)
        assert not (tmp_path / "out").exists()
        assert not server.requests


def test_the_budget_ends_it_and_it_goes_on(tmp_path: Path) -> None:
    every = tasks()
    given = {**WEIGHTLESS, "generations": 3}
    with OpenAIServer() as server:
        server.reply = replying()
        with pytest.raises(OutOfBudgetError):
            coevolve(agent(server), every.split("train"), right, Pool(), out=tmp_path, budget=Budget(calls=60), **given)
        assert len(server.requests) <= 60
        before = answers(server)
        found = coevolve(agent(server), every.split("train"), right, Pool(), out=tmp_path, **given)
        assert answers(server) == found.sharing.train == 3 * 6 * 6
        assert 0 < before < answers(server)


def test_an_app_that_the_skills_do_not_reach_is_refused(tmp_path: Path) -> None:
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [AIMessage("right")]})
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    with pytest.raises(SkillsNotReachedError, match="chat_model"):
        coevolve(graph.compile(), tasks().split("train"), right, Pool(), out=tmp_path, **WEIGHTLESS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evolve_world.made(tmp_path_factory.mktemp("world"))


def tuned(world: Path, out: Path, **changes: Any) -> Coevolution:
    every = evolve_world.tasks()
    given: dict[str, Any] = {
        "model": world / "model",
        "strategy": Strategy(population=4, sigma=0.02, seed=5),
        "generations": 3,
        "batch": 6,
        "trials": Trials(generations=1),
        "measured": 2,
        "validation": every.split("validation"),
        "held_out": every.split("held-out"),
        "validate_every": 1,
        "patience": None,
    }
    proposer = Pool()
    return coevolve(
        f"{world}/agent.py:graph",
        every.split("train"),
        f"{world}/agent.py:even",
        proposer,
        out=out,
        **{**given, **changes},
    )


def test_weights_and_skills_of_a_local_model(world: Path, tmp_path: Path) -> None:
    found = tuned(world, tmp_path / "out")
    log = read(tmp_path / "out" / "history.jsonl")
    assert len({log.header.weights, *(r.weights for r in log.records)}) == 4
    assert found.model is not None
    assert [v.done for v in found.validations] == [0, 1, 2, 3]
    assert len(found.trials) == 2
    s = found.sharing
    assert (s.train, s.weights, s.gate, s.both) == (3 * 4 * 6, 3 * 4 * 6, 2 * 4 * 6, 2 * 4 * 6)
    assert (s.neither, s.missing, s.unfinished) == (0, 0, 0)
    with TrajectoryStore(tmp_path / "out" / "trajectories.sqlite") as store:
        assert store.counts().trajectories == found.rollouts == s.train + s.measured
        assert count_sharing(log, store) == s
        carried = {run.metadata["skills"] for run in store.runs()}
    assert len(carried) == 3  # the empty library and two challengers
    assert SkillLibrary.read(tmp_path / "out" / "skills").digest == found.library
    replayed = amc.evolution.replay.replay(tmp_path / "out" / "history.jsonl", world / "model")
    assert replayed.hash() == log.weights

    again = tuned(world, tmp_path / "out")
    assert again.rollouts == 0
    assert (again.trials, again.validations, again.held_out, again.library) == (
        found.trials,
        found.validations,
        found.held_out,
        found.library,
    )
    with pytest.raises(ConfigurationError, match="other trials"):
        tuned(world, tmp_path / "out", trials=Trials(generations=2))


def test_killed_in_a_generation_the_weights_come_out_the_same(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuned(world, tmp_path / "whole", validation=amc.TaskSet(), held_out=amc.TaskSet())
    ends, lock = [0], threading.Lock()
    from langgraph_amc.evaluate.evolving import rollouts

    kept = rollouts.StoredRollouts._note

    def note(self: Any, *given: Any) -> float:
        with lock:
            ends[0] += 1
        if ends[0] == 31:
            raise KeyboardInterrupt
        return kept(self, *given)

    monkeypatch.setattr(rollouts.StoredRollouts, "_note", note)
    with pytest.raises(KeyboardInterrupt):
        tuned(world, tmp_path / "out", validation=amc.TaskSet(), held_out=amc.TaskSet())
    found = tuned(world, tmp_path / "out", validation=amc.TaskSet(), held_out=amc.TaskSet())
    assert (found.weights, found.library, found.trials) == (whole.weights, whole.library, whole.trials)
    assert found.rollouts == whole.rollouts - 30  # those that had ended before it died are not run again
    one, other = (read(tmp_path / n / "history.jsonl").records for n in ("whole", "out"))
    assert all(np.array_equal(a.rewards, b.rewards) for a, b in zip(one, other, strict=True))


def test_the_command_line(world: Path, tmp_path: Path) -> None:
    agent_file, out = f"{world}/agent.py", tmp_path / "out"
    words = ["coevolve", f"{agent_file}:graph", "--tasks", f"{world}/tasks.jsonl", "--reward", f"{agent_file}:even"]
    words += ["--model", str(world / "model"), "--out", str(out), "--split", "train", "--held-out", "held-out"]
    words += ["--generations", "3", "--population", "4", "--batch", "6", "--trial", "1", "--measured", "1"]
    words += ["--sigma", "0.02", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sharing"]["neither"] == 0
    assert found["sharing"]["train"] == 3 * 4 * 6
    assert SkillLibrary.read(out / "skills").digest == found["library"]
    assert json.loads((out / "result.json").read_text()) == found
