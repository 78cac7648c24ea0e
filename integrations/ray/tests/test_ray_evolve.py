"""Evolution on two workers: the same weights as in one process, also when a worker is killed in mid-generation."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from langgraph_amc_ray import RayReplicas, replicas

import langgraph_amc as amc
from langgraph_amc.evaluate.evolving.replicas import ReplicasDivergedError, agreed
from langgraph_amc.evaluate.evolving.run import Evolution, Standing, evolve
from langgraph_amc.evolution.history import read
from tests.evaluate.evolve_world import made, tasks

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("world"))


def run(world: Path, out: Path, **changes: Any) -> Evolution:
    return evolve(
        f"{world}/agent.py:graph",
        tasks().split("train"),
        f"{world}/agent.py:even",
        model=world / "model",
        out=out,
        strategy=amc.Strategy(population=4, sigma=0.02, seed=5),
        generations=2,
        batch=3,
        concurrency=4,
        **changes,
    )


def test_two_workers_give_the_weights_of_one_process_even_if_one_dies(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(world, tmp_path / "here")
    held: list[RayReplicas] = []
    original = RayReplicas.__init__
    monkeypatch.setattr(RayReplicas, "__init__", lambda self: (original(self), held.append(self))[0])
    killed: list[int] = []

    def kill(at: Standing) -> None:
        if at.doing == "generation 2" and at.done == 4 and not killed:
            killed.append(held[0].slots[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    there = run(world, tmp_path / "there", executor="ray", workers=2, progress=kill)
    assert killed
    assert held[0].executor is not None
    assert 1 <= held[0].executor.lost <= 2
    assert there.rollouts == here.rollouts == 2 * 4 * 3
    assert [g.weights for g in there.generations] == [g.weights for g in here.generations]
    log = read(tmp_path / "there" / "history.jsonl")
    assert len({log.header.weights, *(r.weights for r in log.records)}) == 3
    # nothing is left to run, wherever the same command is given
    assert run(world, tmp_path / "there").rollouts == 0


def test_copies_that_differ_are_an_error() -> None:
    assert agreed({"worker 0": "ab", "worker 1": "ab"}) == "ab"
    with pytest.raises(ReplicasDivergedError, match="worker 1: cd"):
        agreed({"worker 0": "ab", "worker 1": "cd"})
    assert callable(replicas)
