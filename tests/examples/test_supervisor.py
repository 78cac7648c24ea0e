"""A supervisor and two workers: particles branch in the middle of a worker's run."""

from __future__ import annotations

import pytest

import langgraph_amc as amc
from langgraph_amc.demo.stand_in import StandIn
from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks
from langgraph_amc.trajectories import Transcript
from tests.examples.readme import EXAMPLES, commands, compared
from tests.examples.test_react import careful

FOLDER = EXAMPLES / "supervisor"
AGENT, SALES, STAND_IN = (str(FOLDER / name) for name in ("agent.py", "sales.py", "office_stand_in.py"))


async def test_who_does_not_slip_answers_and_every_number_can_be_traced() -> None:
    app = load_object(f"{AGENT}:build")(careful(load_object(f"{STAND_IN}:decide")))
    right, traceable = load_reward(f"{SALES}:right"), load_object(f"{SALES}:traceable")
    for task in load_tasks(f"{SALES}:tasks", test=4):
        output = await app.ainvoke(task.input)
        said = tuple(output["messages"])
        assert right(FinishedRun(task, output, said)) == 1.0
        assert traceable(Transcript().render(said)) == 0.9
        assert sum(m.type == "tool" for m in said) == 9


async def test_particles_branch_inside_a_worker() -> None:
    app = load_app(f"{AGENT}:graph")
    better = amc.wrap(
        app, particles=6, value=load_object(f"{SALES}:traceable"), boundary="**/work", resample=amc.every(2), seed=2
    )
    task = load_tasks(f"{SALES}:tasks")[0]
    output = await better.ainvoke(task.input)
    assert len([check for check in output.amc.checks if check.resampled]) >= 2
    assert output["messages"][-1].text.startswith("ANSWER:")
    calls = [c["id"] for m in output["messages"] if m.type == "ai" for c in m.tool_calls]
    assert calls == [m.tool_call_id for m in output["messages"] if m.type == "tool"]


async def test_a_supervisor_that_never_answers_is_stopped() -> None:
    app = load_object(f"{AGENT}:build")(StandIn(decide=lambda messages, rng: "NEXT analyst: go on"))
    said = (await app.ainvoke({"messages": [("user", "hello")]}))["messages"]
    assert len(said) < 20


@pytest.mark.parametrize("words", commands("supervisor"))
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arms = compared(words, monkeypatch, "--limit", "3", "-n", "4")["arms"]
    assert arms["one run"]["observable"]["mean"] < arms["AMC"]["observable"]["mean"]
