"""Each server in its own dialect: an episode to its end, what is earned, and what is left open on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph_amc_agentgym import (
    DIALECTS,
    AgentGymTaskError,
    AgentGymWorld,
    Dialect,
    Server,
    ServerRefusedError,
    UnexpectedAnswerError,
    tasks,
)

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import NotStartedError, Steppable

# What the first and the second of two steps to the right earn.
EARNED = {kind: [0.0, 1.0] for kind in DIALECTS} | {"sciworld": [0.5, 0.5], "babyai": [0.0, 0.8]}


def said(kind: str, action: str) -> str:
    """An action in the words of a kind of server."""
    return {"maze": f"move {action}", "searchqa": f"<search>{action}</search>"}.get(kind, action)


def task(kind: str, index: int = 3) -> dict[str, Any]:
    return {"server": kind, "index": index}


@pytest.mark.parametrize("kind", DIALECTS)
def test_an_episode_in_each_dialect(kind: str, serve: Callable[..., Any]) -> None:
    there = serve(kind)
    server = Server(there.url, kind)
    world = AgentGymWorld(server)
    assert isinstance(world, Steppable)
    first = world.reset(task(kind))
    assert "Corridor 3. You are at 0 of 2." in first
    assert first.startswith("Walk right.\n") is (kind == "sciworld")
    assert first.endswith("\nAvailable actions: left, right, look") is (kind == "alfworld")
    results = [world.step(said(kind, "right")) for _ in range(2)]
    assert "You are at 1 of 2." in results[0][0]
    assert [reward for _, reward, _, _ in results] == EARNED[kind]
    assert [done for _, _, done, _ in results] == [False, True]
    assert results[0][3] == {"score": EARNED[kind][0], "solved": False}
    assert results[1][3] == {"score": sum(EARNED[kind]), "solved": True}
    with pytest.raises(AgentGymTaskError, match="the episode is over"):
        world.step(said(kind, "right"))
    again = world.reset(task(kind, 4))
    assert "Corridor 4. You are at 0 of 3." in again
    assert there.sent(f"{there.gym.prefix}/create") == 1
    assert (there.open, server.open) == (1, 1)
    world.close()
    world.close()
    assert server.open == 0
    assert there.open == (0 if DIALECTS[kind].closes else 1)


@pytest.mark.parametrize("kind", [kind for kind in DIALECTS if kind != "searchqa"])
def test_an_episode_that_ends_badly_is_not_solved(kind: str, serve: Callable[..., Any]) -> None:
    world = AgentGymWorld(Server(serve(kind).url, kind))
    world.reset(task(kind))
    _, reward, done, info = world.step(said(kind, "jump"))
    assert done
    assert info == {"score": reward, "solved": False}
    assert reward == (-1.0 if kind == "maze" else 0.0)


def test_of_several_answers_to_a_question_the_last_one_counts(serve: Callable[..., Any]) -> None:
    world = AgentGymWorld(Server(serve("searchqa").url, "searchqa"))
    world.reset(task("searchqa"))
    replies = ["<answer>left</answer>", "<search>right</search>", "<answer>left</answer>"]
    scores = [world.step(f"<think>hm</think>{reply}")[3]["score"] for reply in replies]
    assert scores == pytest.approx([0.1, 0.0, 0.1])


@pytest.mark.parametrize("kind", ["maze", "wordle", "textcraft"])
def test_what_a_server_cannot_close_is_used_again(kind: str, serve: Callable[..., Any]) -> None:
    there = serve(kind, closes=False)  # TextCraft's servers had no close at first
    server = Server(there.url, kind)
    for index in range(4):
        worlds = [AgentGymWorld(server), AgentGymWorld(server)]
        for world in worlds:
            assert f"Corridor {index}." in world.reset(task(kind, index))
        assert server.open == 2
        for world in worlds:
            world.close()
    assert there.open == 2
    assert server.open == 0
    assert server.closes is False


def test_what_is_no_task_is_refused_before_anything_is_sent(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    world = AgentGymWorld(Server(there.url, "textcraft"))
    for wrong in ({}, {"index": 3}, task("maze"), task("textcraft", -1), task("textcraft") | {"index": "3"}, 3):
        with pytest.raises(AgentGymTaskError, match=r'a task here is \{"server": "textcraft"'):
            world.reset(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotStartedError, match="reset"):
        world.step("look")
    assert there.seen == []


def test_an_index_that_the_server_does_not_have(serve: Callable[..., Any]) -> None:
    there = serve("sciworld")
    world = AgentGymWorld(Server(there.url, "sciworld"))
    with pytest.raises(ServerRefusedError, match="list index out of range"):
        world.reset(task("sciworld", 2_000_000))
    assert there.open == 0
    assert "Corridor 1." in world.reset(task("sciworld", 1))
    with pytest.raises(ServerRefusedError, match="list index out of range"):
        world.reset(task("sciworld", 2_000_000))
    assert there.open == 0


def test_a_server_of_another_kind_is_told(serve: Callable[..., Any]) -> None:
    other = AgentGymWorld(Server(serve("textcraft").url, "maze"))
    with pytest.raises(ServerRefusedError, match=r"POST http://127.0.0.1:\d+/maze/create .*404.* server for maze\?"):
        other.reset(task("maze"))
    shop = AgentGymWorld(Server(serve("webshop").url, "babyai"))
    with pytest.raises(UnexpectedAnswerError, match=r"/create should give id in the answer, not 1000000: .* babyai\?"):
        shop.reset(task("babyai"))
    asked = AgentGymWorld(Server(serve("alfworld").url, "babyai"))
    with pytest.raises(ServerRefusedError, match="it asks for other fields than the dialect babyai has"):
        asked.reset(task("babyai"))


def test_a_dialect_of_your_own(serve: Callable[..., Any]) -> None:
    mine = Dialect("corridor", "Walk.", 5, index="game", prefix="/maze", closes=False, tasks=10, test=range(2))
    world = AgentGymWorld(Server(serve("maze").url, mine))
    assert world.reset(task("corridor")) == "Corridor 3. You are at 0 of 2."
    made = tasks(mine)
    assert made.ids[:2] == ("agentgym-corridor-0", "agentgym-corridor-1")
    assert [t.split for t in made][:2] == ["test", "test"]
    assert "test" not in {t.split for t in made[2:]}


def test_tasks_have_fixed_ids_and_splits() -> None:
    everything = tasks("alfworld")
    assert len(everything) == 2620
    assert [t.metadata["index"] for t in everything.split("test")] == list(range(2420, 2620))
    assert everything.get("agentgym-alfworld-7").input == {"task": task("alfworld", 7)}
    some = tasks("alfworld", count=30)
    assert len(some) == 30
    assert all(everything.get(t.id) == t for t in some)
    assert set(tasks("alfworld", count=10).ids) < set(some.ids)
    assert tasks("webshop", indices=50) == tasks("webshop", indices=90)[:50]
    assert set(tasks().splits) == {"train", "tune", "test"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"server": "webshop"}, r"say it, tasks\(…, indices=500\)"),
        ({"server": "chess"}, "name one of textcraft, alfworld, sciworld"),
        ({"indices": 0}, "indices is a whole number"),
        ({"indices": "5"}, "indices is a whole number"),
        ({"count": 0}, "count is a whole number"),
        ({"count": 1.5}, "count is a whole number"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tasks(**options)
