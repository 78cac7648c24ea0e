"""Jobs on two real worker processes: as fast as they should be, the same results, and what happens when one dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from langgraph_amc_ray import LostWorkersError, RayExecutor, RemoteError

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.compare import compare
from langgraph_amc.evaluate.execution.executor import LocalExecutor, Processes, remote_executor
from langgraph_amc.evaluate.execution.work import Work
from langgraph_amc.evaluate.runner import Job, Outcome
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.cli.test_cli import APP

pytestmark = pytest.mark.usefixtures("cluster")


def work_of(sleeper: str) -> Work:
    return Work(f"{sleeper}:graph", f"{sleeper}:number", {"particles": 1})


def jobs(settings: Settings, notes: Path, numbers: range | list[int], nap: float) -> list[Job]:
    return [Job(Task(f"t{n}", {"n": n, "nap": nap, "notes": str(notes)}), 0, settings) for n in numbers]


async def ended(executor: RayExecutor | LocalExecutor, given: list[Job], concurrency: int) -> list[Outcome]:
    found = [outcome async for outcome in executor.run(given, concurrency=concurrency)]
    return sorted(found, key=lambda outcome: outcome.job.task.id)


async def test_two_workers_do_the_same_as_one_process_in_about_half_of_the_time(sleeper: str, tmp_path: Path) -> None:
    work = work_of(sleeper)
    loaded = work.load()
    given = jobs(loaded.settings, tmp_path / "notes", range(12), nap=1.0)
    seconds = {}
    found = {}
    for workers in (1, 2):
        async with remote_executor("ray", work, loaded.settings, Processes(workers)) as executor:
            assert isinstance(executor, RayExecutor)
            assert len(set(executor.pids)) == workers
            assert os.getpid() not in executor.pids
            await ended(executor, given[:workers], workers)  # the first job of a process imports
            began = time.perf_counter()
            found[workers] = await ended(executor, given, 2 * workers)  # two at a time in each process
            seconds[workers] = time.perf_counter() - began
    print(f"one worker {seconds[1]:.2f} s, two {seconds[2]:.2f} s: {seconds[1] / seconds[2]:.2f} times as fast")
    assert seconds[1] / seconds[2] >= 1.7
    local = await ended(LocalExecutor(loaded.app, loaded.reward), given, 12)
    for outcomes in found.values():
        assert [o.rewards for o in outcomes] == [o.rewards for o in local]
        assert [o.trajectories[0].segments for o in outcomes] == [o.trajectories[0].segments for o in local]
        assert [o.job.task.id for o in outcomes] == sorted(job.task.id for job in given)


async def test_a_worker_that_is_killed_costs_only_its_unfinished_jobs(sleeper: str, tmp_path: Path) -> None:
    work = work_of(sleeper)
    settings = work.load().settings
    notes = tmp_path / "notes"
    numbers = list(range(100, 124))
    async with remote_executor("ray", work, settings, Processes(2)) as executor:
        assert isinstance(executor, RayExecutor)
        before, victim = executor.pids, executor.pids[0]
        waiting = asyncio.create_task(ended(executor, jobs(settings, notes, numbers, nap=0.5), 4))
        while not notes.exists() or f"{victim} " not in notes.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        os.kill(victim, signal.SIGKILL)
        outcomes = await waiting
        assert [o.rewards[0] for o in outcomes] == [float(n) for n in numbers]
        assert 1 <= executor.lost <= 2
        assert executor.pids[0] != victim
        assert executor.pids[1] == before[1]
    ran = [line.split() for line in notes.read_text().splitlines()]
    assert len(numbers) <= len(ran) <= len(numbers) + 2
    done_by_the_victim = {n for pid, n in ran if pid == str(victim)}
    others = {n for pid, n in ran if pid != str(victim)}
    assert done_by_the_victim
    assert len(done_by_the_victim & others) <= 2


async def test_collecting_on_ray_stores_the_same_and_failures_are_results(sleeper: str, tmp_path: Path) -> None:
    work = work_of(sleeper)
    loaded = work.load()
    tasks = TaskSet(job.task for job in jobs(loaded.settings, tmp_path / "notes", [11, 12, 13], nap=0.0))
    async with remote_executor("ray", work, loaded.settings, Processes(1)) as executor:
        with TrajectoryStore(tmp_path / "runs.sqlite") as store:
            found = await collect(loaded.app, tasks, loaded.reward, store, loaded.settings, executor=executor)
            assert {t.task_id: (t.status, t.outcome) for t in store.trajectories()} == {
                "t11": ("finished", 11.0), "t12": ("finished", 12.0), "t13": ("failed", 0.0),
            }  # fmt: skip
        assert (found.runs, found.failed) == (3, 1)
        assert "thirteen" in (found.first_failure or "")
        with pytest.raises(LostWorkersError, match="t666"):
            await ended(executor, jobs(loaded.settings, tmp_path / "notes", [666], nap=0.0), 1)


async def test_a_comparison_on_ray_is_the_comparison_here(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(APP)
    options = {"particles": 3, "resample": "every(1)", "value": f"{tmp_path}/agent.py:blind"}
    work = Work(f"{tmp_path}/agent.py:graph", f"{tmp_path}/agent.py:fine", options)
    loaded = work.load()
    tasks = TaskSet([Task(f"t{i}", f"walk {i}") for i in range(4)])
    here = await compare(loaded.app, tasks, loaded.reward, loaded.settings)
    async with remote_executor("ray", work, loaded.settings, Processes(2)) as executor:
        there = await compare(loaded.app, tasks, loaded.reward, loaded.settings, executor=executor)
    assert here.resamplings == there.resamplings > 0
    for one, other in zip(here.arms, there.arms, strict=True):
        assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


async def test_what_goes_wrong_in_a_worker_is_said_here(sleeper: str) -> None:
    settings = work_of(sleeper).load().settings
    broken = Work(f"{sleeper}:graph", f"{sleeper}:nothing", {"particles": 1})
    with pytest.raises(RemoteError, match="nothing"):
        async with remote_executor("ray", broken, settings, Processes(1)):
            pass
    with pytest.raises(ConfigurationError, match="by its name"):
        Work(object(), "x")  # type: ignore[arg-type]
