"""A person approves: asked once, for the selected lineage; what was approved happens once."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import langgraph_amc as amc
from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_object, load_reward, load_tasks
from langgraph_amc.trajectories import Transcript
from tests.examples.readme import EXAMPLES, commands, compared, run_python
from tests.examples.test_react import careful

FOLDER = EXAMPLES / "approval"
AGENT, MARKET, STAND_IN = (str(FOLDER / name) for name in ("agent.py", "market.py", "purchasing_stand_in.py"))
THREAD: dict[str, Any] = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def orders() -> Any:
    placed = load_object(f"{AGENT}:orders")
    placed.clear()
    yield placed
    placed.clear()


def build() -> Any:
    return load_object(f"{AGENT}:build")(careful(load_object(f"{STAND_IN}:decide")), InMemorySaver())


async def test_nothing_is_bought_before_the_answer_and_the_best_offer_is_proposed(orders: list[str]) -> None:
    reward, judge = load_reward(f"{MARKET}:would_be_approved"), load_object(f"{MARKET}:within_rules")
    for number, task in enumerate(load_tasks(f"{MARKET}:tasks", test=6)):
        app, thread = build(), {"configurable": {"thread_id": str(number)}}
        asked = await app.ainvoke(task.input, thread)
        assert asked["__interrupt__"][0].value == {"order": task.reference}
        said = tuple(asked["messages"])
        assert reward(FinishedRun(task, asked, said)) == 1.0
        assert judge(Transcript().render(said)) == 0.9
        assert len(orders) == number
        done = await app.ainvoke(Command(resume={"approved": True}), thread)
        assert done["messages"][-1].text == f"ordered: {orders[-1]}"
        assert len(orders) == number + 1


async def test_a_refusal_leads_to_another_proposal_or_an_end(orders: list[str]) -> None:
    tasks = load_tasks(f"{MARKET}:tasks", test=12)
    app = build()
    proposals = 0
    for number, task in enumerate(tasks):
        thread = {"configurable": {"thread_id": str(number)}}
        output = await app.ainvoke(task.input, thread)
        seen = []
        while "__interrupt__" in output:
            order = output["__interrupt__"][0].value["order"]
            assert order not in seen
            seen.append(order)
            output = await app.ainvoke(Command(resume={"approved": False, "reason": "too dear"}), thread)
        assert output["messages"][-1].text == "No offer meets the requirements."
        assert [order["total"] for order in seen] == sorted(order["total"] for order in seen)
        proposals += len(seen)
    assert proposals > len(tasks)
    assert not orders


async def test_one_person_is_asked_once_and_one_order_is_placed(orders: list[str]) -> None:
    decide = load_object(f"{STAND_IN}:decide")
    app = load_object(f"{AGENT}:build")(load_object(f"{AGENT}:agent_model")(decide), InMemorySaver())
    judge = load_object(f"{MARKET}:within_rules")
    for number, task in enumerate(load_tasks(f"{MARKET}:tasks", test=4)):
        better = amc.wrap(
            app,
            particles=6,
            value=judge,
            resample=amc.every(1),
            seed=number,
            effects={"place_order": "commit", "*": "pure"},
        )
        thread = {"configurable": {"thread_id": str(number)}}
        asked = await better.ainvoke(task.input, thread)
        wanted = asked["__interrupt__"][0].value["order"]
        assert len(orders) == number
        done = await better.ainvoke(Command(resume={"approved": True}), thread)
        assert len(orders) == number + 1
        assert orders[-1].startswith(f"{wanted['quantity']} x {wanted['article']} from {wanted['supplier']} ")
        states = [effect.state for effect in done.amc.effects if effect.tool == "place_order"]
        assert states.count("committed") == 1
        assert set(states) <= {"committed", "dropped"}


def test_the_judge_reads_the_rules() -> None:
    judge, offers = load_object(f"{MARKET}:within_rules"), load_object(f"{MARKET}:offers_for")
    article = "desk lamps, model 1"
    best = offers(article)[0]
    lines = "\n".join(map(str, offers(article)))
    call = '{"article": "%s", "quantity": 12, "supplier": "%s", "total": %d}'
    asked = f"Order 12 x {article}. Delivery within 30 days, from a certified supplier.\n{lines}\n"
    fine = call % (article, best.supplier, best.total(12))
    checked = f"{asked}{best.supplier} is certified\n"
    assert judge(f"{checked}place_order {fine}") == 0.9
    assert judge(f"{asked}place_order {fine}") == pytest.approx(0.18)
    assert judge(f"{checked}place_order {call % (article, best.supplier, 1)}") == pytest.approx(0.18)
    assert judge(f"{asked}{best.supplier} is not certified\nplace_order {call % (article, best.supplier, 1)}") < 0.05
    assert judge("hello") == 0.5


@pytest.mark.parametrize("words", commands("approval"))
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch, orders: list[str]) -> None:
    arms = compared(words, monkeypatch, "--limit", "8")["arms"]
    assert arms["one run"]["selected"]["mean"] < arms["AMC"]["selected"]["mean"]
    assert not orders


def test_readme_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    left = run_python("approval", monkeypatch)
    assert len(left[0]["orders"]) == 1
    proposal, ordered = capsys.readouterr().out.splitlines()
    assert proposal.endswith(" []")
    assert ordered == str(left[0]["orders"])
