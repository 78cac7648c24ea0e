"""Idempotency keys: one per call, the same when a super-step is run again, and never another's."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage

import langgraph_amc.runtime.effects as fx
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.identity import canonical, jsonable
from langgraph_amc.runtime.effects.outcome import decode, decode_error, encode, encode_error
from langgraph_amc.runtime.outbox import MemoryOutbox

TEXT = st.text(max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a call is made, as LangGraph tells it."""

    root: int
    step: int
    path: tuple[Any, ...]
    namespace: tuple[str, ...]

    def config(self, tasks: uuid.UUID, execution: object) -> Any:
        ids = [str(uuid.uuid5(tasks, f"{self.path} {name}")) for name in self.namespace]
        return {
            "metadata": {
                "langgraph_step": self.step,
                "langgraph_path": self.path,
                "langgraph_checkpoint_ns": "|".join(f"{n}:{i}" for n, i in zip(self.namespace, ids, strict=True)),
            },
            "configurable": {"__pregel_scratchpad": execution},
        }


NAMES = st.sampled_from(["a", "b", "tools"])
PLACES = st.builds(
    Place,
    st.integers(-1, 3),
    st.integers(-1, 3),
    st.tuples(st.just("__pregel_push"), st.integers(0, 2)) | st.tuples(st.just("__pregel_pull"), NAMES),
    st.lists(NAMES, min_size=1, max_size=2).map(tuple),
)
CALLS = st.tuples(PLACES, st.sampled_from(["send", "post"]), ARGUMENTS, st.none() | st.sampled_from(["c1", "c2"]))


def keys(run: str, particle: str, calls: list[Any], seed: int) -> list[str]:
    """Keys of the calls made by one lineage; ``seed`` stands for the checkpoint ids of this execution."""
    scope = fx.EffectScope(fx.EffectRules(), run, particle, MemoryOutbox())
    tasks, executions = uuid.UUID(int=seed), {}
    found: dict[int, str] = {}
    for number, (place, name, arguments, call_id) in sorted(enumerate(calls), key=lambda c: c[1][0].root):
        scope.at_step(place.root)
        execution = executions.setdefault(place, object())
        found[number] = scope.identify(name, jsonable(arguments), call_id, place.config(tasks, execution))[0]
    return [found[n] for n in range(len(calls))]


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, min_size=1, max_size=8), st.integers(1, 2**64), st.integers(1, 2**64))
def test_keys_are_stable_and_do_not_collide(calls: list[Any], first: int, second: int) -> None:
    mine = keys("r", "p0", calls, first)
    assert keys("r", "p0", calls, second) == mine  # after a crash, with other checkpoint and task ids
    others = [keys("r", "p1", calls, first), keys("r2", "p0", calls, first), keys("r", "p", calls, first)]
    assert len({frozenset(k) for k in (mine, *others)}) == 4
    for k, other in enumerate([mine, *others]):
        for rest in [mine, *others][k + 1 :]:
            assert not set(other) & set(rest)
    # within a lineage only the very same call has the same key: place, tool, arguments and tool call id
    same = [canonical(jsonable([c[0], c[1], c[2], c[3]])) for c in calls]
    for i in range(len(calls)):
        for j in range(i):
            repeated = same[i] == same[j] and calls[i][3] is not None
            assert (mine[i] == mine[j]) == repeated


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), ARGUMENTS, st.permutations(range(4)))
def test_equal_calls_are_counted_anew_when_a_task_runs_again(n: int, arguments: Any, order: list[int]) -> None:
    scope = fx.EffectScope(fx.EffectRules(), "r", "p0", MemoryOutbox())
    place, tasks = Place(1, 1, ("__pregel_pull", "a"), ("a",)), uuid.uuid4()

    def execute() -> list[str]:
        execution = object()
        return [scope.identify("send", jsonable(arguments), None, place.config(tasks, execution))[0] for _ in range(n)]

    first = execute()
    assert len(set(first)) == n
    assert execute() == first  # a retry of LangGraph's
    scope.release()
    assert execute() == first  # the re-entry after a release
    # different tasks of one super-step: whoever comes first
    scope.release()
    branches = [Place(1, 1, ("__pregel_push", k), ("a",)) for k in order]
    pushed = [scope.identify("send", {}, None, b.config(tasks, object()))[0] for b in branches]
    assert len(set(pushed)) == len(branches)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_json_forms(value: Any) -> None:
    assert json.loads(canonical(jsonable(value))) == json.loads(json.dumps(value))
    for result in (value, (value, [value])):
        back = decode(json.loads(json.dumps(encode(result))))
        assert (back, type(back)) == (result, type(result))


class Colour(enum.Enum):
    RED = "red"


def test_other_values_have_a_stable_form() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4)
    value = {
        "set": {3, 1, 2},
        "tuple": (1, 2),
        "enum": Colour.RED,
        "when": moment,
        "nan": float("nan"),
        "object": object(),
        "message": HumanMessage("hi"),
        "place": Place(0, 0, (), ()),
    }
    form = jsonable(value)
    assert json.loads(canonical(form)) == form
    assert (form["set"], form["tuple"], form["enum"]) == ([1, 2, 3], [1, 2], "red")
    assert (form["when"], form["object"]) == ("2026-01-02T03:04:00", "<builtins.object>")
    assert form["message"]["content"] == "hi"
    assert canonical(jsonable(dict(reversed(value.items())))) == canonical(form)


def test_settling() -> None:
    outbox = MemoryOutbox()
    for number, result in enumerate([("a", {"b": 1}), "text", [1, ToolMessage("x", tool_call_id="c")], float("inf")]):
        outbox.begin(str(number), "send", {})
        fx.settle_effect(outbox, str(number), result)
        known = outbox.begin(str(number), "send", {})
        assert known is not None
        assert (known.outcome, decode(json.loads(json.dumps(known.result)))) == ("done", result)
    fx.settle_effect(outbox, "0", error=ValueError("it never left"))
    known = outbox.begin("0", "send", {})
    assert known is not None
    assert (known.outcome, str(decode_error(known.error))) == ("failed", "it never left")
    for result in (object(), ("a", object())):
        with pytest.raises(ConfigurationError, match="object cannot be stored"):
            fx.settle_effect(outbox, "0", result)


def test_arrays_come_back() -> None:
    array = np.arange(4.0)
    assert np.array_equal(decode(json.loads(json.dumps(encode(array)))), array)


class ParticularError(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")


def test_errors_come_back_as_their_kind_where_they_can() -> None:
    for error in (ValueError("a", 2**80), KeyError("k"), TimeoutError(), json.JSONDecodeError("m", "d", 0)):
        back = decode_error(json.loads(json.dumps(encode_error(error))))
        if isinstance(error, json.JSONDecodeError):
            assert (type(back), back.kind) == (fx.EffectFailedError, "JSONDecodeError")
        else:
            assert (type(back), back.args) == (type(error), error.args)
    back = decode_error(encode_error(ParticularError(3, where="x")))
    assert isinstance(back, fx.EffectFailedError)
    assert (back.kind, back.text) == ("ParticularError", "3 at x")
    forged = {"error": json.dumps({"module": "os", "type": "system", "text": "", "args": ["true"]})}
    assert isinstance(decode_error(forged), fx.EffectFailedError)
