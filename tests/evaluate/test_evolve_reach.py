"""Whether the app's calls reach the model and its members, what is kept where they do not, and what is found again."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.kept import read_kept
from langgraph_amc.evaluate.evolving.replica import Replica
from langgraph_amc.evaluate.evolving.replicas import Tuning
from langgraph_amc.evaluate.evolving.rollouts import ModelNotReachedError
from langgraph_amc.evolution.history import read
from langgraph_amc.tasks import TaskSet
from langgraph_amc.trajectories import StoreError, TrajectoryStore
from tests.evaluate.evolve_world import made, run, tasks

APPS = '''
"""Agents that call their model in other ways than one call after another."""
import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_litellm import ChatLiteLLM
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

HERE = Path(__file__).parent


def model(temperature=1.0):
    which = os.environ.get("WHICH", str(HERE / "model"))
    return ChatLiteLLM(model=f"amc-local/{which}", temperature=temperature, max_tokens=6)


pool = ThreadPoolExecutor(8)


def lonely(state):
    """In a thread that knows nothing of who runs."""
    return {"messages": [pool.submit(model().invoke, state["messages"]).result()]}


def told(state):
    """In a thread that was given the context."""
    context = copy_context()
    return {"messages": [pool.submit(context.run, model().invoke, state["messages"]).result()]}


async def late(state):
    await asyncio.sleep(random.random() / 50)
    return {"messages": [await model().ainvoke(state["messages"][:1])]}


def of(*nodes):
    g = StateGraph(MessagesState)
    for i, node in enumerate(nodes):
        g.add_node(f"n{i}", node)
        g.add_edge(START, f"n{i}")
        g.add_edge(f"n{i}", END)
    return g.compile()


def fanned():
    g = StateGraph(MessagesState)
    g.add_node("late", late)
    g.add_conditional_edges(START, lambda state: [Send("late", state)] * 3, ["late"])
    g.add_edge("late", END)
    return g.compile()


def told_unless_quiet(state):
    return {} if "quiet" in state["messages"][0].content else told(state)


def mixed():
    g = StateGraph(MessagesState)
    g.add_node("told", told)
    g.add_node("lonely", lonely)
    g.add_edge(START, "told")
    g.add_edge("told", "lonely")
    g.add_edge("lonely", END)
    return g.compile()


alone, handed, abreast, quiet = of(lonely), of(told), of(late, late, late), of(told_unless_quiet)


def judged(run):
    """By the model that is evolved, greedily, on one prompt."""
    answer = model(0.0).invoke([HumanMessage("how good was that")])
    return sum(map(ord, answer.content)) % 1009 / 1009


def given_up(run):
    raise asyncio.CancelledError


async def given_up_later(run):
    raise asyncio.CancelledError
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made(tmp_path_factory.mktemp("world"))
    (folder / "apps.py").write_text(APPS)
    return folder


def of(world: Path, name: str) -> str:
    """An app or a reward of `APPS`, as on the command line."""
    return f"{world}/apps.py:{name}"


def kept(out: Path) -> int:
    with TrajectoryStore(out / "trajectories.sqlite") as store:
        return store.counts().trajectories


def test_an_app_whose_thread_does_not_know_who_runs_is_told_so(world: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="outside any rollout"), pytest.raises(ModelNotReachedError, match="copy_cont"):
        run(world, tmp_path / "out", app=of(world, "alone"))
    assert kept(tmp_path / "out") == 0
    validation = tasks().split("validation")
    with (
        pytest.warns(UserWarning, match="outside any rollout"),
        pytest.raises(ModelNotReachedError, match="no call of the app reached a member"),
    ):
        run(world, tmp_path / "validated", app=of(world, "alone"), validation=validation)


def test_a_part_of_the_calls_that_reaches_no_member_is_warned_of(world: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"copy_context\(\)\.run"):
        run(world, tmp_path / "mixed", app=of(world, "mixed"), generations=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*outside any rollout")
        run(world, tmp_path / "told", app=of(world, "handed"), generations=1)


@pytest.mark.parametrize("which", ["abreast", "fanned"])
def test_calls_at_the_same_time_have_the_same_noise_in_every_run(world: Path, tmp_path: Path, which: str) -> None:
    one, two = (run(world, tmp_path / name, app=of(world, which)) for name in ("one", "two"))
    assert one.weights == two.weights
    assert one.moved
    alike = amc.Strategy(population=6, sigma=1e-9, seed=1)
    run(world, tmp_path / "alike", app=of(world, which), strategy=alike, generations=1)
    [record] = read(tmp_path / "alike" / "history.jsonl").records
    assert (record.rewards == record.rewards[0]).all()
    with TrajectoryStore(tmp_path / "alike" / "trajectories.sqlite") as store:
        said = next(iter(store.trajectories())).segments[-1].split("assistant\n")[1:]
    assert len(said) == len(set(said)) == 3


def test_rollouts_of_the_wrong_model_are_not_kept(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(world / "model", tmp_path / "other")
    given = {"validation": tasks().split("validation"), "generations": 1}
    monkeypatch.setenv("WHICH", str(tmp_path / "other"))
    with pytest.raises(ModelNotReachedError, match="None of these rollouts is kept"):
        run(world, tmp_path / "out", app=of(world, "handed"), **given)
    assert kept(tmp_path / "out") == 0
    monkeypatch.delenv("WHICH")
    mended = run(world, tmp_path / "out", app=of(world, "handed"), **given)
    fresh = run(world, tmp_path / "fresh", app=of(world, "handed"), **given)
    assert (mended.validations, mended.weights) == (fresh.validations, fresh.weights)
    assert mended.found == 0


def test_rollouts_of_another_reward_or_text_are_not_found(world: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", {"reward": f"{world}/agent.py:odd"}
    run(world, out, generations=1)
    (out / "history.jsonl").unlink()
    shutil.rmtree(out / "model")
    found = run(world, out, generations=1, **other)
    fresh = run(world, tmp_path / "fresh", generations=1, **other)
    assert (found.weights, found.rollouts) == (fresh.weights, fresh.rollouts)
    (out / "history.jsonl").unlink()
    shutil.rmtree(out / "model")
    texts = TaskSet.from_iterable({"id": i, "input": f"other {i}"} for i in tasks().split("train").ids)
    with pytest.raises(StoreError, match="already stored with another input"):
        run(world, out, generations=1, tasks=texts)


def test_what_is_left_of_a_run_need_not_reach_the_model_again(world: Path, tmp_path: Path) -> None:
    some = TaskSet.from_iterable([{"id": "a", "input": "loud"}, {"id": "b", "input": "quiet"}])
    given = {"app": of(world, "quiet"), "tasks": some, "held_out": tasks().split("held-out")}
    whole = run(world, tmp_path / "out", generations=1, **given)
    (tmp_path / "out" / "history.jsonl").unlink()
    shutil.rmtree(tmp_path / "out" / "model")
    with closing(sqlite3.connect(tmp_path / "out" / "trajectories.sqlite")) as store:
        lost = store.execute("delete from amc_trajectories where task_id = 'b'").rowcount
        store.commit()
    again = run(world, tmp_path / "out", generations=1, **given)
    assert (again.weights, again.held_out) == (whole.weights, whole.held_out)
    assert again.rollouts == lost > 0


def test_all_that_earlier_calls_ran_is_counted(world: Path, tmp_path: Path) -> None:
    first = run(world, tmp_path / "out")
    again = run(world, tmp_path / "out")
    assert (again.rollouts, again.found) == (0, first.rollouts)
    fewer = run(world, tmp_path / "out", generations=1)
    assert fewer.stopped == "2 are done already, more than the 1 that are asked for"


def test_a_run_that_goes_on_shows_its_validations(world: Path, tmp_path: Path) -> None:
    given = {"validation": tasks().split("validation"), "validate_every": 1}
    found = run(world, tmp_path / "out", **given)
    (tmp_path / "out" / "result.json").unlink()
    shown = read_kept(tmp_path / "out").to_json()
    assert [v["done"] for v in shown["validations"]] == [0, 1, 2]
    assert shown["validations"][0]["reward"]["mean"] == found.validations[0].reward.mean
    (tmp_path / "out" / "validations.json").write_text("[tor")
    assert read_kept(tmp_path / "out").validations == ()


def test_a_reward_that_asks_the_model_is_answered_by_no_member(world: Path, tmp_path: Path) -> None:
    far = amc.Strategy(population=4, sigma=1.0, seed=5)
    found = run(world, tmp_path / "out", reward=of(world, "judged"), strategy=far, generations=1)
    [record] = read(tmp_path / "out" / "history.jsonl").records
    assert np.ptp(record.rewards) == 0
    assert not found.moved


@pytest.mark.parametrize("reward", ["given_up", "given_up_later"])
def test_a_reward_that_gives_up_is_missing(world: Path, tmp_path: Path, reward: str) -> None:
    with pytest.raises(amc.AMCError, match="could be judged, the first because CancelledError"):
        run(world, tmp_path / "out", reward=of(world, reward))


def test_a_model_is_evolved_once_at_a_time_in_a_process(world: Path) -> None:
    replica = Replica(Tuning(str(world / "model")))
    try:
        with pytest.raises(ConfigurationError, match="evolved in this process already"):
            Replica(Tuning(str(world / "model")))
    finally:
        replica.close()
    Replica(Tuning(str(world / "model"))).close()


@pytest.mark.parametrize("nothing", [None, 3, lambda state: state])
def test_what_is_no_app_is_named(world: Path, tmp_path: Path, nothing: object) -> None:
    with pytest.raises(ConfigurationError, match="compiled LangGraph app"):
        run(world, tmp_path / "out", app=nothing)
