"""The integration as it is found, and its agent on a server: plain, as particles, cancelled, and crashed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import langgraph_amc_agentgym as agentgym
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.pregel import Pregel
from langgraph_amc_agentgym import DIALECTS, AgentGymWorld, Server, build, open_worlds, score, solved, tasks

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, TaskFamily, available, load_app, load_integration, load_reward, load_tasks
from langgraph_amc.tasks import read_action as action_of


def task(index: int, kind: str = "textcraft") -> dict[str, Any]:
    return {"task": {"server": kind, "index": index}}


class Walker(BaseChatModel):
    """Goes right to the end. As particles, all but the first look about until ``idle`` answers have come.

    ``breaks``: raise at this turn. ``naps``: seconds of thought.
    """

    idle: int = 0
    breaks: int = 0
    naps: float = 0.0
    whole: bool = False

    @property
    def _llm_type(self) -> str:
        return "walker"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        time.sleep(self.naps)
        turn = sum(message.type == "ai" for message in messages) + 1
        if turn == self.breaks:
            raise ValueError("the model broke")
        particle = amc.current_particle.get()
        idle = particle is not None and particle.particle != "p0" and turn <= self.idle
        action = f"look {particle.particle}" if idle and particle else "right"
        reply = f"<search>{action}</search>" if self.whole else f"Thought: onwards.\nAction: {action}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply))])


def walked(transcript: str) -> float:
    return min(1.0, 0.2 * transcript.count("Action: right"))


def played(output: Any) -> tuple[list[str], list[str]]:
    """A run's actions, and what it saw."""
    messages = output["messages"][1:]
    return [action_of(m.text) for m in messages if m.type == "ai"], [m.text for m in messages if m.type == "human"]


def without_commands(seen: list[str]) -> list[str]:
    """What was seen without TextCraft's crafting commands, which are drawn anew at every reset."""
    return [text.partition("\n\nGoal: ")[2] or text for text in seen]


def alone(url: str, index: int, actions: list[str]) -> list[str]:
    """What an environment of its own answers to the same actions."""
    server = Server(url, "textcraft")
    world = AgentGymWorld(server)
    seen = [world.reset(task(index)["task"]), *(world.step(action)[0] for action in actions)]
    world.close()
    server.close()
    return seen


def test_it_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available()["agentgym"].value == "langgraph_amc_agentgym"
    assert load_integration("agentgym") is agentgym
    assert isinstance(agentgym, TaskFamily)
    assert load_tasks("agentgym:tasks", server="babyai") == tasks("babyai")
    assert load_reward("agentgym:solved").function is solved
    assert load_reward("agentgym:score").function is score
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name, value, missing in (
        ("AGENTGYM_MODEL", "openai/some-model", "AGENTGYM_MODEL to a model"),
        ("AGENTGYM_URL", "http://127.0.0.1:36001", "AGENTGYM_URL to the environment server's address"),
    ):
        monkeypatch.delenv(name, raising=False)
        with pytest.raises(ConfigurationError, match=missing):
            load_app("agentgym:graph")
        monkeypatch.setenv(name, value)
    assert isinstance(load_app("agentgym:graph"), Pregel)  # nothing was sent: nobody listens there
    monkeypatch.setenv("AGENTGYM_SIZE", "many")
    with pytest.raises(ConfigurationError, match="AGENTGYM_SIZE=many"):
        load_app("agentgym:graph")


@pytest.mark.parametrize("kind", ["textcraft", "searchqa"])
async def test_the_agent_finishes_a_task_sync_and_async(kind: str, serve: Callable[..., Any]) -> None:
    there = serve(kind)
    with open_worlds(there.url, kind, size=1) as worlds:
        app = build(Walker(whole=kind == "searchqa"), worlds, kind)
        for output in (app.invoke(task(4, kind)), await app.ainvoke(task(4, kind))):
            run = FinishedRun(None, output)
            assert (score(run), solved(run), output["steps"]) == (1.0, 1.0, 3)
            assert output["messages"][-1].text == "You are at 3 of 3."
            assert "{limit}" not in output["messages"][0].text
        assert there.open == 1
    assert there.open == 0


def test_an_unfinished_run_earns_what_it_has(serve: Callable[..., Any]) -> None:
    there = serve("sciworld")
    with open_worlds(there.url, "sciworld") as worlds:
        output = build(Walker(), worlds, "sciworld", limit=1).invoke(task(5, "sciworld"))
    assert output["messages"][0].text.endswith("You have 1 actions in all.")
    run = FinishedRun(None, output)
    assert (score(run), solved(run)) == (0.25, 0.0)


@pytest.mark.parametrize("size", [2, 8])
async def test_forked_particles_are_as_runs_of_their_own(size: int, serve: Callable[..., Any]) -> None:
    """One of eight works, the others dawdle: after the check all go on from the worker's environment."""
    there = serve("textcraft")
    with open_worlds(there.url, size=size) as worlds:
        better = amc.wrap(
            build(Walker(idle=2, naps=0.002), worlds, limit=4),
            particles=8,
            value=walked,
            resample=amc.at(2),
            tau=0.01,
            select="argmax",
            seed=0,
        )
        for output in (better.invoke(task(5)), await better.ainvoke(task(5))):
            record = output.amc
            assert any(check.resampled for check in record.checks)
            assert len(record.particles) == 8
            for report in record.particles:
                actions, seen = played(report.output)
                # just enough steps for the corridor of four: who had not been branched could not be at its end
                assert actions == ["right"] * 4
                assert solved(FinishedRun(None, report.output)) == 1.0
                assert without_commands(seen) == without_commands(alone(there.url, 5, actions))
        assert there.open <= size
        assert there.most_at_once > 1
    assert there.open == 0


def test_many_at_once_are_each_as_alone(serve: Callable[..., Any]) -> None:
    """Eight threads over four environments, resets in between: TextCraft's servers bear one reset at a time."""
    there = serve("textcraft")
    walks = [["right", "left", "right", "right"], ["look", "right", "right"]]

    def walk(number: int) -> None:
        actions = walks[number % 2]
        history, first = worlds.reset(task(number + 2)["task"])
        seen = [first]
        for action in actions:
            history, answer = worlds.step(history, action)
            seen.append(answer[0])
        expected = alone(there.url, number + 2, [])
        assert without_commands(seen[:1]) == without_commands(expected)
        corridor, at = 2 + (number + 2) % 3, 0
        for action, observation in zip(actions, seen[1:], strict=True):
            at = max(0, at + {"right": 1, "left": -1}.get(action, 0))
            assert observation == f"You are at {at} of {corridor}."

    with open_worlds(there.url, size=4) as worlds, ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(walk, number) for number in (1, 2, 4, 5, 7, 8, 10, 11)]:
            done.result()
        assert len(worlds) == there.open == 4
    assert there.open == 0


async def test_a_crash_and_a_cancelled_run_leave_nothing_open(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    with open_worlds(there.url, size=4) as worlds:
        with pytest.raises(ValueError, match="the model broke"):
            build(Walker(breaks=2), worlds).invoke(task(5))
        better = amc.wrap(build(Walker(naps=0.1), worlds), particles=3, value=walked)
        running = asyncio.create_task(better.ainvoke(task(5)))
        await asyncio.to_thread(there.wait_for, "/step", 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert there.open > 0
    assert there.open == 0


def test_a_particle_whose_server_refuses_fails_alone(serve: Callable[..., Any]) -> None:
    class Crasher(Walker):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            particle = amc.current_particle.get()
            if particle is not None and particle.particle == "p1":
                return ChatResult(generations=[ChatGeneration(message=AIMessage("Action: crash"))])
            return super()._generate(messages)

    there = serve("textcraft")
    with open_worlds(there.url) as worlds:
        output = amc.wrap(build(Crasher(), worlds), particles=3, value=walked, resample=amc.never()).invoke(task(3))
        assert solved(FinishedRun(None, output)) == 1.0
        ended = {report.name: report.trajectory for report in output.amc.particles}
        assert {name: run.status for name, run in ended.items()} == dict.fromkeys(ended, "finished") | {"p1": "failed"}
        assert "the corridor fell in" in str(ended["p1"].error)
    assert there.open == 0


def test_the_real_textcraft_over_http(gyms: Any, serve: Callable[..., Any]) -> None:
    textcraft = pytest.importorskip("langgraph_amc_textcraft")
    there = serve("textcraft", world=gyms.Crafting)
    goals = [t.input["task"]["goal"] for t in textcraft.tasks(infeasible=True)]
    with open_worlds(there.url, size=2) as worlds:
        for index in (0, 150, 300):
            history, first = worlds.reset(task(index)["task"])
            assert first.endswith(f"Goal: craft {goals[index].replace('_', ' ')}.")
            plan = textcraft.plan(textcraft.load_book(), goals[index])
            histories = [history]
            for action in plan:
                history, (observation, reward, done, info) = worlds.step(history, action)
                histories.append(history)
            assert (reward, done, info["solved"]) == (1.0, True, True)
            # back to the middle, in another environment
            middle = len(plan) // 2
            again = histories[middle]
            for action in plan[middle:]:
                again, answer = worlds.step(again, action)
            assert answer[0] == observation
            assert again == history
    assert there.open == 0


def test_the_readmes_example(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    there = serve("textcraft")
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(readme.split("```python\n")[1].split("```")[0].replace("http://127.0.0.1:36001", there.url), {})
    lines = capsys.readouterr().out.splitlines()
    assert "Goal: Corridor 4. You are at 0 of 3." in lines
    assert "You are at 3 of 3. 1.0 True {'score': 1.0, 'solved': True}" in lines
    assert lines[-2:] == ["> left", "You are at 0 of 3."]
    assert there.open == 0


def test_the_readmes_tables_say_what_the_dialects_do() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    for name, dialect in DIALECTS.items():
        row = readme.split("## The dialects")[1].split(f"| `{name}` ")[1].splitlines()[0]
        _, path, env, index, *_, closes = (cell.strip(" `") for cell in row.rstrip("|").split("|"))
        assert (path, env) == (dialect.prefix or "/", dialect.env)
        assert index.startswith(dialect.index)
        assert closes.startswith("yes") is dialect.closes
