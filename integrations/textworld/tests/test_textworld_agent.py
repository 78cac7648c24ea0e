"""The integration as it is found, and its agent: plain, and as particles whose games branch with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import langgraph_amc_textworld as integration
import pytest
from langchain_core.messages import BaseMessage
from langgraph.pregel import Pregel
from langgraph_amc_textworld import Follower, build, progress, score, solved, stand_in, tasks

import langgraph_amc as amc
from langgraph_amc.demo.stand_in import StandIn
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, TaskFamily, available, load_app, load_integration, load_reward, load_tasks


def test_it_is_found_by_its_entry_point() -> None:
    assert available()["textworld"].value == "langgraph_amc_textworld"
    assert load_integration("textworld") is integration
    assert isinstance(integration, TaskFamily)


def test_its_name_stands_for_it_in_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_tasks("textworld:tasks") == tasks()
    assert load_tasks("textworld:coin") == tasks(kinds=["coin"])
    assert load_reward("textworld:score").function is score
    monkeypatch.setenv("TEXTWORLD_MODEL", "openai/some-model")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(load_app("textworld:graph"), Pregel)
    assert isinstance(load_app("textworld:stand_in"), Pregel)
    monkeypatch.delenv("TEXTWORLD_MODEL")
    with pytest.raises(ConfigurationError, match="TEXTWORLD_MODEL"):
        load_app("textworld:graph")


async def test_without_errors_the_follower_wins_sync_and_async(games) -> None:
    app = stand_in(errors=0.0)
    for task in (games.cooking, games.quest):
        for output in (app.invoke(task.input), await app.ainvoke(task.input)):
            run = FinishedRun(task, output)
            assert (solved(run), score(run)) == (1.0, 1.0)
            assert output["total"] == task.metadata["points"]
            assert progress("\n".join(message.text for message in output["messages"])) == 1.0


def test_a_lost_game_keeps_its_points_and_is_worth_nothing(games) -> None:
    said = ["take carrot from fridge", "cook carrot with oven", "cook carrot with oven"]

    def burn(messages: Sequence[BaseMessage], rng: random.Random) -> str:
        return f"Action: {said[sum(message.type == 'ai' for message in messages)]}"

    output = build(StandIn(decide=burn)).invoke(games.cooking.input)
    run = FinishedRun(games.cooking, output)
    text = "\n".join(message.text for message in output["messages"])
    assert output["info"]["lost"], text
    assert solved(run) == 0.0
    assert score(run) == 2 / 5
    assert progress(text) == 0.0
    assert progress(text.replace("*** You lost! ***", "")) == score(run)


def test_a_run_without_an_action_earns_nothing() -> None:
    run = FinishedRun(None, {"info": {}})
    assert (solved(run), score(run), progress("")) == (0.0, 0.0, 0.0)


async def test_games_branch_with_their_particles(games) -> None:
    follower = Follower(errors=0.25)
    better = amc.wrap(
        build(StandIn(decide=follower), world=follower.world, worlds=3),  # fewer games than particles
        particles=6,
        value=progress,
        resample=amc.every(3),
        tau=0.1,
        select="argmax",
        seed=1,
    )
    outputs = [better.invoke(games.cooking.input), await better.ainvoke(games.cooking.input)]
    for output in outputs:
        record = output.amc
        assert any(check.resampled for check in record.checks)
        for report in record.particles:
            # a game that was not its own would have given other answers, and another score than the transcript's
            points = sum("score has just gone up" in m.text for m in report.output["messages"] if m.type == "human")
            assert points == report.output["info"]["score"] == report.output["total"], report.name
        assert score(FinishedRun(games.cooking, output)) == max(
            score(FinishedRun(None, report.output)) for report in record.particles if not report.output["info"]["lost"]
        )
