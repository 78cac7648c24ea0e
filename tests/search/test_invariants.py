"""What holds of every search, whatever the tree, the value function and the moment at which it is cut off."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.search import beam, bfs, dfs, mcts, tree_search
from langgraph_amc.smc import Archived, Barrier, FilterState, Finished, PopulationError, Pruned, Stopped, drive

from .worlds import Walker, Walkers, World, best, searched

SEARCHES = st.one_of(
    st.builds(bfs, st.integers(1, 4), st.integers(1, 3), steps=st.integers(1, 2), depth=st.sampled_from([None, 1, 3])),
    st.builds(beam, st.integers(1, 3), st.integers(1, 4), thoughts=st.sampled_from([None, 9, 20])),
    st.builds(
        dfs,
        st.integers(1, 4),
        st.floats(0, 1),
        answers=st.integers(1, 3),
        depth=st.sampled_from([None, 2]),
        thoughts=st.integers(5, 40),
    ),
    st.builds(
        mcts,
        st.integers(1, 4),
        st.integers(5, 60),
        exploration=st.floats(0, 2),
        backup=st.sampled_from(["mean", "max"]),
        evaluate=st.sampled_from(["value", "rollout"]),
        depth=st.sampled_from([None, 2]),
        steps=st.integers(1, 2),
    ),
)
WORLDS = st.builds(World, st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))


def noisy(world: World, missing: float = 0.0):
    def value(path):
        return math.nan if world.number("missing", path) < missing else world.number("value", path)

    return value


@settings(max_examples=80, deadline=None)
@given(world=WORLDS, search=SEARCHES, missing=st.sampled_from([0.0, 0.4]), broken=st.sampled_from([0.0, 0.2]))
def test_whatever_the_tree(world, search, missing, broken):
    walkers = Walkers(world, noisy(world, missing), lambda path: world.number("break", path) < broken)
    result = searched(walkers, search)
    tree = result.tree
    # nobody is left standing, and everybody who has ended is an answer
    ended = {id(f.particle) for f in result.finals}
    assert all(w.pruned != (id(w) in ended) for w in walkers.born)
    assert len(result.finals) == sum(n.status in ("ended", "failed") for n in tree)
    assert not [n for n in tree if n.status in ("pending", "open")]
    # never more thoughts than allowed
    if search.thoughts is not None:
        assert len(tree) - 1 <= search.thoughts
    assert all(n.parent is not None and n.parent < i for i, n in enumerate(tree) if i)
    # what is counted for a state is what was found there and behind it
    for i, node in enumerate(tree):
        behind = [n for n in tree if n.parent == i]
        own = node.visits - sum(n.visits for n in behind)
        assert own in ((0, 1) if i else (0,))
        if node.visits and own == 0:
            assert node.best == max(n.best for n in behind if n.visits)
            assert node.total == pytest.approx(sum(n.total for n in behind))
    # an answer exists if any run can end at all
    if not broken:
        assert best(result) > -math.inf
    assert result.log_evidence is None


@settings(max_examples=40, deadline=None)
@given(world=WORLDS, search=SEARCHES, after=st.integers(1, 12))
def test_when_nothing_is_left_the_best_so_far_answers(world, search, after):
    def value(path):
        return world.number("value", path)

    walkers = Walkers(world, value)
    used = [0]

    def exhausted():
        used[0] += 1
        return "no money" if used[0] >= after else None

    events = list(drive(tree_search(walkers, search, exhausted=exhausted)))
    result = events[-1].result
    assert result.finals
    if used[0] >= after:
        stops = [e.reason for e in events if isinstance(e, Stopped)]
        assert stops == ["no money"]
        # at most one more run after the stop: the state that promised more than any end there was
        stopped = [isinstance(e, Stopped) for e in events].index(True)
        assert sum(isinstance(e, Archived) for e in events[stopped:]) <= 1


@settings(max_examples=20, deadline=None)
@given(world=WORLDS, search=SEARCHES)
def test_broken_off_at_any_barrier_it_goes_on_as_if_nothing_had_happened(world, search):
    walkers = Walkers(world, noisy(world, 0.2))
    events, stops = [], []
    for event in drive(tree_search(walkers, search)):
        events.append(event)
        if isinstance(event, Barrier):
            stops.append((len(events), copy.deepcopy((walkers, event.state))))
    for seen, (walkers, state) in stops:
        again = list(drive(tree_search(walkers, search, start=state)))
        assert trace(again) == trace(events[seen - 1 :])


def trace(events) -> list:
    """Events without the identity of particles."""
    told = []
    for event in events:
        if isinstance(event, Barrier):
            told.append(("barrier", len(event.state.tree), event.state.boundary, len(event.state.going)))
        elif isinstance(event, Finished):
            told.append([(f.particle.path, f.log_weight, f.reward) for f in event.result.finals])
        elif isinstance(event, Pruned):
            told.append(("pruned", event.particle.path))
        else:
            told.append(type(event).__name__)
    return told


def test_ends_that_a_journal_does_not_know_of_are_reached_again():
    """What a budget had ended comes back alive: its state is on its way again."""
    world = World(branches=2, depth=4, early=0.4, seed=2)
    walkers = Walkers(world, world.optimum)
    states = [
        copy.deepcopy((walkers, e.state)) for e in drive(tree_search(walkers, bfs(2, 2))) if isinstance(e, Barrier)
    ]
    whole = searched(Walkers(world, world.optimum), bfs(2, 2))
    forgotten = [(back, replace(state, finals=())) for back, state in states if state.finals]
    assert forgotten
    for back, state in forgotten:
        again = searched(back, bfs(2, 2), start=state)
        assert sorted(f.particle.path for f in again.finals) == sorted(f.particle.path for f in whole.finals)


def test_it_starts_behind_an_effect_from_particles_that_stand_at_one_state():
    world = World(branches=3, depth=5, seed=3)
    walkers = Walkers(world, world.optimum)
    walkers.born = [Walker((1, 2)) for _ in range(3)]
    result = searched(walkers, mcts(3, 100), start=FilterState.fresh(walkers.born, 2))
    assert "start 3" not in walkers.calls
    assert all(f.particle.path[:2] == (1, 2) for f in result.finals)
    assert best(result) == world.optimum((1, 2))
    assert result.tree[0].boundary == 2


def test_the_late_are_waited_for_and_enough_is_enough():
    world = World(branches=3, depth=3, seed=1)
    walkers = Walkers(world, world.optimum, late=2)
    result = searched(walkers, bfs(3, 3))
    assert best(result) == world.optimum()

    walkers = Walkers(world, world.optimum)
    events = list(drive(tree_search(walkers, bfs(3, 3), stop=lambda finals: "one is enough" if finals else None)))
    assert [e.reason for e in events if isinstance(e, Stopped)] == ["one is enough"]
    ended = {id(f.particle) for f in events[-1].result.finals}
    assert all(w.pruned or id(w) in ended for w in walkers.born)


@pytest.mark.parametrize("search", [bfs(3, 2), mcts(3, 30)], ids=["bfs", "mcts"])
def test_closed_early_or_broken_everybody_is_pruned(search):
    world = World(branches=3, depth=4)
    walkers = Walkers(world, world.optimum)
    events = drive(tree_search(walkers, search))
    for event in events:
        if isinstance(event, Barrier) and len(event.state.tree) > 5:
            break
    events.close()
    assert walkers.born
    assert all(w.pruned for w in walkers.born)

    walkers = Walkers(world, lambda path: math.inf)
    with pytest.raises(PopulationError, match="finite number"):
        searched(walkers, search)
    assert all(w.pruned for w in walkers.born)
