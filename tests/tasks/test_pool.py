"""Any number of branching histories share a few live worlds, and each is answered as if it had one of its own."""

from __future__ import annotations

import copy
import gc
import json
import random
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import NotStartedError, PoolClosedError, ReplayDivergedError, WorldLostError, WorldPool


class Walk:
    """A seeded walk. ``open`` counts what is alive; ``broken`` steps to come end the world, as a process that dies."""

    open = 0
    made = 0
    steps = 0
    broken = 0

    def __init__(self):
        Walk.open += 1
        Walk.made += 1
        self.alive = True

    def reset(self, task):
        self.dice, self.place = random.Random(json.dumps(task)), 0
        return {"start": task}

    def step(self, action):
        Walk.steps += 1
        if Walk.broken or not self.alive:
            Walk.broken, self.alive = max(0, Walk.broken - 1), False
            raise ConnectionResetError("the process is gone")
        if action == "slow":
            action = 1
            threading.Event().wait(0.01)
        self.place += action * self.dice.randint(1, 6)
        return f"at {self.place}", float(self.place), self.place > 30, {"place": self.place}

    def close(self):
        Walk.open -= 1


@pytest.fixture(autouse=True)
def _nothing_left():
    Walk.open = Walk.made = Walk.steps = Walk.broken = 0
    yield
    gc.collect()
    assert Walk.open == 0


def alone(task, actions):
    world = Walk()
    answers = [(world.reset(task), 0.0, False)]
    answers += [world.step(action)[:3] for action in actions]
    world.close()
    return answers


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=25))
def test_branches_in_any_order_are_answered_as_if_alone(size, moves):
    with WorldPool(Walk, size=size) as pool:
        grown = []  # (history, actions, answers)
        for task in ({"n": 0}, {"n": 1}):
            history, observation = pool.reset(task)
            grown.append((history, [], [(observation, 0.0, False)]))
        for which, action in moves:
            history, actions, answers = grown[which % len(grown)]
            kept = copy.deepcopy(history)
            after, (observation, reward, done, info) = pool.step(json.loads(json.dumps(history)), action)
            assert history == kept, "a history is never changed in place"
            assert info["place"] == int(observation.split()[1])
            grown.append((after, [*actions, action], [*answers, (observation, reward, done)]))
        assert len(pool) <= size
        for history, actions, answers in grown:
            assert answers == alone(history["task"], actions)


def test_what_stands_there_is_not_replayed_and_a_clone_is():
    with WorldPool(Walk, size=2) as pool:
        history, _ = pool.reset(1)
        for _ in range(5):
            history, _ = pool.step(history, 1)
        assert Walk.steps == 5
        first, _ = pool.step(history, 1)
        second, _ = pool.step(history, 2)  # the other particle at the same state
        assert Walk.steps == 5 + 1 + 5 + 1
        pool.step(first, 1), pool.step(second, 1)
        assert (Walk.steps, Walk.made) == (14, 2)


def test_with_one_world_for_two_only_what_is_missing_is_replayed():
    with WorldPool(Walk, size=1) as pool:
        start, _ = pool.reset(1)
        one, _ = pool.step(start, 1)
        two, _ = pool.step(one, 1)
        pool.step(start, 1)  # replays nothing but has to begin anew
        assert Walk.steps == 3
        pool.step(two, 1)  # stands one step before it
        assert (Walk.steps, Walk.made) == (5, 1)


def test_threads_wait_for_a_live_world():
    with WorldPool(Walk, size=3) as pool, ThreadPoolExecutor(12) as threads:

        def walk(task):
            history, observation = pool.reset(task)
            answers = [(observation, 0.0, False)]
            for _ in range(6):
                history, answer = pool.step(history, "slow")
                answers.append(answer[:3])
            return answers

        found = list(threads.map(walk, range(12)))
        assert Walk.made <= 3
    assert [a[0] for a in found[4]] == [a[0] for a in alone(4, ["slow"] * 6)]


def test_when_all_worlds_are_dead_a_new_one_is_made():
    with WorldPool(Walk, size=3) as pool:
        history, _ = pool.reset(7)
        history, _ = pool.step(history, 1)
        for _ in range(2):  # its siblings' worlds stand at the same state
            pool.step(history, 1)
            pool.step(history, 1)
        assert len(pool) == 3
        for live in pool._idle:
            live.world.alive = False
        assert pool.step(history, 2)[1][0] == alone(7, [1, 2])[-1][0]
        assert Walk.open == len(pool) <= 3


@pytest.mark.parametrize(("error", "tries"), [(WorldLostError("gone"), 2), (ConfigurationError("no such move"), 1)])
def test_what_a_world_says_on_purpose_is_not_tried_again(error, tries):
    class Saying(Walk):
        tried = 0

        def step(self, action):
            Saying.tried += 1
            raise error

    with WorldPool(Saying) as pool:
        history, _ = pool.reset(1)
        with pytest.raises(type(error)):
            pool.step(history, 1)
        assert Saying.tried == tries


def test_a_world_that_dies_is_replaced_once():
    with WorldPool(Walk, size=2) as pool:
        history, _ = pool.reset(7)
        history, _ = pool.step(history, 1)
        Walk.broken = 1
        after, answer = pool.step(history, 2)
        assert answer[0] == alone(7, [1, 2])[-1][0]
        assert (Walk.open, len(pool)) == (1, 1)
        Walk.broken = 2
        with pytest.raises(ConnectionResetError):
            pool.step(after, 1)
        assert (Walk.open, len(pool)) == (0, 0)
        assert pool.step(after, 1)[1][0] == alone(7, [1, 2, 1])[-1][0]


@pytest.mark.parametrize(
    ("damage", "step", "part"),
    [
        (lambda h: h.update(first="0" * 16), 0, "observation"),
        (lambda h: h["steps"][1].update(observation="0" * 16), 2, "observation"),
        (lambda h: h["steps"][0].update(reward=-1.0), 1, "reward"),
        (lambda h: h["steps"][1].update(done=True), 2, "done"),
    ],
)
def test_a_replay_that_differs_is_an_error_that_names_the_step(damage, step, part):
    with WorldPool(Walk, size=1) as pool:
        history, _ = pool.reset(3)
        for _ in range(2):
            history, _ = pool.step(history, 1)
        other = copy.deepcopy(history)
        damage(other)
        with pytest.raises(ReplayDivergedError) as caught:
            pool.step(other, 1)
        assert (caught.value.step, caught.value.part) == (step, part)
        assert pool.step(history, 1)[1][0] == alone(3, [1, 1, 1])[-1][0], "the pool goes on"
        assert Walk.made == 2, "one of which is `alone`"


def test_closing():
    pool = WorldPool(Walk)
    assert pool
    history, _ = pool.reset(1)
    pool.close()
    pool.close()
    assert (len(pool), Walk.open) == (0, 0)
    for use in (lambda: pool.reset(1), lambda: pool.step(history, 1)):
        with pytest.raises(PoolClosedError, match="make a new one"):
            use()
    with pytest.raises(ConfigurationError, match="size is a whole number"):
        WorldPool(Walk, size=0)


def test_a_pool_that_is_forgotten_closes_its_worlds():
    pool = WorldPool(Walk)
    pool.reset(1)
    del pool
    gc.collect()
    assert Walk.open == 0


def test_worlds_are_closed_when_the_interpreter_ends(tmp_path):
    script = """
        import sys
        from langgraph_amc.tasks import WorldPool

        class World:
            def reset(self, task): return "begun"
            def step(self, action): return "", 0.0, False, {}
            def close(self): open(sys.argv[1], "a").write("closed ")

        pool = WorldPool(World)
        pool.reset(1)
        raise SystemExit("a crash")
    """
    out = tmp_path / "closed"
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), out], check=False, capture_output=True, timeout=60)
    assert out.read_text() == "closed "


@pytest.mark.parametrize("history", [None, {}, {"task": 1}, {"task": 1, "messages": []}, "here"])
def test_what_is_no_history_is_refused_and_no_world_is_touched(history):
    with WorldPool(Walk, size=1) as pool:
        there, _ = pool.reset(1)
        with pytest.raises(NotStartedError, match="what reset returned"):
            pool.step(history, 1)
        assert (Walk.made, Walk.steps) == (1, 0)
        pool.step(there, 1)


def test_a_world_that_cannot_be_started_leaves_its_place_free():
    starts = [OSError("no more processes"), OSError("no more processes"), None]

    def make():
        failure = starts.pop(0)
        if failure:
            raise failure
        return Walk()

    with WorldPool(make, size=1) as pool:
        with pytest.raises(OSError, match="no more"):
            pool.reset(1)
        assert pool.reset(1)[1] == {"start": 1}
