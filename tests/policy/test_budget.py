"""Budgets: what is reserved, settled and refused, for any chat model, in tasks and in threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from pydantic import ConfigDict

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy import room as rooms
from langgraph_amc.policy.bounds import MEDIA_TOKENS, chat_request, worst_case
from langgraph_amc.policy.budget import Budget, BudgetExceededError, Price, UnknownPriceError
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.usage import UsageCallback
from langgraph_amc.trajectories.types import Usage
from tests.support.openai_server import OpenAIServer

PROMPT = "a prompt of some length"


class Provider:
    """What really happens at the other end: it bills every call that it has begun."""

    def __init__(self, rng: random.Random, prices: dict[str, Price]) -> None:
        self.rng, self.prices = rng, prices
        self.lock = threading.Lock()
        self.usd, self.tokens, self.calls = 0.0, 0, 0

    def serve(self, name: str, most: int) -> tuple[str, AIMessage]:
        with self.lock:
            fate = self.rng.choices(("answer", "silent", "refuse"), (6, 2, 2))[0]
            self.calls += 1
            if fate == "refuse":
                return fate, AIMessage("")
            new, old = self.rng.randint(0, most), self.rng.randint(1, len(PROMPT))
            self.usd += self.prices[name].of(old, new)
            self.tokens += old + new
        # one byte a token, the worst that a tokenizer can do
        message = AIMessage("x" * new)
        if fate == "answer":
            message.usage_metadata = {"input_tokens": old, "output_tokens": new, "total_tokens": old + new}
        return fate, message


class Cheap:
    """A provider whose answers take two tokens."""

    def serve(self, name: str, most: int) -> tuple[str, AIMessage]:
        return "answer", AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})


class Fake(BaseChatModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    provider: Any
    model: str
    max_tokens: int
    delay: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "fake"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": self.max_tokens}

    def _result(self, fate: str, message: AIMessage) -> ChatResult:
        if fate == "refuse":
            raise RuntimeError("the provider is down")
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        fate, message = self.provider.serve(self.model, self.max_tokens)
        time.sleep(self.delay)
        return self._result(fate, message)

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        fate, message = self.provider.serve(self.model, self.max_tokens)
        await asyncio.sleep(self.delay)
        return self._result(fate, message)


def trial(seed: int) -> tuple[random.Random, Provider, list[Fake], Budget]:
    rng = random.Random(seed)
    prices = {f"m{i}": Price(rng.uniform(0, 20), rng.uniform(0.1, 60)) for i in range(4)}
    provider = Provider(rng, prices)
    models = [
        Fake(provider=provider, model=name, max_tokens=rng.randint(1, 400), delay=rng.choice((0.0, 0.0, 0.002)))
        for name in prices
    ]
    dearest = max(prices[m.model].of(150, m.max_tokens) for m in models)
    return rng, provider, models, Budget(usd=dearest * rng.uniform(0.5, 20), prices=prices)


def check(provider: Provider, account: Any, outcomes: list[Any], budget: Budget) -> None:
    cap = budget.usd + 1e-9
    assert provider.usd <= cap
    assert account.spent.cost <= cap
    assert account.spent.cost >= provider.usd - 1e-9  # nothing that was billed is missing in the books
    assert account.reserved == Usage()
    assert not account.overruns
    refused = sum(isinstance(o, BudgetExceededError) for o in outcomes)
    assert (account.exhausted is not None) == (refused > 0)
    assert account.spent.calls >= provider.calls


@pytest.mark.parametrize("seed", range(100))
async def test_a_money_cap_holds_in_tasks(seed: int) -> None:
    rng, provider, models, budget = trial(seed)

    async def call(i: int) -> Any:
        return await models[i % 4].ainvoke(PROMPT)

    with budget.open() as account:
        tasks = [asyncio.create_task(call(i)) for i in range(64)]
        for task in tasks:
            if rng.random() < 0.1:
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.01), task.cancel)
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    await asyncio.sleep(0)
    check(provider, account, outcomes, budget)


@pytest.mark.parametrize("seed", range(100, 200))
def test_a_money_cap_holds_in_threads(seed: int) -> None:
    _, provider, models, budget = trial(seed)
    with budget.open() as account, ThreadPoolExecutor(64) as pool:
        futures = [pool.submit(contextvars.copy_context().run, models[i % 4].invoke, PROMPT) for i in range(64)]
        outcomes = [f.exception(20) or f.result() for f in futures]
    check(provider, account, outcomes, budget)


async def test_a_money_cap_holds_at_a_real_server() -> None:
    price = Price(3.0, 15.0)
    with OpenAIServer(delay=0.005) as server:
        server.prompt_tokens, server.completion_tokens = 60, 40
        model = chat_model("openai/mine", api_base=server.base_url, api_key="k", max_tokens=200)
        budget = Budget(usd=price.of(60, 40) * 20.5, prices={"mine": price})
        with budget.open() as account:
            found = await asyncio.gather(*[model.ainvoke(f"{PROMPT} {i}") for i in range(64)], return_exceptions=True)
        billed = price.of(*server.billed)
    answers = [a for a in found if isinstance(a, AIMessage)]
    assert len(answers) + sum(isinstance(a, BudgetExceededError) for a in found) == 64
    assert account.spent.cost == pytest.approx(billed)
    assert billed <= budget.usd
    # five worst cases fit at a time: waiting for calls that settle lower lets nearly all of the budget be used
    assert 15 <= len(answers) == len(server.requests) <= 20


def fake(usage: tuple[int, int] | None = (30, 7), text: str = "x", **options: Any) -> Any:
    """A model that answers at once."""

    class Plain(Fake):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            message = AIMessage(text)
            if usage is not None:
                message.usage_metadata = {
                    "input_tokens": usage[0],
                    "output_tokens": usage[1],
                    "total_tokens": sum(usage),
                }
            return ChatResult(generations=[ChatGeneration(message=message)])

        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            return self._generate()

        def _stream(self, *args: Any, **kwargs: Any) -> Any:
            for part in text:
                yield ChatGenerationChunk(message=AIMessageChunk(part))

    return Plain(**{"provider": None, "model": "mine", "max_tokens": 50} | options)


MINE = {"mine": Price(2.0, 8.0)}


async def test_every_way_to_call_a_model_is_charged_and_refused() -> None:
    model = fake()

    async def astream() -> list[Any]:
        return [chunk async for chunk in model.astream(PROMPT)]

    async def sync_in_a_loop() -> Any:
        return model.invoke(PROMPT)

    ways = [
        lambda: asyncio.to_thread(model.invoke, PROMPT),
        lambda: model.ainvoke(PROMPT),
        lambda: asyncio.to_thread(lambda: list(model.stream(PROMPT))),
        astream,
        sync_in_a_loop,
        lambda: RunnableLambda(lambda x: model.invoke(x)).ainvoke(PROMPT),
        lambda: asyncio.to_thread(model.batch, [PROMPT]),
    ]
    for way in ways:
        with Budget(calls=2).open() as account:
            await way()
            assert account.spent.calls == 1
            await way()
            with pytest.raises(BudgetExceededError) as refused:
                await way()
        assert (refused.value.limit, refused.value.allowed, refused.value.spent) == ("calls", 2, 2)
        assert account.exhausted == "calls: a call of mine did not fit into 2 calls"
        assert account.reserved == Usage()


def test_a_refused_call_is_never_made() -> None:
    provider = Provider(random.Random(0), MINE)
    with Budget(tokens=60).open(), pytest.raises(BudgetExceededError, match="60 tokens"):
        Fake(provider=provider, model="mine", max_tokens=50).invoke(PROMPT)
    assert provider.calls == 0


def test_settled_usage_is_what_was_reported_at_the_given_price() -> None:
    with Budget(usd=1, prices=MINE).open() as account:
        fake().invoke(PROMPT)
    assert account.spent == Usage(1, 30, 7, pytest.approx((30 * 2 + 7 * 8) / 1e6))
    assert account.remaining("usd") == pytest.approx(1 - account.spent.cost)
    assert account.remaining("tokens") is None


def test_an_answer_without_usage_is_bounded_by_its_bytes() -> None:
    with Budget(usd=1, prices=MINE).open() as account:
        fake(usage=None, text="ü" * 10).invoke(PROMPT)
    assert len(PROMPT) <= account.spent.input_tokens <= len(PROMPT) + 200
    assert 20 <= account.spent.output_tokens <= 60


def test_more_than_reserved_is_booked_and_noted() -> None:
    with Budget(tokens=1000).open() as account:
        fake(usage=(30, 700)).invoke(PROMPT)
    assert account.spent.tokens == 730
    assert "730 tokens" in account.overruns[0]


def test_an_unknown_price_is_an_error_before_the_call() -> None:
    provider = Provider(random.Random(0), MINE)
    model = Fake(provider=provider, model="nobody-knows", max_tokens=5)
    with Budget(usd=1).open(), pytest.raises(UnknownPriceError, match="nobody-knows"):
        model.invoke(PROMPT)
    assert provider.calls == 0
    with Budget(usd=1, prices={"*": Price(1, 1)}).open() as account:
        fake(model="nobody-knows").invoke(PROMPT)
        fake(model="amc-local/some/path").invoke(PROMPT)
    assert account.spent.cost == pytest.approx(37 / 1e6)
    with Budget(tokens=1000).open() as account:
        fake(model="nobody-knows").invoke(PROMPT)
    assert account.spent.cost is None


def test_without_a_longest_answer_there_is_no_bound() -> None:
    request = chat_request([HumanMessage(PROMPT)], {"model": "nobody-knows"})
    with pytest.raises(ConfigurationError, match="output_tokens"):
        worst_case(request, Budget(tokens=10))
    assert worst_case(request, Budget(tokens=10, output_tokens=9)).output_tokens == 9
    assert worst_case(request, Budget(calls=10)).output_tokens == 0
    known = chat_request([HumanMessage(PROMPT)], {"model": "openai/gpt-4o-mini"})
    assert worst_case(known, Budget(tokens=10)).output_tokens == 16384
    several = chat_request([HumanMessage(PROMPT)], {"model": "gpt-4o-mini", "max_tokens": 10, "n": 3})
    assert worst_case(several, Budget(usd=1)).output_tokens == 30


@tool
def search(query: str) -> str:
    """Search the notes."""
    return query


def test_the_bound_covers_tools_media_and_tool_calls() -> None:
    call = {"name": "search", "args": {"query": "q" * 500}, "id": "1"}
    bare = chat_request([HumanMessage(PROMPT)], {})
    assert chat_request([AIMessage("", tool_calls=[call])], {}).input_tokens > 500
    picture = HumanMessage([{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": "data:"}}])
    assert chat_request([picture], {}).input_tokens > MEDIA_TOKENS + len(PROMPT)
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 900}}]
    assert chat_request([HumanMessage(PROMPT)], {"tools": tools}).input_tokens > bare.input_tokens + 1900


def test_bound_tools_reach_the_reservation() -> None:
    with OpenAIServer() as server:
        model = chat_model("openai/gpt-4o-mini", api_base=server.base_url, api_key="k", max_tokens=10)
        with Budget(tokens=600).open() as account:
            model.invoke(PROMPT)
            with pytest.raises(BudgetExceededError) as refused:
                model.bind_tools([search]).invoke(PROMPT)
    assert refused.value.asked > 1024
    assert account.spent.tokens == 110


def test_nested_accounts_charge_all_and_each_may_refuse() -> None:
    with Budget(calls=3).open() as outer:
        with Budget(calls=2).open() as first:
            fake().invoke(PROMPT)
            fake().invoke(PROMPT)
            with pytest.raises(BudgetExceededError) as refused:
                fake().invoke(PROMPT)
        assert refused.value.allowed == 2
        assert (outer.spent.calls, first.spent.calls, outer.exhausted) == (2, 2, None)
        with Budget(calls=9, usd=1, prices=MINE).open() as second:
            fake().invoke(PROMPT)
            with pytest.raises(BudgetExceededError) as refused:
                fake().invoke(PROMPT)
        assert refused.value.allowed == 3
        assert (outer.spent.calls, second.spent.calls, second.reserved) == (3, 1, Usage())
        second.book(Usage(1, 5, 5, 0.5))
        assert (outer.spent.tokens, second.spent.tokens, first.spent.tokens) == (3 * 37 + 10, 47, 74)
    fake().invoke(PROMPT)
    assert outer.spent.calls == 4  # three and what was booked: outside nothing is charged


async def test_nested_accounts_in_a_chain_of_runnables() -> None:
    model = fake()

    async def inner(x: str, config: Any) -> Any:
        with Budget(calls=1).open():
            await model.ainvoke(x, config)
            return await model.ainvoke(x, config)

    with Budget(calls=9).open() as outer:
        with pytest.raises(BudgetExceededError):
            await RunnableLambda(inner).ainvoke(PROMPT)
        assert outer.spent.calls == 1
        assert outer.reserved == Usage()


@pytest.mark.parametrize("inner", [Budget(usd=1), Budget(calls=0)])
async def test_what_an_inner_account_refuses_is_not_held_by_the_outer_one(inner: Budget) -> None:
    model = fake()
    outer = Budget(calls=9).open()
    config: Any = {"callbacks": list(outer.handlers)}  # asked first
    with outer, inner.open():
        for call in (lambda: model.ainvoke(PROMPT, config), lambda: asyncio.to_thread(model.invoke, PROMPT, config)):
            with pytest.raises((UnknownPriceError, BudgetExceededError)):
                await call()
            assert (outer.reserved, outer.spent) == (Usage(), Usage())


def test_handlers_charge_without_a_context() -> None:
    account = Budget(calls=1).open()
    config: Any = {"callbacks": list(account.handlers)}
    fake().invoke(PROMPT, config)
    with pytest.raises(BudgetExceededError):
        fake().invoke(PROMPT, config)
    with pytest.raises(BudgetExceededError):
        asyncio.run(fake().ainvoke(PROMPT, config))
    assert account.spent.calls == 1
    with account.active(), pytest.raises(BudgetExceededError):
        fake().invoke(PROMPT, config)
    assert account.spent.calls == 1


async def test_a_call_waits_for_room_and_is_refused_when_none_can_come() -> None:
    provider = Provider(random.Random(0), MINE)
    slow = Fake(provider=provider, model="mine", max_tokens=100, delay=0.05)
    room = worst_case(chat_request([HumanMessage(PROMPT)], {"model": "mine", "max_tokens": 100}), Budget()).tokens
    with Budget(tokens=int(room * 1.2)).open() as account:
        tasks = [asyncio.create_task(slow.ainvoke(PROMPT)) for _ in range(2)]
        await asyncio.sleep(0.02)
        assert provider.calls == 1  # the second waits
        results = await asyncio.gather(*tasks, return_exceptions=True)
    low = Fake(provider=Cheap(), model="mine", max_tokens=100, delay=0.02)
    with Budget(tokens=int(room * 1.2)).open() as cheap:
        assert len(await asyncio.gather(*[low.ainvoke(PROMPT) for _ in range(5)])) == 5
    assert cheap.exhausted is None
    served = [r for r in results if not isinstance(r, BudgetExceededError)]
    assert len(served) == provider.calls >= 1
    assert account.spent.tokens <= room * 1.2
    with Budget(tokens=int(room * 2.9)).open() as account:
        started = time.monotonic()
        # a sync call on the loop's own thread cannot wait for that loop
        tasks = [asyncio.create_task(slow.ainvoke(PROMPT)) for _ in range(2)]
        await asyncio.sleep(0.02)
        with pytest.raises(BudgetExceededError):
            slow.invoke(PROMPT)
        assert time.monotonic() - started < 1
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_whoever_holds_a_call_open_does_not_wait_for_himself() -> None:
    model = fake(text="xxxx")
    need = worst_case(chat_request([HumanMessage(PROMPT)], {"model": "mine", "max_tokens": 50}), Budget()).tokens
    with Budget(tokens=int(need * 1.5)).open():

        async def both() -> None:
            async for _ in model.astream(PROMPT):
                await model.ainvoke(PROMPT)

        async with asyncio.timeout(5):
            found = await asyncio.gather(both(), both(), return_exceptions=True)
    assert [type(f) for f in found] == [BudgetExceededError] * 2


async def test_a_call_made_below_an_open_stream_does_not_wait_for_it() -> None:
    model = fake(text="xxxx")
    need = worst_case(chat_request([HumanMessage(PROMPT)], {"model": "mine", "max_tokens": 50}), Budget()).tokens

    async def in_a_task() -> None:
        async for _ in model.astream(PROMPT):
            await asyncio.gather(model.ainvoke(PROMPT))

    def in_a_thread() -> None:
        for _ in model.stream(PROMPT):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, model.invoke, PROMPT).result()

    async def behind_another() -> None:
        async for _ in model.astream(PROMPT):
            await model.ainvoke("a")
            await asyncio.gather(model.ainvoke(PROMPT))

    for room in (1.5, 2.5):  # with 2.5 two streams are open, and the child of each waits for the other's
        for way in (in_a_task, lambda: asyncio.to_thread(in_a_thread)):
            with Budget(tokens=int(need * room)).open() as account:
                async with asyncio.timeout(10):
                    found = await asyncio.gather(way(), way(), return_exceptions=True)
            assert BudgetExceededError in [type(f) for f in found]
            assert all(f is None or isinstance(f, BudgetExceededError) for f in found)
            assert account.spent.tokens <= need * room
    with Budget(tokens=need + 140).open(), pytest.raises(BudgetExceededError):
        async with asyncio.timeout(10):
            await behind_another()


async def test_a_cancelled_call_stays_charged_at_its_worst() -> None:
    provider = Provider(random.Random(0), MINE)
    slow = Fake(provider=provider, model="mine", max_tokens=100, delay=30)
    with Budget(tokens=1000).open() as account:
        task = asyncio.create_task(slow.ainvoke(PROMPT))
        await asyncio.sleep(0.01)
        held = account.reserved
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert account.spent == held
        assert account.reserved == Usage()


def test_a_call_that_ran_out_of_time_stays_charged_and_a_failed_one_counts() -> None:
    class Late(Fake):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise TimeoutError("too slow")

    class Down(Fake):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise RuntimeError("down")

    with Budget(tokens=1000).open() as account:
        with pytest.raises(RuntimeError):
            Down(provider=None, model="mine", max_tokens=50).invoke(PROMPT)
        assert account.spent == Usage(1)
        with pytest.raises(TimeoutError):
            Late(provider=None, model="mine", max_tokens=50).invoke(PROMPT)
    assert account.spent.calls == 2
    assert account.spent.output_tokens == 50


def test_a_call_nobody_ends_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "PATIENCE", 0.05)
    provider = Provider(random.Random(0), MINE)
    slow = Fake(provider=provider, model="mine", max_tokens=100, delay=0.5)
    with Budget(tokens=260).open():
        thread = threading.Thread(target=contextvars.copy_context().run, args=(slow.invoke, PROMPT))
        thread.start()
        while not provider.calls:
            time.sleep(0.005)
        with pytest.raises(BudgetExceededError):
            slow.invoke(PROMPT)
        thread.join()


@pytest.mark.filterwarnings("error")
async def test_a_refusal_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests left behind warns before, not within
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with Budget(calls=0).open():
            for _ in range(3):
                with pytest.raises(BudgetExceededError):
                    await fake().ainvoke(PROMPT)
        gc.collect()
    assert [w for w in seen if "never awaited" in str(w.message)] == []


def test_an_account_prices_models_as_it_charges_them() -> None:
    prices = {"openai/mine": Price(2.0, 8.0, cached=1.0), "*": Price(1.0, 1.0)}
    with Budget(calls=9, prices={"theirs": Price(3.0, 3.0)}).open(), Budget(usd=1, prices=prices).open() as account:
        assert account.price(["mine"], 100, 10, 40) == pytest.approx((60 * 2 + 40 + 80) / 1e6)
        assert account.price(["openai/mine"], 0, 10) == pytest.approx(80 / 1e6)
        assert account.price(["no-table-knows"], 0, 10) == pytest.approx(10 / 1e6)
        assert account.price(["not-in-a-table", "gpt-4o-mini"], 0, 10) is None
        counted = UsageCallback(account.price)
        fake().invoke(PROMPT, {"callbacks": [counted]})
        fake(model="no-table-knows").invoke(PROMPT, {"callbacks": [counted]})
    assert counted.usage == account.spent


def test_seconds_and_restoring() -> None:
    account = Budget(seconds=10, calls=3).open()
    account.restore(Usage(2, 10, 10, 0.0), seconds=9.0)
    with account:
        fake().invoke(PROMPT)
        with pytest.raises(BudgetExceededError, match="3 calls"):
            fake().invoke(PROMPT)
        account.restore(Usage(), seconds=2.0)
        assert account.deadline < time.monotonic()
        assert account.remaining("seconds") == 0
        with pytest.raises(BudgetExceededError, match="10 seconds"):
            fake().invoke(PROMPT)


def test_an_answer_from_langchains_cache_costs_nothing() -> None:
    model = fake(cache=InMemoryCache())
    with Budget(usd=1, prices=MINE).open() as account:
        model.invoke("same")
        model.invoke("same")
    assert account.spent.calls == 2
    assert account.spent.tokens == 37


@pytest.mark.parametrize(
    "options",
    [
        {"usd": 0},
        {"usd": float("nan")},
        {"tokens": 1.5},
        {"calls": True},
        {"seconds": "9"},
        {"prices": {"m": 3}},
        {"prices": {3: Price(1, 1)}},
        {"prices": None},
        {"prices": 5},
        {"prices": []},
        {"output_tokens": 0},
    ],
)
def test_nonsense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Budget(**options)


def test_nonsense_prices_are_refused() -> None:
    for wrong in ((-1, 2), (None, 1), (1, None), ("1", 1), (1, 1, -1)):
        with pytest.raises(ConfigurationError):
            Price(*wrong)  # type: ignore[arg-type]
    assert Price(1.0, 2.0, cached=0.5).of(100, 10, 40) == pytest.approx((60 + 20 + 20) / 1e6)
