"""Stragglers do not stall a check, and are there again at a later one."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import langgraph_amc as amc
from langgraph_amc.context import current_particle
from langgraph_amc.smc import Quorum, quorum
from tests.runtime.support import ASK, Roots, agent, by_digits, call, number, other_tasks, seeded, texts, turn_of

ROUNDS = 3


class Pace:
    """A policy whose particle p0 takes ``seconds`` for its first step, or until another is asked for its n-th one."""

    def __init__(self, seconds: float = 20.0, *, until: int = 1000, rounds: int = ROUNDS) -> None:
        self.seconds, self.until, self.rounds = seconds, until, rounds
        self.asked: list[tuple[str, int]] = []
        self.others = threading.Event()

    def reply(self, messages: Any) -> AIMessage:
        answer, slow = self._answer(messages)
        if slow:
            self.others.wait(self.seconds)
        return answer

    async def areply(self, messages: Any) -> AIMessage:
        answer, slow = self._answer(messages)
        end = time.monotonic() + self.seconds
        while slow and time.monotonic() < end and not self.others.is_set():  # noqa: ASYNC110 - threads set it
            await asyncio.sleep(0.01)
        return answer

    def _answer(self, messages: Any) -> tuple[AIMessage, bool]:
        particle = current_particle.get()
        assert particle is not None
        turn, n = turn_of(messages), number(len(messages))
        self.asked.append((particle.particle, turn))
        if particle.particle != "p0" and turn >= self.until:
            self.others.set()
        answer = call("note", turn, n=n) if turn < self.rounds else AIMessage(f"answer {n}")
        return answer, turn == 0 and particle.particle == "p0"


async def invoke(pace: Pace, sync: bool, config: Any = None, **settings: Any) -> Any:
    how = {"particles": 5, "value": by_digits, "resample": amc.every(1), "quorum": 0.8, "seed": 3, **settings}
    app = amc.wrap(agent(pace.reply if sync else pace.areply), **how)
    return await asyncio.to_thread(app.invoke, ASK, config) if sync else await app.ainvoke(ASK, config)


@pytest.mark.parametrize("sync", [True, False])
async def test_a_straggler_is_not_waited_for(sync: bool) -> None:
    roots, pace = Roots(), Pace(until=ROUNDS)
    result = (await invoke(pace, sync, {"callbacks": [roots]})).amc
    assert pace.others.is_set(), "the others come to their last step while p0 is in its first"
    assert pace.asked.index(("p0", 1)) > max(
        pace.asked.index(a) for a in pace.asked if a[1] == ROUNDS - 1 and a[0] != "p0"
    )
    first = result.checks[0]
    assert "p0" not in first.particles
    assert len(first.particles) == 4
    assert len(first.ancestors) == 4
    (straggler,) = [p for p in result.particles if p.name == "p0"]
    assert straggler.trajectory.status == "finished"
    assert not roots.errors
    assert not other_tasks()
    assert not [t for t in threading.enumerate() if t.name.startswith("amc-particle")]


@pytest.mark.parametrize("sync", [True, False])
async def test_it_is_compared_again_when_it_has_caught_up(sync: bool) -> None:
    result = (await invoke(Pace(until=2, rounds=8), sync, quorum=quorum(0.8, seconds=0.2))).amc
    compared = [check.particles for check in result.checks]
    assert "p0" not in compared[0]
    assert any("p0" in names for names in compared[1:])


async def test_nobody_is_late_where_all_are_alike() -> None:
    result = (await invoke(Pace(0.01), False, quorum=quorum(0.8, seconds=20))).amc
    assert all(len(check.particles) == 5 for check in result.checks)


async def test_without_late_ones_it_is_the_run_without_a_quorum() -> None:
    app = agent(seeded())
    how = {"particles": 5, "value": by_digits, "resample": amc.every(1), "seed": 3}
    plain = (await amc.wrap(app, **how).ainvoke(ASK)).amc
    patient = (await amc.wrap(app, **how, quorum=quorum(1.0)).ainvoke(ASK)).amc
    assert [c.ancestors for c in patient.checks] == [c.ancestors for c in plain.checks]
    assert [t.segments for t in patient.trajectories] == [t.segments for t in plain.trajectories]


async def test_in_a_sample_late_weights_stay_as_they_were() -> None:
    result = (await invoke(Pace(0.6), False, objective="sample", beta=1.0, tau=None, value=by_digits)).amc
    assert len(result.particles) == 5
    assert result.log_evidence is not None


@pytest.mark.parametrize("sync", [True, False])
async def test_a_deadline_still_ends_everybody(sync: bool) -> None:
    pace = Pace(1.5)
    began = time.monotonic()
    result = (await invoke(pace, sync, budget=amc.Budget(seconds=0.6))).amc
    assert time.monotonic() - began < 4
    statuses = {p.name: p.trajectory.status for p in result.particles}
    assert statuses["p0"] == "truncated"


@pytest.mark.parametrize("sync", [True, False])
async def test_an_error_of_the_run_ends_all_flights(sync: bool) -> None:
    def value(transcripts: Any) -> list[float]:
        raise OSError("the judge is away")

    with pytest.raises(OSError, match="away"):
        await invoke(Pace(0.6), sync, value=value)
    assert not other_tasks()
    assert not [t for t in threading.enumerate() if t.name.startswith("amc-particle")]


async def test_a_cancelled_run_leaves_nobody() -> None:
    task = asyncio.create_task(invoke(Pace(5.0), False))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not other_tasks()


@pytest.mark.parametrize("sync", [True, False])
async def test_with_a_journal_a_broken_run_goes_on(tmp_path: Any, sync: bool) -> None:
    asked = [0]

    def value(transcripts: Any) -> list[float]:
        asked[0] += 1
        if asked[0] == 2:
            raise OSError("the judge is away")
        return by_digits(transcripts)

    first, again = Pace(0.5), Pace(0.5)
    with pytest.raises(OSError, match="away"):
        await invoke(first, sync, value=value, journal=tmp_path / "runs")
    out = await invoke(again, sync, value=value, journal=tmp_path / "runs")
    assert len(texts(out)) == 2 * ROUNDS + 2
    assert {p.name for p in out.amc.particles} >= {"p0"}
    answered = {(name, turn) for name, turn in first.asked if turn == 0 and name != "p0"}
    assert not answered & set(again.asked), "an answer was paid twice"


def test_what_a_quorum_may_be() -> None:
    assert amc.wrap(agent(seeded()), quorum=0.9)._amc_settings.quorum == Quorum(0.9)
    for wrong in (0, 2.0, "0.8", True):
        with pytest.raises(amc.ConfigurationError, match="quorum"):
            amc.wrap(agent(seeded()), quorum=wrong)
