"""Limits per provider key: concurrency, requests and tokens per minute, for threads and several event loops."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy import limiter as limiter_module
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.limiter import Limiter, Limits, limiter_for
from tests.support.openai_server import OpenAIServer

WINDOW = 0.4


@pytest.fixture
def short_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "MINUTE", WINDOW)


class Work:
    """Notes who is at work together, and when each began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.began: list[float] = []

    def begin(self) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.began.append(time.monotonic())

    def end(self) -> None:
        with self.lock:
            self.running -= 1


def in_threads_and_loops(limiter: Limiter, work: Work, each: int, tokens: int = 0, busy: float = 0.005) -> None:
    """Use a limiter from two event loops and four threads at once."""

    def sync() -> None:
        for _ in range(each):
            with limiter.turn(tokens):
                work.begin()
                time.sleep(busy)
                work.end()

    async def one() -> None:
        async with limiter.aturn(tokens):
            work.begin()
            await asyncio.sleep(busy)
            work.end()

    async def loop() -> None:
        await asyncio.gather(*[one() for _ in range(2 * each)])

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(sync) for _ in range(4)] + [pool.submit(asyncio.run, loop()) for _ in range(2)]
        for job in jobs:
            job.result(30)


def test_two_loops_and_threads_share_the_concurrency() -> None:
    limiter, work = Limiter(Limits(concurrency=3)), Work()
    in_threads_and_loops(limiter, work, 10)
    assert len(work.began) == 80
    assert work.most == 3
    assert limiter.waited > 0


def most_within(began: list[float], window: float) -> int:
    times = sorted(began)
    return max(sum(t <= u < t + window for u in times) for t in times)


@pytest.mark.usefixtures("short_minute")
def test_requests_per_minute_hold_in_any_window() -> None:
    limiter, work = Limiter(Limits(requests_per_minute=10)), Work()
    in_threads_and_loops(limiter, work, 4)
    assert len(work.began) == 32
    assert most_within(work.began, WINDOW * 0.9) <= 10
    assert max(work.began) - min(work.began) >= 3 * WINDOW * 0.95


@pytest.mark.usefixtures("short_minute")
def test_tokens_per_minute_hold_and_are_corrected_when_known() -> None:
    limiter, work = Limiter(Limits(tokens_per_minute=100)), Work()
    in_threads_and_loops(limiter, work, 2, tokens=20)
    assert most_within(work.began, WINDOW * 0.9) <= 5
    started = time.monotonic()
    fresh = Limiter(Limits(tokens_per_minute=100))
    for _ in range(10):
        with fresh.turn(90) as turn:
            turn.tokens = 1
    assert time.monotonic() - started < WINDOW
    with fresh.turn(1000):  # more than a minute's worth goes alone, late
        assert time.monotonic() - started >= WINDOW * 0.95


def test_turns_come_in_order_and_the_cancelled_leave_the_queue() -> None:
    limiter = Limiter(Limits(concurrency=1))
    order: list[int] = []

    async def one(i: int) -> None:
        async with limiter.aturn():
            order.append(i)
            await asyncio.sleep(0.002)

    async def main() -> None:
        tasks = []
        for i in range(8):
            tasks.append(asyncio.create_task(one(i)))
            await asyncio.sleep(0)
        for i in (0, 3, 5):
            tasks[i].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    asyncio.run(main())
    assert order == [0, 1, 2, 4, 6, 7]


def test_a_pause_holds_everybody() -> None:
    limiter, work = Limiter(Limits()), Work()
    limiter.pause(0.2)
    started = time.monotonic()
    in_threads_and_loops(limiter, work, 1)
    assert min(work.began) - started >= 0.2


def test_one_limiter_for_a_key_with_the_lower_limits() -> None:
    first = limiter_for("test", "http://one", "key", Limits(concurrency=5, requests_per_minute=10))
    same = limiter_for("test", "http://one", "key", Limits(concurrency=8, tokens_per_minute=7))
    assert first is same
    assert same.limits == Limits(5, 10, 7)
    assert limiter_for("test", "http://one", "other") is not first
    assert limiter_for("test", None, "key") is not first
    assert "key" not in repr(limiter_module._limiters)


async def test_models_on_one_key_share_their_limits_over_the_wire() -> None:
    with OpenAIServer(delay=0.01) as server:
        options: dict[str, Any] = {"api_base": server.base_url, "api_key": "k"}
        limited = chat_model("openai/gpt-4o-mini", limits=Limits(concurrency=2), **options)
        other = chat_model("openai/gpt-4o", **options)
        other_key = chat_model("openai/gpt-4o", **{**options, "api_key": "another"})

        def threads() -> None:
            with ThreadPoolExecutor(6) as pool:
                calls = [pool.submit(contextvars.copy_context().run, limited.invoke, f"{i}") for i in range(6)]
                [c.result() for c in calls]

        await asyncio.gather(
            asyncio.to_thread(threads),
            asyncio.to_thread(lambda: asyncio.run(_all(other, 6))),
            _all(limited, 6),
            *[_drain(other, f"s{i}") for i in range(4)],
        )
        assert len(server.requests) == 22
        assert server.most_running == 2
        await asyncio.gather(_all(other_key, 6), _all(limited, 4))
        assert server.most_running > 2


def test_limits_hold_from_the_moment_a_model_states_them() -> None:
    where: dict[str, Any] = {"api_base": "http://127.0.0.1:9", "api_key": "stated"}
    chat_model("openai/gpt-4o-mini", limits=Limits(concurrency=2), **where)
    assert limiter_for("openai", where["api_base"], "stated").limits.concurrency == 2


async def _all(model: Any, count: int) -> None:
    await asyncio.gather(*[model.ainvoke(f"a{i}") for i in range(count)])


async def _drain(model: Any, prompt: str) -> None:
    async for _ in model.astream(prompt):
        pass


@pytest.mark.usefixtures("short_minute")
async def test_requests_per_minute_over_the_wire() -> None:
    with OpenAIServer() as server:
        limits = Limits(requests_per_minute=4)
        model = chat_model("openai/gpt-4o-mini", api_base=server.base_url, api_key="k", limits=limits)
        await _all(model, 12)
        arrivals = sorted(server.arrivals)
    assert most_within(arrivals, WINDOW * 0.75) <= 4
    assert all(a <= b for a, b in pairwise(arrivals))
    assert arrivals[-1] - arrivals[0] >= 2 * WINDOW * 0.75


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"requests_per_minute": 1.5}, {"tokens_per_minute": True}])
def test_nonsense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**options)
