"""The agent: plain, and as particles whose worlds branch with them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph_amc_scienceworld import ScienceWorld, build, score, signed_score, solved

import langgraph_amc as amc
from langgraph_amc.tasks import FinishedRun, WorldPool, read_action

pytestmark = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="ScienceWorld's simulator needs Java"
)

TASK = {"name": "find-non-living-thing", "variation": 183}


class Scripted(BaseChatModel):
    """Goes on with its plan after what has been done of it; as particles, all but the first dawdle at first."""

    plan: list[str]
    idle: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        taken = [read_action(message.text) for message in messages if message.type == "ai"]
        particle = amc.current_particle.get()
        idle = particle is not None and particle.particle != "p0" and len(taken) < self.idle
        done = len(taken) - taken.count("inventory")
        action = "inventory" if idle else self.plan[done]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Thought: onwards.\nAction: {action}"))])


@pytest.fixture(scope="module")
def pool() -> Iterator[WorldPool]:
    with WorldPool(ScienceWorld, size=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def plan() -> list[str]:
    world = ScienceWorld()
    try:
        return world.gold(TASK)
    finally:
        world.close()


async def test_the_agent_solves_a_task_sync_and_async(pool: WorldPool, plan: list[str]) -> None:
    app = build(Scripted(plan=plan), pool)
    for output in (app.invoke({"task": TASK}), await app.ainvoke({"task": TASK})):
        run = FinishedRun(None, output)
        assert (score(run), signed_score(run), solved(run)) == (1.0, 1.0, 1.0)
        assert output["total"] == pytest.approx(1.0)
        assert [read_action(message.text) for message in output["messages"] if message.type == "ai"] == plan
        assert "Your task is to find a(n) non-living thing" in output["messages"][1].text


def test_a_failed_task_counts_0_and_minus_1_in_the_papers_way(pool: WorldPool) -> None:
    output = build(Scripted(plan=["focus on door to kitchen"]), pool).invoke({"task": {"name": "boil"}})
    run = FinishedRun(None, output)
    assert (score(run), signed_score(run), solved(run)) == (0.0, -1.0, 0.0)
    assert (output["steps"], output["done"]) == (1, True)


def progress(transcript: str) -> float:
    return 0.0 if "In your inventory" in transcript else 1.0


def test_worlds_branch_with_their_particles(pool: WorldPool, plan: list[str]) -> None:
    # One particle works, two dawdle: after the first check all go on from the worker's world.
    better = amc.wrap(
        build(Scripted(plan=plan, idle=2), pool),
        particles=3,
        value=progress,
        resample=amc.at(2),
        tau=0.01,
        select="argmax",
        seed=0,
    )
    # Just enough steps for the plan: a world that had not been branched could not finish in time.
    output = better.invoke({"task": {**TASK, "step_limit": len(plan)}})
    record = output.amc
    assert any(check.resampled for check in record.checks)
    assert len(record.particles) == 3
    for report in record.particles:
        assert solved(FinishedRun(None, report.output)) == 1.0, report.name
        assert [read_action(message.text) for message in report.output["messages"] if message.type == "ai"] == plan
    assert solved(FinishedRun(None, output)) == 1.0
    assert len(pool) == 2
