"""Rewards: evaluators as they are, and a failure that is missing, never zero."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langsmith.evaluation import EvaluationResult
from openevals.exact import exact_match, exact_match_async
from openevals.llm import create_llm_as_judge

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import (
    FinishedRun,
    RewardError,
    Task,
    as_reward,
    message_reward,
    step_reward,
    step_rewards,
)
from langgraph_amc.trajectories import Trajectory, segments_from_messages

RUN = FinishedRun(Task("t", "2 + 2?", reference={"answer": "4"}), {"answer": "4"})
WRONG = FinishedRun(RUN.task, {"answer": "5"})
OPEN = FinishedRun(Task("t", "Hi"), {"answer": "4"})
FREE = FinishedRun(None, {"answer": "4"})


def test_a_function_of_the_run_is_a_reward():
    reward = as_reward(lambda run: run.output["answer"] == run.task.reference["answer"])
    assert (reward(RUN), reward(WRONG)) == (1.0, 0.0)
    assert as_reward(reward) is reward
    assert as_reward(partial(lambda weight, run: weight, 0.5))(RUN) == 0.5


def test_openevals_evaluators_work_unchanged():
    assert (as_reward(exact_match)(RUN), as_reward(exact_match)(WRONG)) == (1.0, 0.0)
    reward = as_reward(exact_match_async)
    assert reward.is_async
    assert (reward(RUN), reward(WRONG)) == (1.0, 0.0)


class Judge(GenericFakeChatModel):
    """A chat model that answers with the structure openevals asks for."""

    def with_structured_output(self, schema, **_):
        return self | (lambda message: {"score": float(message.content), "reasoning": "because"})


def test_an_openevals_judge_works_unchanged_and_its_failure_is_missing():
    judge = create_llm_as_judge(
        prompt="Grade {outputs} for {inputs}", judge=Judge(messages=iter(["0.25", "great"])), continuous=True
    )
    reward = as_reward(judge)
    assert reward(OPEN) == 0.25
    failed = reward.evaluate(OPEN)
    assert failed.value is None
    assert "could not convert" in failed.error


def test_the_parameters_an_evaluator_names_are_what_it_gets():
    seen = {}

    def evaluator(*, outputs, inputs=None, reference_outputs=None, strict=True, **kwargs):
        seen.update(outputs=outputs, inputs=inputs, reference=reference_outputs, strict=strict, rest=kwargs)
        return True

    assert as_reward(evaluator)(RUN) == 1.0
    messages = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    reference = {"answer": "4"}
    assert (seen["inputs"], seen["outputs"], seen["reference"]) == (messages, {"answer": "4"}, reference)
    assert (seen["strict"], seen["rest"]) == (True, {})
    assert as_reward(evaluator)(FREE) == 1.0
    assert (seen["inputs"], seen["reference"]) == (None, None)


def test_comparing_with_a_reference_that_is_not_there_is_missing_not_wrong():
    reward = as_reward(lambda outputs, reference_outputs: outputs == reference_outputs)
    for run in (OPEN, FREE):
        assert reward.evaluate(run).value is None
        assert "no reference" in reward.evaluate(run).error
    assert reward(WRONG) == 0.0


GOOD = [
    (True, 1.0),
    (0, 0.0),
    (np.float32(0.5), 0.5),
    (np.bool_(True), 1.0),
    ({"score": 0.5}, 0.5),
    ({"key": "k", "score": True, "comment": "yes"}, 1.0),
    (EvaluationResult(key="k", score=0.5), 0.5),
    ([{"key": "k", "score": 0.5}], 0.5),
    ({"results": [EvaluationResult(key="k", score=1)]}, 1.0),
]
BAD = [
    (None, "no score"),
    ({"score": None}, "no score"),
    (EvaluationResult(key="k", value="good"), "no score"),
    (math.nan, "finite, not nan"),
    ({"score": math.inf}, "finite, not inf"),
    ("0.5", "not text"),
    ({"score": "1"}, "not text"),
    ({"value": 1}, r"no score, only ['value']"),
    ([], "0 results []"),
    ([{"key": "a", "score": 1}, {"key": "b", "score": 0}], "['a', 'b']: choose one"),
    (object(), "not object"),
]


@pytest.mark.parametrize(("result", "value"), GOOD, ids=map(repr, range(len(GOOD))))
async def test_results_that_are_scores(result, value):
    async def later(run):
        return result

    assert as_reward(lambda run: result).evaluate(RUN).value == value
    assert (await as_reward(lambda run: result).aevaluate(RUN)).value == value
    assert (await as_reward(later).aevaluate(RUN)).value == value


@pytest.mark.parametrize(("result", "error"), BAD, ids=map(repr, range(len(BAD))))
async def test_results_that_are_missing_say_why(result, error):
    async def later(run):
        return result

    for reward in (as_reward(lambda run: result), as_reward(later)):
        found = await reward.aevaluate(RUN)
        assert found.value is None
        assert error in found.error


def test_one_of_several_scores_is_chosen_by_key():
    def evaluator(outputs):
        return [{"key": "a", "score": 1}, EvaluationResult(key="b", score=0.25)]

    assert (as_reward(evaluator, key="a")(RUN), as_reward(evaluator, key="b")(RUN)) == (1.0, 0.25)
    assert "exactly one must" in as_reward(evaluator, key="c").evaluate(RUN).error


async def test_an_exception_is_missing_with_its_reason():
    def broken(run):
        raise KeyError("rate limit")

    async def broken_too(run):
        raise KeyError("rate limit")

    for reward in (as_reward(broken), as_reward(broken_too)):
        result = await reward.aevaluate(RUN)
        assert (result.value, result.error) == (None, "KeyError: 'rate limit'")
    with pytest.raises(KeyboardInterrupt):
        as_reward(lambda run: (_ for _ in ()).throw(KeyboardInterrupt)).evaluate(RUN)


async def test_async_in_a_loop_and_blocking_in_a_thread():
    async def later(run):
        await asyncio.sleep(0)
        return 1

    with pytest.raises(ConfigurationError, match="await aevaluate"):
        as_reward(later).evaluate(RUN)
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocking(run):  # ends only if the loop goes on meanwhile
        return asyncio.run_coroutine_threadsafe(waiting.wait(), loop).result(timeout=10)

    evaluation = asyncio.create_task(as_reward(blocking).aevaluate(RUN))
    await asyncio.sleep(0)
    waiting.set()
    assert (await evaluation).value == 1.0


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (3, "not int"),
        (lambda: 1, "one finished run"),
        (lambda run, example: 1, "of \\(run, example\\)"),
        (lambda outputs, rubric: 1, "requires rubric"),
        (lambda *, run: 1, "one finished run"),
    ],
)
def test_functions_that_are_no_rewards_are_refused_before_any_run(fn, message):
    with pytest.raises(ConfigurationError, match=message):
        as_reward(fn)


def test_step_rewards_of_tools_and_text_environments():
    conversation = [
        HumanMessage("go"),
        AIMessage("look"),
        ToolMessage("a", tool_call_id="1", artifact={"reward": 0.5}),
        ToolMessage("b", tool_call_id="2", artifact={"reward": True}),
        AIMessage("wait", additional_kwargs={"reward": 9}),  # the model does not reward itself
        ToolMessage("c", tool_call_id="3", artifact=[1, 2]),
        AIMessage("move"),
        HumanMessage("you fell", additional_kwargs={"reward": -1}),
        AIMessage("done"),
    ]
    assert step_rewards(conversation) == [1.5, 0.0, -1.0, 0.0]
    assert step_reward(conversation) == 0.5
    assert [message_reward(m) for m in conversation[:3]] == [None, None, 0.5]
    Trajectory("r", "p", segments_from_messages(conversation), tuple(step_rewards(conversation)))


@pytest.mark.parametrize("reward", ["1", math.nan, -math.inf, [1]])
def test_step_rewards_that_are_no_numbers_are_refused(reward):
    with pytest.raises(RewardError):
        step_rewards([AIMessage(""), ToolMessage("", tool_call_id="1", artifact={"reward": reward})])


def test_a_reward_that_no_step_earned_is_refused():
    with pytest.raises(RewardError, match="no step"):
        step_rewards([HumanMessage("go", additional_kwargs={"reward": 1})])


@given(st.lists(st.sampled_from("aht")))
def test_there_is_one_step_reward_per_ai_message(kinds):
    make = {"a": AIMessage(""), "h": HumanMessage(""), "t": ToolMessage("", tool_call_id="1")}
    conversation = [make[k] for k in kinds]
    assert len(step_rewards(conversation)) == kinds.count("a") == len(segments_from_messages(conversation)) - 1


def test_a_tool_of_a_real_agent_rewards_its_step():
    @tool(response_format="content_and_artifact")
    def dig(depth: int):
        """Dig."""
        return f"dug {depth}", {"reward": depth / 10}

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **_):
            return self

    calls = [AIMessage("", tool_calls=[{"name": "dig", "args": {"depth": d}, "id": str(d)}]) for d in (1, 2)]
    agent = create_agent(Model(messages=iter([*calls, AIMessage("done")])), [dig])
    final = agent.invoke({"messages": [("user", "dig")]})
    assert step_rewards(final["messages"]) == [0.1, 0.2, 0.0]
