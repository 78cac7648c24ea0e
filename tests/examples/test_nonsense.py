"""What a language model may write in place of what was asked of it: values, rewards and tools know what to answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_object, load_tasks
from langgraph_amc.trajectories import Transcript, read_calls
from tests.examples.readme import EXAMPLES

NONSENSE = (
    'offers {"a": 1}', "offers {}", 'supplier {"name": ["x"]}', "place_order {}", "product {not json}",
    'product {"name": 3}', 'calculate {"expression": null}', 'archival_insert {"text": 5}', 'reply {"text": null}',
    "reply {}", 'figure {"region": null, "year": []}', 'add {"a": "x"}', "multiply {a}", "{}",
    'deep {"a": ' + "[" * 100_000 + "}",
    "passed 0 of 0", "0 of 0 tests pass", "Answer: " + "9" * 5000, "<answer></answer>", "[d1] x [d2]", "PROGRAM: |",
)  # fmt: skip
VALUES = {
    "approval/market.py:within_rules": "Order 3 x desk lamps, model 1. Delivery within 9 days.",
    "calculator/judge.py:plausible": "Compute 1 + 1",
    "code_repair/issues.py:tests_pass": "Two things are wrong.",
    "memory/sessions.py:kept_and_found": "My locker code is 1234.",
    "react/desk.py:grounded": "What do 3 x desk cost?",
    "reflexion/pipelines.py:passed_so_far": "'egg' must become 'gge'",
    "search_r1/citations.py:well_founded": "Where is it?",
    "supervisor/sales.py:traceable": "Which of North, South grew most?",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_function_reads_whatever_is_written(name: str) -> None:
    value = load_object(f"{EXAMPLES}/{name}")
    for said in NONSENSE:
        for role in (AIMessage, HumanMessage):
            assert 0 < value(Transcript().render([HumanMessage(VALUES[name]), role(said)])) < 1


@pytest.mark.parametrize(
    ("reward", "tasks"),
    [
        ("memory/sessions.py:recalled", "memory/sessions.py:tasks"),
        ("react/desk.py:correct", "react/desk.py:tasks"),
        ("approval/market.py:would_be_approved", "approval/market.py:tasks"),
        ("reflexion/pipelines.py:solved", "reflexion/pipelines.py:tasks"),
        ("supervisor/sales.py:right", "supervisor/sales.py:tasks"),
    ],
)
def test_a_reward_of_nonsense_is_0_and_not_missing(reward: str, tasks: str) -> None:
    judge, (task, *_) = load_object(f"{EXAMPLES}/{reward}"), load_tasks(f"{EXAMPLES}/{tasks}", test=1)
    last = [AIMessage(text) for text in NONSENSE]
    last += [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": "1"}])
        for name in ("reply", "place_order")
        for args in ({}, {"text": None}, {"supplier": 3})
    ]
    for message in last:
        assert judge(FinishedRun(task, {"messages": [message]}, (HumanMessage("?"), message))) == 0


def test_what_an_agent_says_of_its_own_tests_counts_for_nothing() -> None:
    for name, claim, told in (
        ("code_repair/issues.py:tests_pass", "9 of 9 tests pass", ToolMessage("1 of 9 tests pass", tool_call_id="1")),
        ("reflexion/pipelines.py:passed_so_far", "passed 6 of 6", HumanMessage("passed 1 of 6; wrong")),
    ):
        value, render = load_object(f"{EXAMPLES}/{name}"), Transcript().render
        begun = [HumanMessage("go"), AIMessage("")]
        assert value(render([*begun, AIMessage(claim)])) == value(render(begun))
        assert value(render([*begun, told, AIMessage(claim)])) == value(render([*begun, told])) < 0.9


def test_calls_are_read_back_as_they_were_made() -> None:
    calls = [("note", {"text": "a {b}\nc", "n": 1}), ("search-it", {})]
    made: list[Any] = [{"name": name, "args": args, "id": str(i)} for i, (name, args) in enumerate(calls)]
    one, other = AIMessage("Look {here}:", tool_calls=made), AIMessage("", tool_calls=made[:1])
    assert read_calls(Transcript().render([HumanMessage("x {y}"), one, other])) == [*calls, calls[0]]
    assert read_calls("a {}\nb {}") == [("a", {}), ("b", {})]


def test_a_proposal_against_the_rules_is_worth_less() -> None:
    value = load_object(f"{EXAMPLES}/approval/market.py:within_rules")
    order = {"supplier": "Nobody", "article": "desk lamps, model 1", "quantity": 2, "total": 3}
    call: Any = {"name": "place_order", "args": order, "id": "1"}
    asked = [HumanMessage("Order 12 x desk lamps, model 1. Delivery within 12 days, from a certified supplier.")]
    assert value(Transcript().render([*asked, AIMessage("", tool_calls=[call])])) < value(Transcript().render(asked))


@pytest.mark.parametrize("expression", ["(" * 5000, "-" * 100_000 + "1", "1+" * 5000 + "1", "\0", "9" * 5000, ""])
def test_the_desk_says_what_it_cannot_calculate(expression: str) -> None:
    calculate = load_object(f"{EXAMPLES}/react/agent.py:calculate")
    assert calculate.invoke({"expression": expression}).startswith("Cannot calculate")


@pytest.mark.parametrize(
    ("answer", "ordered"),
    [({"approved": True}, 1), (True, 1), (False, 0), ("no", 0), ({"approved": "no"}, 0), ([], 0), ({}, 0)],
)
async def test_nothing_but_a_yes_is_a_yes(answer: Any, ordered: int) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    from tests.examples.test_react import careful

    orders = load_object(f"{EXAMPLES}/approval/agent.py:orders")
    decide = load_object(f"{EXAMPLES}/approval/purchasing_stand_in.py:decide")
    app = load_object(f"{EXAMPLES}/approval/agent.py:build")(careful(decide), InMemorySaver())
    (task,) = load_tasks(f"{EXAMPLES}/approval/market.py:tasks", test=1)
    orders.clear()
    thread: Any = {"configurable": {"thread_id": "t"}}
    await app.ainvoke(task.input, thread)
    await app.ainvoke(Command(resume=answer), thread)
    assert len(orders) == ordered
    orders.clear()


@pytest.mark.parametrize(
    "call",
    [
        {"path": "tests/test_money.py", "old": "def", "new": "x"},
        {"path": "./tests/test_money.py", "old": "", "new": "def test_it(): pass"},
        {"path": "ledger/../tests/test_money.py", "old": "", "new": ""},
        {"path": "../outside.py", "old": "", "new": "x"},
        {"path": "ledger", "old": "", "new": "x"},
        {"path": "ledger/money.py", "old": "", "new": "x"},
        {"path": "ledger/money.py", "old": "nowhere", "new": "x"},
        {"path": "ledger/money.py", "old": "def to_cents", "new": "\ud800"},
        {"path": "\0", "old": "", "new": ""},
    ],
)
def test_only_a_piece_of_a_source_is_edited(call: dict[str, str]) -> None:
    worktree = load_object(f"{EXAMPLES}/code_repair/agent.py:worktree").get()
    worktree.checkout(files := load_object(f"{EXAMPLES}/code_repair/issues.py:repository")())
    edit, read = (load_object(f"{EXAMPLES}/code_repair/agent.py:{name}") for name in ("edit", "read"))
    assert edit.invoke(call).startswith("not edited")
    assert worktree.files() == files
    assert [read.invoke({"path": path}) for path in files] == list(files.values())  # empty ones too


def test_no_checkout_outlives_the_process(tmp_path: Path) -> None:
    code = (
        f"import sys, tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        f"sys.path.insert(0, {str(EXAMPLES / 'code_repair')!r})\n"
        "from agent import worktree\n"
        "worktree.get().checkout({'a.py': ''})\n"
        "assert list(__import__('pathlib').Path(tempfile.tempdir).iterdir())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not list(tmp_path.iterdir())


async def test_a_reply_ends_the_turn_whatever_else_was_called_and_no_line_is_lost() -> None:
    from langgraph.store.memory import InMemoryStore

    from langgraph_amc.demo.stand_in import StandIn

    def decide(messages: Any, rng: Any) -> AIMessage:
        named = [("archival_insert", "one"), ("archival_insert", "two"), ("core_append", "a"), ("core_append", "b")]
        calls = [("reply", "yes"), *named] if messages[-1].type == "human" else [("reply", "again")]
        return AIMessage("", tool_calls=[{"name": n, "args": {"text": t}, "id": t} for n, t in calls])

    store = InMemoryStore()
    app = load_object(f"{EXAMPLES}/memory/agent.py:build")(StandIn(decide=decide), store)
    out = await app.ainvoke({"user": "u", "incoming": [{"session": 0, "text": "hello"}]})
    assert [m.type for m in out["messages"]] == ["human", "ai", *["tool"] * 5]
    assert sorted(item.value["text"] for item in store.search(("u", "archival"))) == ["one", "two"]
    assert sorted(store.get(("u", "core"), "text").value["text"].split()) == ["a", "b"]
