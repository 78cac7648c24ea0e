"""The coalescing chat model through LiteLLM against a real HTTP server; requests are counted there."""

import asyncio
import contextvars
import threading

import litellm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import tool
from pydantic import BaseModel

from langgraph_amc.context import ParticleContext, current_particle
from langgraph_amc.policy import coalesce, litellm_chat
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.coalesce import gather_async, share
from langgraph_amc.policy.usage import UsageCallback
from langgraph_amc.trajectories.types import Usage
from tests.support.openai_server import OpenAIServer, ServerError

MODEL = "openai/gpt-4o-mini"


@pytest.fixture(autouse=True)
def _forget_refusals():
    litellm_chat._ignores_n.clear()


def model_of(server, name=MODEL, **options):
    options = {"coalesce_window": 0.02} | options
    return chat_model(name, api_base=server.base_url, api_key="test", **options)


def particle(i):
    return ParticleContext("run", f"p{i}", 1000 + i)


async def as_particles(count, call, gather_errors=False):
    """Run ``call(i)`` for each particle i at once."""

    async def one(i):
        current_particle.set(particle(i))
        return await call(i)

    return await asyncio.gather(*[one(i) for i in range(count)], return_exceptions=gather_errors)


def as_threads(count, call):
    results = [None] * count

    def one(i):
        current_particle.set(particle(i))
        try:
            results[i] = call(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(one, i)) for i in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return results


async def test_clones_share_one_request_and_get_their_own_answers(server):
    model = model_of(server)
    answers = await as_particles(6, lambda i: model.ainvoke("hello"))
    assert len(server.requests) == 1
    assert server.requests[0]["n"] == 6
    assert sorted(a.content for a in answers) == [f"answer {k}" for k in range(6)]


def test_threads_share_one_request_too(server):
    model = model_of(server, coalesce_window=0.1)
    answers = as_threads(5, lambda i: model.invoke("hello"))
    assert [r["n"] for r in server.requests] == [5]
    assert len({a.content for a in answers}) == 5


async def test_usage_over_particles_is_what_the_server_billed(server):
    server.prompt_tokens, server.completion_tokens = 137, 11
    server.reply = lambda body, number: "word " * (number + 1)
    model = model_of(server)
    callbacks = [UsageCallback() for _ in range(5)]
    for _ in range(2):
        await as_particles(5, lambda i: model.ainvoke("hello", config={"callbacks": [callbacks[i]]}))
    total = sum((c.usage for c in callbacks), Usage())
    assert len(server.requests) == 2
    assert (total.input_tokens, total.output_tokens) == server.billed == (274, 110)
    assert total.cost == pytest.approx(274 * 0.15e-6 + 110 * 0.6e-6)
    assert sorted(c.usage.input_tokens for c in callbacks)[:4] == [0] * 4


async def test_only_identical_calls_are_coalesced(server):
    model = model_of(server)
    prompts = ["a", "a", "b", "a"]
    await as_particles(4, lambda i: model.ainvoke(prompts[i]))
    assert sorted(r.get("n") or 1 for r in server.requests) == [1, 3]


async def test_different_models_parameters_and_stops_stay_apart(server):
    models = [
        model_of(server),
        model_of(server, temperature=0.5),
        model_of(server, "openai/gpt-4o"),
        model_of(server).bind(stop=["x"]),
    ]
    await as_particles(8, lambda i: models[i % 4].ainvoke("hello"))
    assert [r["n"] for r in server.requests] == [2] * 4


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"coalesce_window": 0}, {"seed": 3}, {"n": 2}, {"streaming": True}]
)
async def test_deterministic_streaming_and_switched_off_calls_go_alone(server, options):
    model = model_of(server, **options)
    await as_particles(3, lambda i: model.ainvoke("hello"))
    assert len(server.requests) == 3


async def test_outside_a_particle_nothing_is_coalesced(server):
    model = model_of(server)
    await asyncio.gather(*[model.ainvoke("hello") for _ in range(3)])
    assert len(server.requests) == 3
    assert all("n" not in r for r in server.requests)


async def test_a_fixed_seed_is_varied_by_particle_and_reproducible(server):
    model = model_of(server, seed=7)
    await as_particles(4, lambda i: model.ainvoke("hello"))
    seeds = {r["seed"] for r in server.requests}
    assert len(seeds) == 4
    await as_particles(4, lambda i: model.ainvoke("hello"))
    assert {r["seed"] for r in server.requests[4:]} == seeds
    await model.ainvoke("hello")
    assert server.requests[-1]["seed"] == 7
    kept = model_of(server, seed=7, vary_seed=False)
    await as_particles(4, lambda i: kept.ainvoke("hello"))
    assert (server.requests[-1]["seed"], server.requests[-1]["n"]) == (7, 4)


async def test_a_provider_without_n_is_asked_one_by_one(server):
    assert not litellm_chat._takes_n({"model": "anthropic/claude-sonnet-4-5"})
    assert litellm_chat._takes_n({"model": MODEL})
    model = model_of(server, "gpt-4o-mini", custom_llm_provider="sambanova")
    assert not litellm_chat._takes_n({"model": "gpt-4o-mini", "custom_llm_provider": "sambanova"})
    answers = await as_particles(3, lambda i: model.ainvoke("hello"))
    assert len(server.requests) == 3
    assert len({a.content for a in answers}) == 3


async def test_a_server_that_ignores_n_still_serves_everybody():
    with OpenAIServer(honour_n=False) as server:
        model = model_of(server)
        answers = await as_particles(4, lambda i: model.ainvoke("hello"))
        assert len({a.content for a in answers}) == 4
        assert len(server.requests) == 4
        await as_particles(4, lambda i: model.ainvoke("hello"))
        assert all("n" not in r for r in server.requests[4:])  # remembered
        assert len(server.requests) == 8


async def test_a_server_that_refuses_n_still_serves_everybody(server):
    def reply(body, number):
        if "n" in body:
            raise ServerError(400, "n must be 1")
        return f"answer {number}"

    server.reply = reply
    model = model_of(server)
    for sent in (4, 7):
        answers = await as_particles(3, lambda i: model.ainvoke("hello"))
        assert len({a.content for a in answers}) == 3
        assert len(server.requests) == sent


def test_threads_fall_back_as_well(server):
    def reply(body, number):
        if "n" in body:
            raise ServerError(400, "n must be 1")
        return f"answer {number}"

    server.reply = reply
    answers = as_threads(3, lambda i: model_of(server, coalesce_window=0.1).invoke("hello"))
    assert len({a.content for a in answers}) == 3
    assert len(server.requests) == 4


def fail(status, message="told to fail", code=None):
    def reply(body, number):
        raise ServerError(status, message, code)

    return reply


async def test_an_error_reaches_every_waiter(server):
    server.reply = fail(401)
    model = model_of(server)
    results = await as_particles(4, lambda i: model.ainvoke("hello"), gather_errors=True)
    assert [type(r) for r in results] == [litellm.AuthenticationError] * 4
    assert len(server.requests) == 1


def test_an_error_reaches_every_thread(server):
    server.reply = fail(401)
    model = model_of(server, coalesce_window=0.1)
    results = as_threads(3, lambda i: model.invoke("hello"))
    assert [type(r) for r in results] == [litellm.AuthenticationError] * 3
    assert len(server.requests) == 1


async def test_a_prompt_that_is_too_long_is_not_asked_again(server):
    server.reply = fail(400, code="context_length_exceeded", message="This model's maximum context length is 9")
    model = model_of(server)
    results = await as_particles(3, lambda i: model.ainvoke("hello"), gather_errors=True)
    assert [type(r) for r in results] == [litellm.ContextWindowExceededError] * 3
    assert len(server.requests) == 1


async def test_a_cancelled_waiter_leaves_the_others(server):
    server.delay = 0.1
    model = model_of(server)
    tasks = []

    async def call(i):
        tasks.append(asyncio.current_task())
        return await model.ainvoke("hello")

    together = asyncio.create_task(as_particles(4, call, gather_errors=True))
    while not server.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    tasks[0].cancel()  # the one that came first
    results = await together
    assert isinstance(results[0], asyncio.CancelledError)
    assert {r.content for r in results[1:]} == {"answer 1", "answer 2", "answer 3"}
    assert len(server.requests) == 1


async def test_when_all_waiters_go_the_request_is_cancelled():
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def run(count):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    tasks = [asyncio.create_task(gather_async("key", 0.001, run)) for _ in range(2)]
    await started.wait()
    [t.cancel() for t in tasks]
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_late_callers_extend_the_window_and_nothing_stays_behind():
    counts = []

    async def run(count):
        counts.append(count)
        return [counts] * count

    async def late(i):
        await asyncio.sleep(0.02 * i)
        return await gather_async("late", 0.05, run)

    await asyncio.gather(*[late(i) for i in range(4)])
    assert counts == [4]
    assert not coalesce._async


def test_a_loop_that_closes_leaves_nothing_behind():
    async def run(count):
        return [1] * count

    async def main():
        waiting = asyncio.create_task(gather_async("closing", 10.0, run))
        await asyncio.sleep(0)
        assert not waiting.done()

    asyncio.run(main())
    assert not coalesce._async


async def test_streaming_works_and_counts(server):
    server.reply = lambda body, number: "some longer answer"
    model = model_of(server)
    callback = UsageCallback()
    current_particle.set(particle(0))
    chunks = [c async for c in model.astream("hello", config={"callbacks": [callback]})]
    assert "".join(c.content for c in chunks) == "some longer answer"
    assert len([c for c in chunks if c.content]) > 1
    assert callback.usage == Usage(1, 100, 10, pytest.approx(100 * 0.15e-6 + 10 * 0.6e-6))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tool_reply(body, number):
    arguments = f'{{"a": {number}, "b": 1}}'
    call = {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_tools_are_bound_coalesced_and_split(server):
    server.reply = tool_reply
    model = model_of(server).bind_tools([add])
    answers = await as_particles(3, lambda i: model.ainvoke("1+1?"))
    assert len(server.requests) == 1
    assert server.requests[0]["tools"][0]["function"]["name"] == "add"
    assert sorted(a.tool_calls[0]["args"]["a"] for a in answers) == [0, 1, 2]


class Sum(BaseModel):
    """A sum."""

    a: int
    b: int


async def test_structured_output_is_split_too(server):
    server.reply = lambda body, number: f'{{"a": {number}, "b": 2}}'
    model = model_of(server).with_structured_output(Sum, method="json_schema")
    answers = await as_particles(3, lambda i: model.ainvoke("?"))
    assert len(server.requests) == 1
    assert sorted(answers, key=lambda s: s.a) == [Sum(a=k, b=2) for k in range(3)]


def test_options_that_no_field_takes_go_with_the_request(server):
    model = model_of(server, seed=11, max_tokens=5, user="somebody")
    model.invoke("hello")
    assert server.requests[0]["seed"] == 11
    assert server.requests[0]["max_tokens"] == 5
    assert server.requests[0]["user"] == "somebody"


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_shares_add_up_and_are_fair(total, weights):
    parts = share(total, weights)
    assert sum(parts) == total
    assert min(parts) >= 0
    mass = sum(weights)
    if mass > 0:
        assert all(abs(p - total * w / mass) <= 1 for p, w in zip(parts, weights, strict=True))
