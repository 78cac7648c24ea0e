"""Driving an async generator without an event loop."""

from __future__ import annotations

import asyncio

import pytest

from langgraph_amc.smc import SuspendedError, drive


async def three(log: list[str], wait_at: int = -1):
    try:
        for i in range(3):
            if i == wait_at:
                await asyncio.sleep(0)
            yield i
    finally:
        log.append("closed")


def test_events_come_through_and_the_generator_is_closed():
    log: list[str] = []
    assert list(drive(three(log))) == [0, 1, 2]
    assert log == ["closed"]


def test_an_early_exit_closes_the_generator():
    log: list[str] = []
    events = drive(three(log))
    assert next(events) == 0
    assert log == []
    events.close()
    assert log == ["closed"]


def test_an_exception_of_the_generator_is_its_own():
    async def broken():
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(drive(broken()))


def test_a_wait_is_an_error_that_says_what_to_do_and_still_cleans_up():
    log: list[str] = []
    seen: list[int] = []
    with pytest.raises(SuspendedError, match="async for"):
        seen.extend(drive(three(log, wait_at=1)))
    assert log == ["closed"]


def test_a_clean_up_that_waits_is_tried_to_its_end():
    tried: list[int] = []

    async def stubborn():
        try:
            yield 0
            await asyncio.sleep(0)
        finally:
            for i in range(3):
                try:
                    await asyncio.sleep(0)
                except SuspendedError:
                    tried.append(i)

    with pytest.raises(SuspendedError):
        list(drive(stubborn()))
    assert tried == [0, 1, 2]


def test_a_coroutine_that_takes_no_for_an_answer_does_not_hang():
    async def endless():
        while True:
            try:
                await asyncio.sleep(0)
            except SuspendedError:
                continue
        yield 0

    with pytest.raises(SuspendedError):
        list(drive(endless()))


def test_works_inside_a_running_event_loop():
    async def main():
        return list(drive(three([])))

    assert asyncio.run(main()) == [0, 1, 2]
