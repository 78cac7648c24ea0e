"""The world in real Java processes: the original's answers, forks, divergence, processes that die, and who listens."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_amc_scienceworld import KINDS, JavaError, ScienceWorld, ScienceWorldError, tasks
from langgraph_amc_scienceworld.world import JAVA_OPTIONS
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from scienceworld import ScienceWorldEnv

from langgraph_amc.tasks import ReplayDivergedError, Steppable, WorldLostError, WorldPool

pytestmark = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="ScienceWorld's simulator needs Java"
)

FORKS = int(os.environ.get("AMC_FORKS", "6"))
TASK = {"name": "find-non-living-thing", "variation": 183, "step_limit": 40}


@pytest.fixture(scope="module")
def world() -> Iterator[ScienceWorld]:
    world = ScienceWorld()
    yield world
    world.close()


@pytest.fixture(scope="module")
def gold(world: ScienceWorld) -> list[str]:
    return world.gold(TASK)


def play(world: Any, task: Any, actions: list[str]) -> list[Any]:
    return [world.reset(task), *(world.step(action) for action in actions)]


def running(pid: int) -> bool:
    """Whether the process is there, and no zombie that nobody has collected yet."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True).stdout[:1] not in (b"", b"Z")


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_task_is_solved_and_the_rewards_sum_to_the_score(world: ScienceWorld, gold: list[str]) -> None:
    assert isinstance(world, Steppable)
    first = world.reset(TASK)
    assert first.startswith("Task Description:\nYour task is to find a(n) non-living thing.")
    assert "You have 40 actions.\n\nThis room is called" in first
    answers = [world.step(action) for action in gold]
    assert [answer[2] for answer in answers] == [False] * (len(gold) - 1) + [True]
    assert sum(reward for _, reward, _, _ in answers) == pytest.approx(1.0)
    assert answers[-1][3] == {"score": 100, "solved": True, "failed": False}
    with pytest.raises(ScienceWorldError, match="reset"):
        world.step("look around")


def test_a_wrong_focus_fails_the_task_and_the_step_limit_ends_it(world: ScienceWorld) -> None:
    world.reset({"name": "boil", "variation": 0})
    for action, done in (("sing", False), ("", False), ("focus on door to kitchen", True)):
        observation, reward, ended, info = world.step(action)
        assert ended is done
    assert observation.startswith("You focus on the door")
    assert (reward, info) == (-1.0, {"score": -100, "solved": False, "failed": True})
    world.reset({"name": "boil", "variation": 0, "step_limit": 3})
    assert [world.step("wait1")[2] for _ in range(3)] == [False, False, True]


def test_a_refused_task_changes_nothing(world: ScienceWorld) -> None:
    world.reset({"name": "boil"})
    with pytest.raises(ScienceWorldError, match="variations 0 to 29"):
        world.reset({"name": "boil", "variation": 30})
    assert world.step("inventory")[0] == "In your inventory, you see:\n\tan orange"


def test_a_simplification_is_one(world: ScienceWorld) -> None:
    assert "that is closed" in world.reset({"name": "boil"})
    assert "that is closed" not in world.reset({"name": "boil", "simplifications": "openDoors"})
    assert world.step("teleport to kitchen")[0] == "No known action matches that input."
    world.reset({"name": "boil", "simplifications": "easy"})
    assert world.step("teleport to kitchen")[0].startswith("You teleport to the kitchen")


def test_the_table_of_kinds_is_the_simulators(world: ScienceWorld) -> None:
    simulator = world._simulator
    assert sorted(simulator.getTaskNames()) == sorted(KINDS)
    assert {name: simulator.getTaskMaxVariations(name) for name in KINDS} == {
        name: kind.variations for name, kind in KINDS.items()
    }
    for name in ("boil", "grow-plant", "lifespan-longest-lived", "identify-life-stages-1"):
        kind = KINDS[name]
        found = world.splits(name)
        assert {v: split for split in found for v in found[split]} == {v: kind.split(v) for v in range(kind.variations)}


def test_answers_are_those_of_scienceworlds_own_class(
    world: ScienceWorld, gold: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sets in the same order for both; the rest of the options is about speed and memory.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(JAVA_OPTIONS))
    original = ScienceWorldEnv("", envStepLimit=1000)
    try:
        original.load(TASK["name"], TASK["variation"])
        look, info = original.reset()
        text = world.reset(TASK)
        assert text.startswith(info["taskDesc"])
        assert text.endswith(look)
        for action in ["inventory", "look at the moon", *gold]:
            observation, _, done, info = original.step(action)
            ours = world.step(action)
            assert (ours[0], ours[2], ours[3]["score"]) == (observation, done, info["score"])
        assert done
    finally:
        original.close()


def test_forks_are_what_an_independent_run_of_their_actions_is(world: ScienceWorld) -> None:
    rng = random.Random(0)
    chosen = [
        task.input["task"] for task in tasks(names=["find-plant", "find-animal", "chemistry-mix"], variations=1)[:3]
    ]
    solutions = {task["name"]: world.gold(task) for task in chosen}
    with WorldPool(ScienceWorld, size=1) as pool:
        particles: list[tuple[Any, list[str], list[Any]]] = []  # history, actions, answers
        for task in chosen:
            history, first = pool.reset(task)
            particles.append((history, [], [first]))
        for _ in range(FORKS):
            history, actions, answers = rng.choice(particles)
            actions, answers = actions.copy(), answers.copy()
            solution = solutions[history["task"]["name"]]
            for _ in range(rng.randint(1, 3)):
                # Mostly what is next in the solution, so that forks get somewhere.
                others = ["look around", "inventory", "wait1", rng.choice(solution)]
                action = solution[len(actions) % len(solution)] if rng.random() < 0.7 else rng.choice(others)
                history, answer = pool.step(history, action)
                actions.append(action)
                answers.append(answer)
                if answer[2]:
                    break
            assert play(world, history["task"], actions) == answers
            if not answers[-1][2]:
                particles.append((history, actions, answers))
        assert len(pool) == 1


class Drifted(ScienceWorld):
    """A simulator of another version: a door is open that was closed."""

    def reset(self, task: Any) -> str:
        first = super().reset(task)
        super().step("open door to kitchen")
        return first


def test_a_replay_that_is_answered_differently_is_an_error() -> None:
    made = iter([ScienceWorld, Drifted])
    with WorldPool(lambda: next(made)(), size=2) as pool:
        start, _ = pool.reset({"name": "boil"})
        after, _ = pool.step(start, "look around")
        pool.step(after, "wait1")
        with pytest.raises(ReplayDivergedError) as error:
            pool.step(after, "inventory")  # a clone: the first world has gone on, the second one replays
    assert (error.value.step, error.value.part) == (1, "observation")


def test_a_process_that_dies_is_replaced_and_its_history_goes_on(world: ScienceWorld, gold: list[str]) -> None:
    made: list[ScienceWorld] = []

    def make() -> ScienceWorld:
        made.append(ScienceWorld())
        return made[-1]

    with WorldPool(make, size=1) as pool:
        history, first = pool.reset(TASK)
        answers = [first]
        for number, action in enumerate(gold[:4]):
            if number == 2:
                os.kill(made[0].pid, signal.SIGKILL)
            history, answer = pool.step(history, action)
            answers.append(answer)
        assert answers == play(world, TASK, gold[:4])
        assert (len(pool), len(made)) == (1, 2)
        assert not running(made[0].pid)
        assert running(made[1].pid)
    assert not running(made[1].pid)


def test_a_world_whose_process_died_says_so(caplog: pytest.LogCaptureFixture) -> None:
    alone = ScienceWorld()
    alone.reset({"name": "boil"})
    os.kill(alone.pid, signal.SIGKILL)
    with pytest.raises(WorldLostError, match=f"{alone.pid} .* take another"):
        alone.step("look around")
    caplog.clear()
    alone.close()
    alone.close()
    assert caplog.text == ""


def test_only_this_machine_and_who_has_the_token_is_answered(world: ScienceWorld) -> None:
    address = world._gateway.java_gateway_server.getAddress()
    assert address.isLoopbackAddress()
    port = world._gateway.java_gateway_server.getListeningPort()
    stranger = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.raises(Py4JError, match="Authentication error"):
        stranger.jvm.java.lang.System.currentTimeMillis()
    stranger.close()


OPENS_A_WORLD = """
import sys, time
from langgraph_amc.tasks import WorldPool
from langgraph_amc_scienceworld import ScienceWorld

worlds = []
pool = WorldPool(lambda: worlds.append(ScienceWorld()) or worlds[-1], size=1)
pool.reset({"name": "boil"})
alone = ScienceWorld()  # in no pool, and nobody closes it
print(worlds[0].pid, alone.pid, flush=True)
if sys.argv[1] == "raise":
    raise RuntimeError("on purpose")
time.sleep(120)
"""


@pytest.mark.parametrize("end", ["stay", "raise"])
def test_no_java_process_outlives_this_one(end: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OPENS_A_WORLD, end], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        if end == "stay":
            assert all(running(pid) for pid in pids)
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == {"stay": -signal.SIGKILL, "raise": 1}[end]
        assert errors.count("Traceback") == (end == "raise"), errors
        assert wait_until(lambda: not any(running(pid) for pid in pids))
    finally:
        process.kill()
        process.wait()


def test_a_java_that_cannot_start_says_so() -> None:
    with pytest.raises(JavaError, match="-Xmx1k does not start"):
        ScienceWorld(java_options=["-Xmx1k"])
