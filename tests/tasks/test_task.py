"""Tasks and sets of tasks: unique ids, stable splits, an exact JSON Lines format."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph.message import add_messages

from langgraph_amc.tasks import LoadError, Task, TaskError, TaskSet, load_tasks
from langgraph_amc.trajectories import Trajectory, TrajectoryStore

ids = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8)
texts = st.text(alphabet=st.characters(exclude_categories=()), min_size=1, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
tasks = st.builds(
    Task,
    id=ids,
    input=texts | st.dictionaries(texts, json_values),
    reference=json_values,
    metadata=st.dictionaries(texts, json_values, max_size=2),
    split=st.none() | st.sampled_from(["train", "test"]),
)
task_sets = st.lists(tasks, max_size=5, unique_by=lambda t: t.id).map(TaskSet)


def numbered(n, start=0):
    return [Task(f"t{i}", {"q": i}) for i in range(start, start + n)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(task_sets)
def test_jsonl_comes_back_exactly(tmp_path, task_set):
    task_set.to_jsonl(tmp_path / "tasks.jsonl")
    assert TaskSet.from_jsonl(tmp_path / "tasks.jsonl") == task_set


def test_a_string_is_one_user_message_of_the_app():
    messages = add_messages([], Task("t", "Hello").input["messages"])
    assert [(m.type, m.content) for m in messages] == [("human", "Hello")]


def test_jsonl_as_people_write_it(tmp_path):
    path = tmp_path / "tasks.jsonl"
    lines = ['{"input": "hi"}', "", '{"id": "b", "input": {"x": 1}, "reference": 2, "split": "test"}']
    path.write_text("\n".join(lines))
    first, second = TaskSet.from_jsonl(path)
    assert second == Task("b", {"x": 1}, 2, {}, "test")
    # The id that is made up is the input's, so that it stays when lines move.
    assert first.id == TaskSet.from_iterable(["hi"])[0].id
    as_message = {"input": {"messages": [{"role": "user", "content": "hi"}]}}
    assert first.id == TaskSet.from_iterable([as_message])[0].id
    assert first.id != TaskSet.from_iterable([{"input": "hi", "reference": "ho"}])[0].id


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("oops", "line 2"),
        ('{"input": ' + "[" * 100_000, "line 2"),
        ("[]", "line 2: a task is an object"),
        ('{"id": "b"}', "line 2: a task needs an input"),
        ('{"input": 1, "answer": 2}', r"line 2: a task has no \['answer'\].*metadata"),
        ('{"input": 1, "metadata": 2}', "line 2: a task's metadata"),
        ('{"input": 1, "id": 7}', "line 2: a task's id"),
        ('{"input": "other", "id": "a"}', "line 2: task 'a' is already on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "input": "x"}\n' + line)
    with pytest.raises(TaskError, match=message) as error:
        TaskSet.from_jsonl(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("odd", ["a\x00b", "a\ud800", "", None, 3])
def test_an_id_is_text_that_can_be_stored(odd):
    with pytest.raises(TaskError, match="id is"):
        Task(odd, "x")


def test_a_set_is_an_immutable_sequence_with_unique_ids():
    some = TaskSet(numbered(5))
    assert (len(some), some[1].id, some[-1].id, some[1:3].ids) == (5, "t1", "t4", ("t1", "t2"))
    assert some.get("t3") is some[3]
    assert some[3] in some
    assert pickle.loads(pickle.dumps(some)) == some
    assert len({some[0], some[1]}) == 2
    with pytest.raises(TypeError):
        some[0] = some[1]
    with pytest.raises(TaskError, match="'t0'"):
        TaskSet([*numbered(1), *numbered(2)])
    with pytest.raises(TaskError, match="'nope'"):
        some.get("nope")
    with pytest.raises(TaskError, match="task 2"):
        TaskSet.from_iterable([{"input": 1}, {"inputs": 2}])
    with pytest.raises(TaskError, match=r"task 1.*not a JSON value"):
        TaskSet.from_iterable([{"input": object()}])


FRACTIONS = {"train": 0.6, "value": 0.2, "test": 0.2}


@given(st.integers(0, 50), st.integers(0, 50), st.integers())
def test_splits_are_disjoint_and_whole_and_adding_tasks_moves_none(n, more, seed):
    small = TaskSet(numbered(n)).random_split(FRACTIONS, seed)
    large = TaskSet(reversed(numbered(n + more))).random_split(FRACTIONS, seed)
    assert all(large.get(t.id).split == t.split for t in small)
    parts = [small.split(name).ids for name in FRACTIONS]
    assert sorted(i for part in parts for i in part) == sorted(small.ids)


def test_splits_have_the_proportions_asked_for_and_depend_on_the_seed():
    many = TaskSet(numbered(4000))
    one, other = many.random_split(FRACTIONS, 1), many.random_split(FRACTIONS, 2)
    for name, fraction in FRACTIONS.items():  # 4 standard deviations
        assert abs(len(one.split(name)) - 4000 * fraction) < 4 * (4000 * fraction * (1 - fraction)) ** 0.5
    both = len(set(one.split("test").ids) & set(other.split("test").ids))
    assert abs(both - 160) < 4 * 160**0.5
    assert one.splits == tuple(dict.fromkeys(t.split for t in one))
    assert repr(one[:2]).startswith("<TaskSet of 2 (")
    assert one.split("nope") == TaskSet()


@pytest.mark.parametrize("fractions", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}])
def test_fractions_that_are_none_are_refused(fractions):
    with pytest.raises(TaskError, match="sum to 1"):
        TaskSet(numbered(2)).random_split(fractions)


def test_take():
    many = TaskSet(numbered(100))
    assert many.take(3).ids == ("t0", "t1", "t2")
    chosen = many.take(30, seed=5)
    assert chosen == many.take(30, seed=5) != many.take(30, seed=6)
    assert list(chosen.ids) == [i for i in many.ids if i in chosen.ids]
    assert set(many.take(10, seed=5).ids) < set(chosen.ids)
    assert len(many.take(0)) == 0
    with pytest.raises(TaskError, match="101 of 100"):
        many.take(101)


def test_tasks_go_through_the_store(tmp_path):
    task = Task("t", "hi", reference={"answer": 1}, metadata={"level": 2}, split="train")
    with TrajectoryStore(tmp_path / "s.db") as store:
        store.add([Trajectory("r", "p0", ("a",))], task)
        assert TaskSet.from_iterable(store.tasks()) == TaskSet([task])


def test_load_tasks(tmp_path):
    TaskSet(numbered(3)).to_jsonl(tmp_path / "tasks.jsonl")
    assert load_tasks(tmp_path / "tasks.jsonl").ids == ("t0", "t1", "t2")
    source = tmp_path / "mine.py"
    source.write_text(
        "from langgraph_amc.tasks import Task, TaskSet\n"
        "fixed = TaskSet([Task('a', 'x')])\n"
        "plain = ['x', {'id': 'b', 'input': 1}]\n"
        "def make(n=1, seed=0):\n    return (Task(f's{seed}-{i}', 'x') for i in range(n))\n"
        "number = 7\n"
    )
    assert load_tasks(f"{source}:fixed").ids == ("a",)
    assert load_tasks(f"{source}:plain").ids[1] == "b"
    assert load_tasks(f"{source}:make", n=2, seed=3).ids == ("s3-0", "s3-1")
    with pytest.raises(LoadError, match="options"):
        load_tasks(f"{source}:make", m=2)
    with pytest.raises(LoadError, match=r"takes no options, got \['n'\]"):
        load_tasks(f"{source}:fixed", n=2)
    with pytest.raises(LoadError, match="gives int"):
        load_tasks(f"{source}:number")
    with pytest.raises(LoadError, match="no file"):
        load_tasks(tmp_path / "gone.jsonl")
