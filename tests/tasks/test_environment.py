"""Replay gives a world without snapshots the branches of one with, or says at which step it cannot."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from langgraph_amc.tasks import (
    Environment,
    NotStartedError,
    ReplayDivergedError,
    ReplayEnvironment,
    Steppable,
)


class Walk:
    """A seeded walk: the observation says where one is and what the dice showed."""

    def __init__(self):
        self.steps = self.resets = 0
        self.closed = False

    def reset(self, task):
        self.resets += 1
        self.dice = random.Random(task)
        self.place = 0
        return f"start {task}"

    def step(self, action):
        if action == "break":
            raise OSError("the world is gone")
        self.steps += 1
        self.place += action * self.dice.randint(1, 6)
        return f"at {self.place}", float(self.place), self.place > 50, {"dice": True}

    def close(self):
        self.closed = True


class Branching(RuleBasedStateMachine):
    """Any order of steps, snapshots and restores in two instances equals walking each path anew."""

    tokens = Bundle("tokens")

    def __init__(self):
        super().__init__()
        self.worlds = [ReplayEnvironment(Walk()) for _ in range(2)]
        self.paths: list[tuple] = [(), ()]
        self.tasks = [0, 0]

    @initialize()
    def start(self):
        for world in self.worlds:
            world.reset(0)

    @rule(which=st.integers(0, 1), task=st.integers(0, 2))
    def reset(self, which, task):
        self.worlds[which].reset(task)
        self.paths[which], self.tasks[which] = (), task

    @rule(which=st.integers(0, 1), action=st.integers(-3, 3))
    def step(self, which, action):
        answer = self.worlds[which].step(action)
        self.paths[which] = (*self.paths[which], action)
        assert answer[:3] == self._walk(self.tasks[which], self.paths[which])

    @rule(target=tokens, which=st.integers(0, 1))
    def snapshot(self, which):
        return self.worlds[which].snapshot(), self.tasks[which], self.paths[which]

    @rule(which=st.integers(0, 1), saved=tokens)
    def restore(self, which, saved):
        token, self.tasks[which], self.paths[which] = saved
        self.worlds[which].restore(token)

    @invariant()
    def worlds_are_where_their_paths_lead(self):
        for world, task, path in zip(self.worlds, self.tasks, self.paths, strict=True):
            expected = self._walk(task, path)
            token = world.snapshot()
            assert (token.observation, token.reward, token.done) == expected

    def _walk(self, task, path):
        world = Walk()
        answer = (world.reset(task), 0.0, False)
        for action in path:
            answer = world.step(action)[:3]
        return answer


TestBranching = Branching.TestCase
TestBranching.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


def test_protocols():
    assert isinstance(Walk(), Steppable)
    assert not isinstance(Walk(), Environment)
    assert isinstance(ReplayEnvironment(Walk()), Environment)


def test_restoring_replays_only_what_is_missing():
    world = Walk()
    env = ReplayEnvironment(world)
    env.reset(1)
    env.step(1)
    early = env.snapshot()
    env.step(2)
    late = env.snapshot()
    assert (world.resets, world.steps) == (1, 2)
    env.restore(late)
    assert (world.resets, world.steps) == (1, 2)
    env.restore(early)
    assert (world.resets, world.steps) == (2, 3)
    env.restore(late)
    assert (world.resets, world.steps) == (2, 4)
    other = Walk()
    ReplayEnvironment(other).restore(pickle.loads(pickle.dumps(late)))
    assert (other.place, other.resets, other.steps) == (world.place, 1, 2)


class Drifting(Walk):
    """After its first reset, a part of step 2's answer is another."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def reset(self, task):
        self.count = 0
        observation = super().reset(task)
        return "elsewhere" if self.resets > 1 and self.part == "reset" else observation

    def step(self, action):
        self.count += 1
        observation, reward, done, info = super().step(action)
        if self.resets > 1 and self.count == 2:
            observation = "elsewhere" if self.part == "observation" else observation
            reward = -1.0 if self.part == "reward" else reward
            done = not done if self.part == "done" else done
        return observation, reward, done, info


@pytest.mark.parametrize(
    ("part", "step", "named"),
    [
        ("observation", 2, "observation"),
        ("reward", 2, "reward"),
        ("done", 2, "done"),
        ("reset", 0, "observation"),
    ],
)
def test_a_world_that_answers_differently_is_an_error_that_names_the_step(part, step, named):
    env = ReplayEnvironment(Drifting(part))
    env.reset(1)
    first = env.snapshot()
    for action in (1, 2, 3):
        env.step(action)
    late = env.snapshot()

    def back_and_forth():
        env.restore(first)
        env.restore(late)

    with pytest.raises(ReplayDivergedError, match=f"step {step}" if step else "the reset") as error:
        back_and_forth()
    assert (error.value.step, error.value.part) == (step, named)
    assert error.value.expected != error.value.found
    with pytest.raises(NotStartedError):  # it is nowhere that anyone knows
        env.step(1)


def test_observations_can_be_compared_in_another_way():
    env = ReplayEnvironment(Drifting("observation"), same=lambda a, b: type(a) is type(b))
    env.reset(1)
    first = env.snapshot()
    env.step(1)
    env.step(2)
    late = env.snapshot()
    env.restore(first)
    env.restore(late)


def test_before_a_reset_and_after_a_failure_there_is_no_state():
    world = Walk()
    env = ReplayEnvironment(world)
    for use in (env.snapshot, lambda: env.step(1)):
        with pytest.raises(NotStartedError, match="reset"):
            use()
    env.reset(1)
    safe = env.snapshot()
    with pytest.raises(OSError, match="gone"):
        env.step("break")
    with pytest.raises(NotStartedError):
        env.snapshot()
    env.restore(safe)
    env.step(1)
    env.close()
    assert world.closed
