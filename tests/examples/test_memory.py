"""Paged memory in LangGraph's Store: what leaves the context can be found again, and only winners write."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

import langgraph_amc as amc
from langgraph_amc.demo.stand_in import StandIn, call
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.compare import compare
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import FinishedRun, TaskSet
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks
from langgraph_amc.trajectories import Transcript
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.examples.readme import EXAMPLES, commands, compared
from tests.examples.test_react import careful

FOLDER = EXAMPLES / "memory"
AGENT, SESSIONS, STAND_IN = (str(FOLDER / name) for name in ("agent.py", "sessions.py", "memory_stand_in.py"))


RUNS = int(os.environ.get("AMC_STORE_RUNS", "20"))
"""A hundred take a minute."""


def build(decide: Any, store: Any) -> Any:
    return load_object(f"{AGENT}:build")(StandIn(decide=decide), store)


def held(store: Any, user: str, kind: str) -> list[str]:
    items = store.search((user, kind), limit=1000)
    return [item.value["text"] for item in sorted(items, key=lambda item: item.key)]


def kept(store: Any) -> list[str]:
    return [item.value["text"] for names in store.list_namespaces() for item in store.search(names, limit=1000)]


def written(messages: Any, name: str = "archival_insert") -> list[str]:
    return [c["args"]["text"] for m in messages if m.type == "ai" for c in m.tool_calls if c["name"] == name]


async def test_who_does_not_slip_remembers_all_through_paging_and_sessions() -> None:
    store = InMemoryStore()
    app = load_object(f"{AGENT}:build")(careful(load_object(f"{STAND_IN}:decide")), store)
    recalled, judge = load_reward(f"{SESSIONS}:recalled"), load_object(f"{SESSIONS}:kept_and_found")
    warned = 0
    for task in load_tasks(f"{SESSIONS}:tasks", test=4):
        output = await app.ainvoke(task.input)
        said = tuple(output["messages"])
        assert recalled(FinishedRun(task, output, said)) == 1.0
        assert judge(Transcript().render(said)) == 0.9
        warned += sum(m.text.startswith("[memory pressure]") for m in said)
        user = task.input["user"]
        assert set(held(store, user, "archival")) == set(written(said))
        # what was heard before the last session is in recall memory, in order, and nothing twice
        before = [line["text"] for line in task.input["incoming"] if line["session"] < 5]
        heard = [line.removeprefix("user: ") for line in held(store, user, "recall") if line.startswith("user: ")]
        assert heard[: len(before)] == before
        assert not set(heard[len(before) :]) & set(before)
    assert warned


async def test_the_model_sees_no_more_than_the_context_and_calls_keep_their_results() -> None:
    seen: list[Any] = []

    def decide(messages: Any, rng: Any) -> Any:
        seen.append(messages)
        return call("reply", text="word " * 30)

    store = InMemoryStore()
    lines = [{"session": 0, "text": f"line {k}"} for k in range(12)]
    await build(decide, store).ainvoke({"user": "ann", "incoming": lines})
    assert max(map(len, seen)) < 12
    assert held(store, "ann", "recall")[0] == "user: line 0"
    for messages in seen:
        asked = {c["id"] for m in messages if m.type == "ai" for c in m.tool_calls}
        assert {m.tool_call_id for m in messages if m.type == "tool"} == asked
        assert messages[1].type == "human"


async def test_the_functions_of_memory() -> None:
    script = [
        call("core_append", text="Name: Ann"),
        call("core_replace", old="Ann", new="Anna"),
        call("core_replace", old="Bob", new="Rob"),
        call("core_append", text="x" * 400),
        *(call("archival_insert", text=f"blue thing {k}") for k in range(4)),
        call("archival_search", query="the blue thing"),
        call("archival_search", query="blue", page=1),
        call("recall_search", query="blue"),
        call("reply", text="done"),
    ]
    seen: list[Any] = []

    def decide(messages: Any, rng: Any) -> Any:
        seen.append(messages)
        return script[len(seen) - 1]

    store = InMemoryStore()
    output = await build(decide, store).ainvoke({"user": "ann", "incoming": [{"session": 0, "text": "hello"}]})
    results = [m.text for m in output["messages"] if m.type == "tool"]
    assert "has no 'Bob'" in results[2]
    assert "holds 300 characters" in results[3]
    assert results[8] == "3: blue thing 3\n2: blue thing 2\n1: blue thing 1\n(page 0, 4 lines in all)"
    assert results[9].startswith("0: blue thing 0\n(page 1")
    assert "Name: Anna" in seen[-1][0].text
    assert load_object(f"{AGENT}:read_core")
    assert store.get(("ann", "core"), "text").value == {"text": "Name: Anna"}


async def test_after_many_runs_with_8_particles_the_store_holds_the_winners_writes_only() -> None:
    store = InMemoryStore()
    decide = load_object(f"{STAND_IN}:decide")

    def noted(messages: Any, rng: Any) -> Any:
        """The stand-in, with a mark that no two particles share."""
        message = decide(messages, rng)
        for made in message.tool_calls:
            if made["name"] == "archival_insert":
                made["args"]["text"] += f" #{rng.getrandbits(32):08x}"
        return message

    app = build(noted, store)
    value = load_object(f"{SESSIONS}:kept_and_found")
    expected: dict[str, list[str]] = {}
    dropped: set[str] = set()
    resampled = 0

    async def run(number: int) -> None:
        nonlocal resampled
        user = f"user-{number % 5}"
        before = {kind: held(store, user, kind) for kind in ("archival", "recall")}
        lines = [{"session": 0, "text": "My cat is Siri."}, {"session": 1, "text": "Good morning."}]
        better = amc.wrap(app, particles=8, value=value, resample=amc.every(2), seed=number)
        output = await better.ainvoke({"user": user, "incoming": lines})
        record = output.amc
        resampled += any(check.resampled for check in record.checks)
        own = written(output["messages"])
        expected.setdefault(user, []).extend(own)
        dropped.update(t for p in record.particles for t in written(p.output["messages"]) if t not in own)
        after = {kind: held(store, user, kind) for kind in ("archival", "recall")}
        assert after["archival"] == before["archival"] + own
        assert after["recall"] == [*before["recall"], "user: My cat is Siri.", "you: Noted."]

    for begin in range(0, RUNS, 5):  # five users at a time, all in one store
        await asyncio.gather(*(run(begin + k) for k in range(5)))
    everything = {text for user in expected for text in held(store, user, "archival")}
    assert everything == {text for texts in expected.values() for text in texts}
    assert len(dropped) > 3 * RUNS
    assert not everything & dropped
    assert resampled > RUNS / 2


async def test_what_is_evaluated_leaves_nothing_in_the_store(tmp_path: Any) -> None:
    store = InMemoryStore()
    store.put(("user-0", "archival"), "000000", {"text": "from before"})
    app = build(load_object(f"{STAND_IN}:decide"), store)
    tasks = TaskSet(load_tasks(f"{SESSIONS}:tasks", test=1, sessions=4))
    settings = read_settings(app, particles=2, value=load_object(f"{SESSIONS}:kept_and_found"))
    found = await compare(app, tasks, load_reward(f"{SESSIONS}:recalled"), settings, same_tokens=False)
    with TrajectoryStore(tmp_path / "t.sqlite") as opened:
        await collect(app, tasks, load_reward(f"{SESSIONS}:recalled"), opened, read_settings(app, particles=2))
        texts = ["".join(t.segments) for t in opened.trajectories()]
    assert found.missing == 0
    assert kept(store) == ["from before"]
    assert any("saved as line 1" in text for text in texts)  # it is read


def test_the_question_is_about_things_told_long_ago_and_reward_wants_all_of_them() -> None:
    recalled = load_object(f"{SESSIONS}:recalled")
    for task in load_tasks(f"{SESSIONS}:tasks", test=6):
        lines = task.input["incoming"]
        for subject, value in task.reference.items():
            about = [line for line in lines[:-1] if subject in line["text"]]
            assert value in about[-1]["text"]
            assert about[-1]["session"] < 5
        assert any(line["session"] < 3 for line in lines if any(s in line["text"] for s in task.reference))
        whole = "; ".join(f"{s}: {v}" for s, v in task.reference.items())
        part = whole.replace(next(iter(task.reference.values())), "0000")
        for text, reward in ((whole, 1.0), (part, 0.0), (json.dumps(task.input), 0.0)):
            assert recalled(FinishedRun(task, {}, (call("reply", text=text),))) == reward


@pytest.mark.parametrize("words", commands("memory"))
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(words, monkeypatch, "--limit", "1", "-n", "4")
    assert found["arms"]["AMC"]["tokens"] > 0
    assert kept(load_app(f"{AGENT}:graph").store) == []
