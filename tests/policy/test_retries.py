"""Retries of the chat model against a real HTTP server, where requests are counted: one layer, and no more."""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import litellm
import pytest
from langchain_core.messages import AIMessage

from langgraph_amc.context import ParticleContext, current_particle
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy import litellm_chat
from langgraph_amc.policy import retry as retry_module
from langgraph_amc.policy.budget import Budget, BudgetExceededError, Price
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.limiter import limiter_for
from langgraph_amc.policy.retry import EmptyAnswerError, Retry, TruncatedAnswerError, retry_after
from langgraph_amc.trajectories.types import Usage
from tests.support.openai_server import Broken, OpenAIServer, ServerError

MODEL = "openai/gpt-4o-mini"
LIFE = 30.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    litellm_chat._ignores_n.clear()
    monkeypatch.setattr(retry_module, "_FIRST_WAIT", 0.01)


def model_of(server: OpenAIServer, **options: Any) -> Any:
    given = {"retry": Retry(attempts=3, longest_wait=1.0, timeout=5.0), "coalesce_window": 0.02} | options
    return chat_model(MODEL, api_base=server.base_url, api_key="k", **given)


def script(*steps: Any) -> Any:
    """A reply hook that plays these steps, then answers ``fine``."""
    left = list(steps)

    def reply(body: Any, number: int) -> Any:
        step = left.pop(0) if left else "fine"
        if isinstance(step, Exception):
            raise step
        return step

    return reply


EMPTY = {"role": "assistant", "content": ""}
CUT = {"role": "assistant", "content": "half an ans", "finish_reason": "length"}

FAILURES = {
    "429": (ServerError(429, "slow down"), litellm.RateLimitError),
    "500": (ServerError(500, "oops"), litellm.InternalServerError),
    "503": (ServerError(503, "busy"), litellm.ServiceUnavailableError),
    "malformed": (Broken("json"), litellm.InternalServerError),
    "dropped": (Broken("drop"), litellm.InternalServerError),
    "empty": (EMPTY, EmptyAnswerError),
    "blank": ({"role": "assistant", "content": " \n"}, EmptyAnswerError),
    "truncated": (CUT, TruncatedAnswerError),
}


async def ask(model: Any, way: str) -> AIMessage:
    if way == "ainvoke":
        return await model.ainvoke("hi")
    if way == "invoke":
        return await asyncio.to_thread(model.invoke, "hi")
    if way == "astream":
        return sum_chunks([chunk async for chunk in model.astream("hi")])
    return sum_chunks(await asyncio.to_thread(lambda: list(model.stream("hi"))))


def sum_chunks(chunks: list[Any]) -> Any:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("kind", FAILURES)
async def test_passing_failures_are_asked_again_and_lasting_ones_are_typed(kind: str, way: str) -> None:
    failure, error = FAILURES[kind]
    if kind == "malformed" and "stream" in way:  # a stream without an event
        error = EmptyAnswerError
    with OpenAIServer() as server:
        server.reply = script(failure, failure)
        if kind == "truncated" and "stream" in way:  # it has been passed on: there is no way back
            with pytest.raises(error):
                await ask(model_of(server), way)
            assert len(server.requests) == 1
            return
        assert (await ask(model_of(server), way)).content == "fine"
        assert len(server.requests) == 3
        server.reply = script(*[failure] * 9)
        with pytest.raises(error):
            await ask(model_of(server), way)
        assert len(server.requests) == 6


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, None, litellm.AuthenticationError),
        (403, None, litellm.APIError),
        (404, None, litellm.NotFoundError),
        (400, None, litellm.BadRequestError),
        (400, "context_length_exceeded", litellm.BadRequestError),
        (400, "content_policy_violation", litellm.BadRequestError),
    ],
)
async def test_hopeless_requests_are_sent_once(status: int, code: str | None, error: Any, way: str) -> None:
    with OpenAIServer() as server:
        server.reply = script(*[ServerError(status, f"no: {code}", code)] * 9)
        with pytest.raises(error):
            await ask(model_of(server), way)
        assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_hanging_request_runs_out_of_time_and_is_sent_again(way: str) -> None:
    with OpenAIServer(delay=5.0) as server:
        started = time.monotonic()
        with pytest.raises(litellm.Timeout):
            await ask(model_of(server, retry=Retry(attempts=2, timeout=0.3)), way)
        assert time.monotonic() - started < 4
        assert len(server.requests) == 2


async def test_retry_after_is_honoured_up_to_the_cap_and_holds_the_whole_key() -> None:
    with OpenAIServer() as server:
        server.reply = script(ServerError(429, "slow down", retry_after=0.4))
        first, second = model_of(server), model_of(server)

        async def later() -> None:
            await asyncio.sleep(0.1)
            await second.ainvoke("me too")

        await asyncio.gather(first.ainvoke("hi"), later())
        waits = [t - server.arrivals[0] for t in server.arrivals[1:]]
        assert len(waits) == 2
        assert min(waits) >= 0.4
        server.reply = script(ServerError(503, "soon", retry_after=3600))
        started = time.monotonic()
        await model_of(server, retry=Retry(attempts=2, longest_wait=0.3)).ainvoke("hi")
        assert 0.3 <= time.monotonic() - started < 3


async def test_retry_after_may_be_a_date() -> None:
    with OpenAIServer() as server:
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        server.reply = script(ServerError(429, "slow down", retry_after=when))
        await model_of(server, retry=Retry(longest_wait=5)).ainvoke("hi")
        assert 0.9 <= server.arrivals[1] - server.arrivals[0] <= 4

    class Told(Exception):
        litellm_response_headers = {"retry-after": "soon"}  # noqa: RUF012

    assert retry_after(Told()) is None
    assert retry_after(ValueError()) is None


def test_waits_grow_with_full_jitter_up_to_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "_FIRST_WAIT", 1.0)
    waits = [[Retry(longest_wait=6).wait(None, k) for _ in range(500)] for k in (1, 2, 3, 4)]
    assert [max(w) > 0.9 * bound for w, bound in zip(waits, (1, 2, 4, 6), strict=True)] == [True] * 4
    assert [max(w) <= bound for w, bound in zip(waits, (1, 2, 4, 6), strict=True)] == [True] * 4
    assert max(min(w) for w in waits) < 0.3


async def test_truncated_answers_may_be_accepted_and_empty_ones_never() -> None:
    with OpenAIServer() as server:
        model = model_of(server, accept_truncated=True, max_tokens=3)
        for way in ("invoke", "ainvoke", "stream", "astream"):
            server.reply = script(CUT)
            assert (await ask(model, way)).content == "half an ans"
        assert len(server.requests) == 4


async def as_particles(count: int, call: Any) -> list[Any]:
    async def one(i: int) -> Any:
        current_particle.set(ParticleContext("run", f"p{i}", i))
        return await call(i)

    return await asyncio.gather(*[one(i) for i in range(count)], return_exceptions=True)


async def test_one_bad_choice_is_asked_for_again_by_its_caller_alone() -> None:
    with OpenAIServer() as server:
        server.reply = lambda body, number: EMPTY if number == 1 else f"answer {number}"
        model = model_of(server)
        with Budget(tokens=10**6).open() as account:
            answers = await as_particles(4, lambda i: model.ainvoke("hi"))
        assert sorted(a.content for a in answers) == ["answer 0", "answer 2", "answer 3", "answer 4"]
        assert [r.get("n") for r in server.requests] == [4, None]
        spent = account.spent
        assert (spent.input_tokens, spent.output_tokens) == server.billed


def test_one_bad_choice_among_threads_too() -> None:
    with OpenAIServer() as server:
        server.reply = lambda body, number: CUT if number == 1 else f"answer {number}"
        model = model_of(server, coalesce_window=0.1)

        def one(i: int) -> Any:
            current_particle.set(ParticleContext("run", f"p{i}", i))
            return model.invoke("hi")

        with Budget(tokens=10**6).open() as account, ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(contextvars.copy_context().run, one, i) for i in range(3)]
            answers = [c.result().content for c in calls]
        assert sorted(answers) == ["answer 0", "answer 2", "answer 3"]
        assert [r.get("n") for r in server.requests] == [3, None]
        assert (account.spent.input_tokens, account.spent.output_tokens) == server.billed


async def test_a_shared_request_that_fails_is_sent_again_once_for_all() -> None:
    with OpenAIServer() as server:
        server.reply = script(ServerError(429, "slow down"), ServerError(500, "oops"))
        answers = await as_particles(4, lambda i: model_of(server).ainvoke("hi"))
        assert [a.content for a in answers] == ["fine"] * 4
        assert [r.get("n") for r in server.requests] == [4, 4, 4]


async def test_a_shared_request_without_any_answer_is_an_error_for_each_and_paid_once() -> None:
    with OpenAIServer() as server:
        server.reply = lambda body, number: EMPTY
        with Budget(tokens=10**6).open() as account:
            found = await as_particles(3, lambda i: model_of(server).ainvoke("hi"))
        assert [type(f) for f in found] == [EmptyAnswerError] * 3
        assert [r.get("n") for r in server.requests] == [3, 3, 3]
        assert (account.spent.input_tokens, account.spent.output_tokens) == server.billed
        assert account.reserved == Usage()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_answers_that_are_thrown_away_are_paid(way: str) -> None:
    with OpenAIServer() as server:
        server.reply = script(EMPTY, EMPTY)
        with Budget(tokens=10**6, usd=1.0).open() as account:
            assert (await ask(model_of(server), way)).content == "fine"
        assert (account.spent.input_tokens, account.spent.output_tokens) == server.billed == (300, 30)
        assert account.spent.cost == pytest.approx(300 * 0.15e-6 + 30 * 0.6e-6)
        assert account.reserved == Usage()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_discarded_answer_of_a_model_no_table_knows(stream: bool) -> None:
    """Its longest answer is known from the model's own max_tokens only."""
    with OpenAIServer() as server:
        server.reply = lambda body, number: EMPTY if number == 1 else f"answer {number}"
        model = chat_model("openai/mine", api_base=server.base_url, api_key="k", max_tokens=40, coalesce_window=0.02)
        ways = ("stream", "astream") if stream else ("ainvoke",)
        with Budget(usd=1.0, prices={"mine": Price(1, 1)}).open() as account:
            found = await as_particles(3, lambda i: ask(model, ways[i % len(ways)]))
        assert [type(f).__name__ for f in found if not isinstance(f, AIMessage)] == []
        assert (account.spent.input_tokens, account.spent.output_tokens) == server.billed
        assert account.spent.calls == server._choices == 4


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_calls_are_the_answers_that_were_asked_for(way: str) -> None:
    with OpenAIServer() as server:
        server.reply = lambda body, number: EMPTY
        model = model_of(server, coalesce_window=0.1, retry=Retry(attempts=50, longest_wait=0.1))
        with Budget(calls=10).open() as account:
            found = await as_particles(3, lambda i: ask(model, way))
        assert [type(f) for f in found] == [BudgetExceededError] * 3
        assert account.spent.calls == server._choices <= 10
        assert account.reserved == Usage()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_running_out_of_the_budgets_seconds_is_named(way: str) -> None:
    with OpenAIServer(delay=5.0) as server:
        model = model_of(server, max_tokens=20, retry=Retry())
        with Budget(seconds=0.5, tokens=10**6).open() as account, pytest.raises(BudgetExceededError) as refused:
            await ask(model, way)
    assert refused.value.limit == "seconds"
    assert account.exhausted is not None
    assert account.spent.output_tokens == 20  # it may be billed
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_budget_stops_the_retries_of_billed_answers(way: str) -> None:
    price = Price(1.0, 1.0)
    with OpenAIServer() as server:
        server.reply = lambda body, number: EMPTY
        model = model_of(server, max_tokens=20, retry=Retry(attempts=50))
        # each attempt takes 110 tokens; the first reserves some 120
        with Budget(usd=450e-6, prices={"gpt-4o-mini": price}).open() as account, pytest.raises(BudgetExceededError):
            await ask(model, way)
        assert price.of(*server.billed) <= 450e-6
        assert account.spent.cost == pytest.approx(price.of(*server.billed))
        assert 3 <= len(server.requests) <= 4


async def test_no_retry_goes_past_the_budgets_seconds() -> None:
    with OpenAIServer() as server:
        server.reply = script(*[ServerError(429, "slow down", retry_after=5)] * 9)
        started = time.monotonic()
        with Budget(seconds=1).open(), pytest.raises(litellm.RateLimitError):
            await model_of(server, retry=Retry()).ainvoke("hi")
        assert time.monotonic() - started < 1
        assert len(server.requests) == 1


async def test_a_storm_ends_with_an_answer_or_a_typed_error() -> None:
    rng = random.Random(7)

    def storm(body: Any, number: int) -> Any:
        fate = rng.choices(["fine", "429", "500", "hang", "empty", "cut", "json", "drop"], [8, 4, 4, 1, 3, 1, 1, 1])[0]
        if fate == "hang":
            time.sleep(0.6)
        elif fate in ("json", "drop"):
            raise Broken(fate)
        elif fate in ("429", "500"):
            raise ServerError(int(fate), "storm", retry_after=0.05 if fate == "429" else None)
        return {"empty": EMPTY, "cut": CUT}.get(fate, "fine")

    with OpenAIServer() as server:
        server.reply = storm
        model = model_of(server, retry=Retry(attempts=4, longest_wait=0.5, timeout=0.5))
        started = time.monotonic()
        with Budget(tokens=10**8).open() as account:

            async def call(i: int) -> Any:
                return await ask(model, ("ainvoke", "invoke", "astream", "stream")[i % 4])

            singles = asyncio.gather(*[call(i) for i in range(80)], return_exceptions=True)
            clones = as_particles(16, lambda i: model.ainvoke(f"group {i % 4}"))
            found = [r for group in await asyncio.wait_for(asyncio.gather(singles, clones), LIFE) for r in group]
        seconds = time.monotonic() - started
    kinds = Counter(type(f).__name__ for f in found)
    limiter = limiter_for("openai", server.base_url, "k")
    print(f"storm: {len(found)} calls, {len(server.requests)} requests, {seconds:.1f} s, {dict(kinds)}")
    print(f"together they waited {limiter.waited:.1f} s for their turn and {limiter.backed_off:.1f} s between attempts")
    assert limiter.backed_off > 0
    answers = [f for f in found if isinstance(f, AIMessage)]
    errors = [f for f in found if not isinstance(f, AIMessage)]
    assert len(found) == 96
    assert all(a.content == "fine" for a in answers)
    assert len(answers) > 48
    typed = (
        EmptyAnswerError,
        TruncatedAnswerError,
        litellm.APIError,
        litellm.Timeout,
        *litellm.LITELLM_EXCEPTION_TYPES,
    )
    assert all(isinstance(e, typed) for e in errors)
    assert len(server.requests) <= 96 * 2 * 4
    assert account.reserved == Usage()
    assert account.spent.input_tokens >= 100 * len(answers) // 4


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="retry=Retry"):
        chat_model(MODEL, max_retries=3)
    with pytest.raises(ConfigurationError, match="did you mean max_tokens"):
        chat_model(MODEL, max_token=3)
    with pytest.raises(ConfigurationError, match="model_kwargs="):
        chat_model(MODEL, qqqq=3)
    known = {"seed": 1, "user": "u", "reasoning_effort": "low", "extra_body": {"min_p": 0.1}, "timeout": 5}
    chat_model(MODEL, **known, model_kwargs={"min_p": 0.1})
    chat_model("bedrock/some-model", aws_region_name="us-east-1")
    for options in ({"attempts": 0}, {"longest_wait": -1}, {"timeout": "5"}):
        with pytest.raises(ConfigurationError):
            Retry(**options)
