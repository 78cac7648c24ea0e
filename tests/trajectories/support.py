"""What the tests of this room share: strategies for trajectories of clones, and a writing process."""

from __future__ import annotations

import math
from typing import get_args

from hypothesis import strategies as st

from langgraph_amc.trajectories import Status, Trajectory, TrajectoryStore, Usage

words = st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
names = st.text(alphabet="abcdef", min_size=1, max_size=3)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_objects = st.dictionaries(
    st.text(max_size=5),
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5) | st.lists(st.integers()),
    max_size=3,
)
usages = st.builds(
    Usage,
    calls=st.integers(0, 9),
    input_tokens=st.integers(0, 2**40),
    output_tokens=st.integers(0, 9),
    cost=st.none() | st.floats(0, 9),
)


@st.composite
def trajectories(draw, run_id="run", particle="p0", parent=None, task_id=None):
    """A trajectory; with a parent, one that shares some of its first states."""
    shared = 0 if parent is None else draw(st.integers(0, len(parent.segments)))
    own = draw(st.lists(words, min_size=0 if shared else 1, max_size=4))
    segments = (*(parent.segments[:shared] if parent else ()), *own)
    size = len(segments)
    rewards = [*(parent.rewards[: max(shared - 1, 0)] if parent else ())]
    rewards += draw(st.lists(numbers, min_size=size - 1 - len(rewards), max_size=size - 1 - len(rewards)))
    return Trajectory(
        run_id=run_id,
        particle=particle,
        segments=segments,
        rewards=tuple(rewards),
        outcome=draw(st.none() | numbers),
        status=draw(st.sampled_from(get_args(Status))),
        task_id=task_id,
        parent=parent.particle if parent else None,
        forked_at=shared - 1 if parent else None,
        log_weight=draw(st.none() | numbers | st.just(-math.inf)),
        values=draw(st.just(()) | st.lists(st.none() | numbers, min_size=size, max_size=size).map(tuple)),
        usage=draw(usages),
        fingerprint=draw(names),
        error=draw(st.none() | words),
        metadata=draw(json_objects),
    )


@st.composite
def clans(draw, run_id="run", task_id=None):
    """Particles of one run, in any order; any may be a clone of an earlier one."""
    family = []
    for number in range(draw(st.integers(1, 5))):
        parent = draw(st.none() | st.sampled_from(family)) if family else None
        family.append(draw(trajectories(run_id, f"p{number}", parent, task_id)))
    return draw(st.permutations(family))


tasks = st.fixed_dictionaries(
    {
        "id": names,
        "input": json_objects,
        "reference": st.none() | st.text(max_size=5) | json_objects,
        "metadata": json_objects,
        "split": st.none() | st.sampled_from(["train", "test"]),
    }
)


@st.composite
def collections(draw):
    """Runs of several tasks: (task or None, run metadata or None, particles) each."""
    known = draw(st.lists(tasks, max_size=3, unique_by=lambda t: t["id"]))
    out = []
    for number in range(draw(st.integers(1, 3))):
        task = draw(st.none() | st.sampled_from(known)) if known else None
        run = draw(st.none() | json_objects)
        out.append((task, run, draw(clans(f"run{number}", task and task["id"]))))
    return out


def run(run_id="run", particles=2, states=3, **changes):
    """Plain trajectories of one run."""
    return [
        Trajectory(run_id, f"p{i}", tuple(f"{run_id}/{i}/{t}" for t in range(states)), **changes)
        for i in range(particles)
    ]


def write_many(url, worker, adds, failures):
    """What one of several writing processes does; here, because a new process must find it by name."""
    try:
        with TrajectoryStore(url) as store:  # the workers create the schema at the same time, too
            for i in range(adds):
                store.add(run(f"{worker}-{i}"), {"id": f"t{i}", "input": i}, {"worker": worker})
                store.set_outcome(f"{worker}-{i}", "p0", i)
    except Exception as exc:
        failures.put(repr(exc))
        raise
