"""Counting and pricing usage of LangChain chat models."""

from uuid import uuid4

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from langgraph_amc.policy.usage import UsageCallback, price
from langgraph_amc.trajectories.types import Usage


def message(text="x", inputs=30, outputs=7, **metadata):
    usage = {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": inputs + outputs}
    return AIMessage(text, usage_metadata=usage, response_metadata=metadata)


def fake(*messages, **kwargs):
    return GenericFakeChatModel(messages=iter(messages), **kwargs)


def test_price_comes_from_the_table_and_unknown_is_none():
    assert price("gpt-4o-mini", 1_000_000 // 10, 0) == pytest.approx(0.015)
    assert price("openai/gpt-4o-mini", 0, 1000) == pytest.approx(0.0006)
    assert price("gpt-4o-mini", 1000, 0, cached_tokens=1000) == pytest.approx(0.000075)
    assert price("amc-local/some/path", 1000, 1000) == 0.0
    assert price("nobody/knows-this", 1, 1) is None


def test_any_chat_model_is_counted_sync():
    callback = UsageCallback()
    model = fake(message(model_name="gpt-4o-mini"), message(response_cost=0.5))
    model.invoke("a", config={"callbacks": [callback]})
    assert callback.usage == Usage(1, 30, 7, pytest.approx(30 * 0.15e-6 + 7 * 0.6e-6))
    model.invoke("b", config={"callbacks": [callback]})
    assert callback.usage.calls == 2
    assert callback.usage.cost == pytest.approx(0.5, abs=1e-4)


async def test_async_and_unknown_price_is_none_for_good():
    callback = UsageCallback()
    model = fake(message(model_name="who-knows"), message(response_cost=0.5))
    await model.ainvoke("a", config={"callbacks": [callback]})
    await model.ainvoke("b", config={"callbacks": [callback]})
    assert callback.usage == Usage(2, 60, 14, None)


def test_own_price_wins_over_the_table():
    callback = UsageCallback(price=lambda names, i, o, cached: i * 2.0 if "mine" in names else None)
    fake(message(model_name="mine")).invoke("a", config={"callbacks": [callback]})
    assert callback.usage.cost == 60.0


def test_several_generations_of_one_call_are_counted_once():
    callback = UsageCallback()
    generations = [ChatGeneration(message=message(response_cost=0.1)) for _ in range(4)]
    callback.on_llm_end(LLMResult(generations=[generations]), run_id=uuid4())
    assert callback.usage == Usage(1, 30, 7, 0.1)


def test_usage_in_llm_output_or_generation_info_counts():
    callback = UsageCallback()
    plain = ChatGeneration(message=AIMessage("x"))
    output = {"token_usage": {"prompt_tokens": 5, "completion_tokens": 2}, "model_name": "gpt-4o-mini"}
    callback.on_llm_end(LLMResult(generations=[[plain]], llm_output=output), run_id=uuid4())
    info = {"usage": {"input_tokens": 6, "output_tokens": 3}}
    told = ChatGeneration(message=AIMessage("x"), generation_info=info)
    callback.on_llm_end(LLMResult(generations=[[told]]), run_id=uuid4())
    assert callback.usage == Usage(2, 11, 5, None)


def test_an_answer_from_langchains_cache_costs_nothing():
    callback = UsageCallback()
    model = fake(message(response_cost=0.5), message(response_cost=0.5), cache=InMemoryCache())
    model.invoke("same", config={"callbacks": [callback]})
    model.invoke("same", config={"callbacks": [callback]})
    assert callback.usage == Usage(2, 30, 7, 0.5)


def test_failed_calls_leave_nothing_behind():
    callback = UsageCallback()
    with pytest.raises(StopIteration):
        fake().invoke("a", config={"callbacks": [callback]})
    assert callback.usage == Usage()
    assert not callback._models
