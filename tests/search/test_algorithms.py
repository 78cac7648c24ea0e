"""What each search finds on trees that can be looked through, and how much it tries for that."""

from __future__ import annotations

import math

import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.search import beam, bfs, dfs, mcts
from langgraph_amc.search.fleet import LINEAR
from langgraph_amc.smc import LogWeights

from .worlds import Walkers, World, best, searched

WORLDS = [World(branches=3, depth=4, seed=seed, early=early) for seed in range(6) for early in (0.0, 0.25)]


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("name", ["bfs", "beam", "dfs", "mcts"])
def test_with_an_exact_value_the_optimum_is_walked_to(world: World, name: str) -> None:
    straight = 3 * world.depth
    search = {
        "bfs": bfs(3, 1),
        "beam": beam(1, 3),
        "dfs": dfs(3, world.optimum()),
        "mcts": mcts(3, straight + 1, exploration=0.0, backup="max"),
    }[name]
    result = searched(Walkers(world, world.optimum), search)
    assert best(result) == world.optimum()
    assert len(result.tree) - 1 <= straight + 1


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("evaluate", ["value", "rollout"])
@pytest.mark.parametrize("backup", ["mean", "max"])
def test_mcts_that_may_try_everything_finds_the_optimum_whatever_v_says(world, evaluate, backup) -> None:
    walkers = Walkers(world, lambda path: 1 - world.optimum(path))
    result = searched(walkers, mcts(3, 1000, evaluate=evaluate, backup=backup, exploration=1.0))
    assert best(result) == world.optimum()
    if evaluate == "value":  # each state once: a walker leaves each state by each branch once
        assert sorted(f.particle.path for f in result.finals) == sorted(world.ends())


def test_uct_visits_most_what_is_best_and_the_less_so_the_more_it_explores() -> None:
    world = World(branches=3, depth=5, seed=1, same=0.5)

    def visits(exploration: float) -> dict[int, int]:
        walkers = Walkers(world, lambda path: 0.8 if path[0] == 1 else 0.4)
        tree = searched(walkers, mcts(3, 40, exploration=exploration)).tree
        return {node.particle.path[0]: node.visits for node in tree if node.parent == 0}

    greedy, even = visits(0.1), visits(20.0)
    assert greedy[1] > greedy[0] + greedy[2]
    assert max(even.values()) - min(even.values()) <= 4
    assert sum(greedy.values()) == sum(even.values()) <= 40


def test_dfs_goes_back_when_a_branch_falls_below_the_threshold() -> None:
    """The first step that looks best is a dead end: the next best is followed, and nothing below it is tried."""
    world = World(branches=2, depth=3, same=0.8)
    value = {(0,): 0.9, (1,): 0.6, (0, 0): 0.1, (0, 1): 0.2, (1, 0): 0.7, (1, 1): 0.3}
    walkers = Walkers(world, lambda path: value[path])
    result = searched(walkers, dfs(2, 0.5, answers=2))
    assert {f.particle.path for f in result.finals} == {(1, 0, 0), (1, 0, 1)}
    assert {w.path for w in walkers.born if w.pruned} == {(0, 0), (0, 1), (1, 1)}


def test_dfs_with_nothing_above_the_threshold_answers_with_the_best_there_is() -> None:
    world = World(branches=3, depth=3, seed=2)
    walkers = Walkers(world, lambda path: 0.1 * (path[0] + 1))
    result = searched(walkers, dfs(3, 0.9))
    (final,) = result.finals
    assert final.particle.path[0] == 2


def test_bfs_keeps_so_many_and_beam_lets_ends_keep_their_slots() -> None:
    world = World(branches=3, depth=4, seed=3)
    result = searched(Walkers(world, world.optimum), bfs(3, 2))
    levels = {b: [n for n in result.tree if n.boundary == b] for b in range(1, 5)}
    assert [len(levels[b]) for b in levels] == [3, 6, 6, 6]
    assert all(sum(n.status == "expanded" for n in levels[b]) == 2 for b in (1, 2, 3))

    worlds = (World(branches=3, depth=5, seed=seed, early=0.4) for seed in range(50))
    early = next(w for w in worlds if 0 < sum(w.ended((b,)) for b in range(3)) < 3)
    held = searched(Walkers(early, lambda path: 0.0), beam(1, 3))
    assert len(held.finals) >= 1
    assert not [n for n in held.tree if n.boundary == 2], "an end of the first level was better than all that went on"
    free = searched(Walkers(early, lambda path: 0.0), bfs(3, 1))
    assert [n for n in free.tree if n.boundary == 2]


@pytest.mark.parametrize("search", [bfs(1, 1), dfs(1, 0.0), mcts(1, 20), beam(1, 1)], ids=lambda s: type(s).__name__)
def test_one_branch_is_a_plain_run(search) -> None:
    world = World(branches=3, depth=6, seed=4)
    walkers = Walkers(world, world.optimum)
    result = searched(walkers, search)
    assert len(walkers.born) == len(result.finals) == 1
    assert walkers.born[0].path == (0,) * 6
    assert "fork" not in walkers.calls


def test_thoughts_of_several_steps() -> None:
    world = World(branches=3, depth=6, seed=5)
    walkers = Walkers(world, world.optimum)
    searched(walkers, bfs(3, 2, steps=2))
    assert [c for c in walkers.calls if c.startswith("advance")] == [
        f"advance {n} to {b}" for n, b in ((3, 2), (6, 4), (6, 6))
    ]


@pytest.mark.parametrize("search", [bfs(3, 2, depth=2), dfs(3, 0.0, depth=2), mcts(3, 60, depth=2)], ids=str)
def test_below_the_depth_runs_go_on_alone(search) -> None:
    world = World(branches=3, depth=5, seed=6)
    result = searched(Walkers(world, world.optimum), search)
    assert result.finals
    assert all(len(f.particle.path) == 5 for f in result.finals)
    assert all(n.boundary is None or n.boundary <= 2 for n in result.tree)


def test_visits_are_weights() -> None:
    world = World(branches=2, depth=2, seed=7)
    result = searched(Walkers(world, world.optimum), mcts(2, 20))
    weights = {f.particle.path: math.exp(f.log_weight) for f in result.finals}
    tree = result.tree
    assert tree[0].visits == 6
    assert sum(weights.values()) == pytest.approx(1.0)
    assert LogWeights([f.log_weight for f in result.finals]).log_sum == pytest.approx(0.0)
    equal = searched(Walkers(world, world.optimum), bfs(2, 2))
    assert [f.log_weight for f in equal.finals] == [pytest.approx(-math.log(len(equal.finals)))] * len(equal.finals)


def test_a_missing_score_is_worth_what_it_was_before() -> None:
    world = World(branches=2, depth=4, seed=8)

    def value(path):
        return math.nan if path[-1] else 0.4 + len(path) / 100

    tree = searched(Walkers(world, value), bfs(2, 2)).tree
    missing = [n for n in tree if math.isnan(n.seen) and n.boundary and n.status in ("expanded", "cut")]
    assert missing
    for node in missing:
        before = tree[node.parent].worth
        assert node.worth == (pytest.approx(0.41) if math.isnan(before) else before)


def test_what_breaks_is_a_labelled_failure_and_is_not_followed() -> None:
    world = World(branches=3, depth=3, seed=9)
    walkers = Walkers(world, world.optimum, breaks=lambda path: path[-1] == 0)
    for search in (bfs(3, 2), dfs(3, 0.0), mcts(3, 60), beam(2, 3)):
        result = searched(Walkers(world, world.optimum, breaks=walkers.breaks), search)
        broken = [f for f in result.finals if f.failed]
        assert broken
        assert all(f.log_weight == -math.inf for f in broken)
        assert best(result) > -math.inf


def test_the_fleet_weighs_by_value_itself() -> None:
    import numpy as np

    p = np.array([0.1, 0.2, 0.7])
    zero = np.zeros(3)
    potential = LINEAR.potential(zero, p, zero.astype(bool))
    weights = LogWeights(LINEAR.sharpness(potential) * potential).normalized
    assert weights == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bfs(0), "branches"),
        (lambda: bfs(width=True), "width"),
        (lambda: bfs(4, 2, thoughts=5), "thoughts=5"),
        (lambda: beam(2, steps=0), "beam.*steps"),
        (lambda: dfs(threshold=math.nan), "threshold"),
        (lambda: dfs(depth=0), "depth"),
        (lambda: mcts(exploration=-1), "exploration"),
        (lambda: mcts(backup="min"), "backup"),
        (lambda: mcts(evaluate="guess"), "evaluate"),
        (lambda: mcts(8, 8), "thoughts"),
    ],
)
def test_what_cannot_be(make, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
