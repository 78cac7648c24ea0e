"""ReAct with tool calls and as text: one agent, two forms."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_amc.demo.stand_in import StandIn, agent_model
from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks
from langgraph_amc.trajectories import Transcript
from tests.examples.readme import EXAMPLES, commands, compared
from tests.support.openai_server import OpenAIServer

AGENT, DESK, STAND_IN = (str(EXAMPLES / "react" / name) for name in ("agent.py", "desk.py", "desk_stand_in.py"))


class Careful(random.Random):
    """A generator by which a stand-in never slips."""

    def random(self) -> float:
        return 1.0


def careful(decide: Any) -> StandIn:
    return StandIn(decide=lambda messages, _: decide(messages, Careful()))


@pytest.mark.parametrize(("build", "decide"), [("build", "decide"), ("build_text", "decide_as_text")])
async def test_who_does_not_slip_prices_every_order_and_is_grounded(build: str, decide: str) -> None:
    app = load_object(f"{AGENT}:{build}")(careful(load_object(f"{STAND_IN}:{decide}")))
    correct, grounded = load_reward(f"{DESK}:correct"), load_object(f"{DESK}:grounded")
    for task in load_tasks(f"{DESK}:tasks", test=4):
        output = await app.ainvoke(task.input)
        said = tuple(output["messages"])
        assert correct(FinishedRun(task, output, said)) == 1.0
        assert grounded(Transcript().render(said)) == 0.9
        assert sum(m.type == "ai" for m in said) == 10


def test_the_judge_sees_names_and_numbers_that_nobody_gave() -> None:
    grounded, render = load_object(f"{DESK}:grounded"), Transcript().render
    asked = HumanMessage("What do 3 x desk cost in NOK?")
    native = {"name": "calculate", "args": {"expression": "3 * 120"}, "id": "1"}
    assert grounded(render([asked, AIMessage("", tool_calls=[native])])) == 0.05
    assert grounded(render([asked, AIMessage("Thought: a\nAction: product[lamp]")])) == 0.05
    told = HumanMessage("Observation: One desk costs 120 EUR")
    assert (
        grounded(render([asked, AIMessage("Action: product[desk]"), told, AIMessage("Action: calculate[3 * 120]")]))
        == 0.9
    )


async def test_actions_that_cannot_be_read_are_told_so_and_end() -> None:
    app = load_object(f"{AGENT}:build_text")(StandIn(decide=lambda messages, rng: "hm"))
    said = (await app.ainvoke({"messages": [("user", "hello")]}))["messages"]
    assert "write Action: tool[argument]" in said[2].text
    assert len(said) < 40


@pytest.mark.parametrize("wrong", ["2 ** 9", "desk + 1", "3 +", "__import__('os')", "1.5 * 2"])
def test_calculate_takes_whole_numbers_only(wrong: str) -> None:
    calculate = load_object(f"{AGENT}:calculate")
    assert calculate.invoke({"expression": "3 * 120 + (2 - 7)"}) == "355"
    assert calculate.invoke({"expression": wrong}).startswith("Cannot calculate")


async def test_a_model_of_the_environment_takes_the_place_of_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = load_object(f"{STAND_IN}:decide_as_text")
    assert isinstance(agent_model(decide), StandIn)
    with OpenAIServer() as server:
        server.reply = lambda body, number: "Thought: easy\nAnswer: 430" if number else "Action: product[desk]"
        for name, value in (
            ("AGENT_MODEL", "openai/some"),
            ("OPENAI_API_BASE", server.base_url),
            ("OPENAI_API_KEY", "-"),
        ):
            monkeypatch.setenv(name, value)
        app = load_object(f"{AGENT}:build_text")(agent_model(decide, stop=["Observation:"]))
        said = (await app.ainvoke({"messages": [("user", "What do 3 x desk cost?")]}))["messages"]
    assert said[-1].text.endswith("Answer: 430")
    assert said[2].text == "Observation: One desk costs 120 EUR and weighs 18 kg"
    assert [request["stop"] for request in server.requests] == [["Observation:"]] * 2


def test_a_stand_in_repeats_with_its_seed_and_varies_without() -> None:
    say, again, free = (StandIn(decide=lambda messages, rng: str(rng.random()), seed=seed) for seed in (3, 3, None))
    said = [say.invoke(text).text for text in "aab"]
    assert len(set(said)) == 3
    assert [again.invoke(text).text for text in "aab"] == said
    assert free.invoke("a").text != free.invoke("a").text
    assert say.invoke("a" * 400).usage_metadata["input_tokens"] == 101


@pytest.mark.parametrize("words", commands("react"), ids=lambda words: words[1].rpartition(":")[2])
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arms = compared(words, monkeypatch, "--limit", "3", "-n", "4")["arms"]
    assert arms["one run"]["observable"]["mean"] < arms["AMC"]["observable"]["mean"]
    assert load_app(f"{AGENT}:graph") is not load_app(f"{AGENT}:text_graph")
