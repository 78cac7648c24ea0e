"""The integration as it is found, and its agent: plain, and as particles whose worlds branch with them."""

from __future__ import annotations

from typing import Any

import langgraph_amc_textcraft as textcraft
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.pregel import Pregel
from langgraph_amc_textcraft import build, load_book, plan, read_action, solved, tasks

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, TaskFamily, available, load_app, load_integration, load_reward, load_tasks

GOAL = "oak_boat"
PLAN = plan(load_book(), GOAL)


class Planner(BaseChatModel):
    """Follows the plan: the next action is the first that has not been answered with success yet.

    As particles, all but the first look into their bags until ``idle`` steps have passed.
    """

    idle: int = 0

    @property
    def _llm_type(self) -> str:
        return "planner"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        observations = [message.text for message in messages[2:] if message.type == "human"]
        made = sum(text.startswith(("Got", "Crafted")) for text in observations)
        particle = amc.current_particle.get()
        idle = particle is not None and particle.particle != "p0" and len(observations) < self.idle
        action = "inventory" if idle else PLAN[made]
        message = AIMessage(f"Thought: onwards.\nAction: {action}")
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_it_is_found_by_its_entry_point() -> None:
    assert available()["textcraft"].value == "langgraph_amc_textcraft"
    assert load_integration("textcraft") is textcraft
    assert isinstance(textcraft, TaskFamily)


def test_its_name_stands_for_it_in_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_tasks("textcraft:tasks") == tasks()
    assert load_tasks("textcraft:tasks", min_depth=4) == tasks(min_depth=4)
    assert load_reward("textcraft:solved").function is solved
    monkeypatch.setenv("TEXTCRAFT_MODEL", "openai/some-model")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(load_app("textcraft:graph"), Pregel)
    monkeypatch.delenv("TEXTCRAFT_MODEL")
    with pytest.raises(ConfigurationError, match="TEXTCRAFT_MODEL"):
        load_app("textcraft:graph")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Thought: wood.\nAction: get 1 oak logs", "get 1 oak logs"),
        ("Action: inventory\nAction: get 2 coal.\nObservation: Got 2 coal", "get 2 coal"),
        ("Action:\n`craft 4 stick using 2 oak planks`", "craft 4 stick using 2 oak planks"),
        ("I fetch it.\nget 1 coal", "get 1 coal"),
        ("Action:", ""),
        ("", ""),
    ],
)
def test_the_action_is_read_out_of_a_reply(reply: str, action: str) -> None:
    assert read_action(reply) == action


async def test_the_agent_solves_a_task_sync_and_async() -> None:
    app, task = build(Planner()), tasks().get(f"textcraft-{GOAL}")
    for output in (app.invoke(task.input), await app.ainvoke(task.input)):
        assert solved(FinishedRun(task, output)) == 1.0
        assert [read_action(m.text) for m in output["messages"] if m.type == "ai"] == PLAN
        assert output["messages"][-1].text == "Crafted 1 minecraft:oak_boat"


def test_an_unsolved_run_earns_nothing() -> None:
    app = build(Planner())
    output = app.invoke({"task": {"goal": GOAL, "step_limit": 2}})
    assert solved(FinishedRun(None, output)) == 0.0
    assert "2 actions in all" in output["messages"][0].text


def progress(transcript: str) -> float:
    return min(1.0, 0.2 * (transcript.count("Got ") + transcript.count("Crafted ")))


async def test_worlds_branch_with_their_particles() -> None:
    # One particle works, two dawdle: after the first check all go on from the worker's world.
    better = amc.wrap(
        build(Planner(idle=2)), particles=3, value=progress, resample=amc.at(2), tau=0.01, select="argmax", seed=0
    )
    task = {"task": {"goal": GOAL, "step_limit": len(PLAN)}}
    for output in (better.invoke(task), await better.ainvoke(task)):
        record = output.amc
        assert any(check.resampled for check in record.checks)
        assert len(record.particles) == 3
        for report in record.particles:
            # just enough steps for the plan: a world that had not been branched could not finish in time
            assert solved(FinishedRun(None, report.output)) == 1.0, report.name
            actions = [read_action(m.text) for m in report.output["messages"] if m.type == "ai"]
            assert actions == PLAN
        assert solved(FinishedRun(None, output)) == 1.0
