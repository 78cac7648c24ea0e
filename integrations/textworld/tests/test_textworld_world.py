"""The world: the same answers as TextWorld's own environment, and states that can be copied."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import textworld
from langgraph_amc_textworld import TextWorld, TextWorldError, TextWorldTask
from langgraph_amc_textworld.facts import read_game
from langgraph_amc_textworld.games import find_game
from langgraph_amc_textworld.machine import WON, Machine
from langgraph_amc_textworld.world import ONE, REFUSED

from langgraph_amc.tasks import Environment, ReplayDivergedError, WorldPool

FORKS = int(os.environ.get("AMC_FORKS", "10"))
# What a model might say as well: understood in part, asked back ("Which do you mean"), or not understood at all.
OTHERS = [
    "take",
    "examine",
    "take all",
    "x",
    "wait",
    "goal",
    "fry it",
    "drop all",
    "open",
    "dance",
    "",
    "take the",
    "é",
]


def of(task: Any, **changes: Any) -> dict[str, Any]:
    return task.input["task"] | changes


def walkthrough(task: dict[str, Any]) -> list[str]:
    game, _ = read_game(find_game(TextWorldTask.of(task).game).data)
    return list(game.metadata.get("walkthrough") or game.walkthrough)


def commands(observation: str) -> list[str]:
    return observation.rpartition("\n\nCommands: ")[2].split("; ")


def play(world: TextWorld, actions: list[str]) -> list[Any]:
    return [world.step(action) for action in actions if not world.done]


def episode(task: dict[str, Any], rng: random.Random, steps: int) -> list[str]:
    """Mostly admissible commands, on a way of their own."""
    world = TextWorld()
    observation, actions = world.reset({**task, "commands": True}), []
    while len(actions) < steps and not world.done:
        known = commands(observation)
        actions.append(rng.choice(known if rng.random() < 0.8 else OTHERS))
        observation = world.step(actions[-1])[0]
    world.close()
    return actions


def test_the_walkthrough_wins(games) -> None:
    for task in (games.cooking, games.quest):
        world = TextWorld()
        assert isinstance(world, Environment)
        first = world.reset(of(task))
        assert f"The most points are {task.metadata['points']}." in first
        assert "$" not in first  # no banner
        answers = play(world, walkthrough(of(task)))
        observation, _, done, info = answers[-1]
        assert sum(reward for _, reward, _, _ in answers) == task.metadata["points"] == info["score"]
        assert observation.endswith(WON)
        assert done
        assert info["won"]
        assert not info["lost"]
        with pytest.raises(TextWorldError, match="reset"):
            world.step("look")


@pytest.mark.filterwarnings("ignore::jericho.UnsupportedGameWarning")
def test_it_answers_as_the_environment_of_textworld_does(games) -> None:
    for number, task in enumerate((games.cooking, games.quest)):
        given = of(task, commands=True, step_limit=100)
        files = find_game(TextWorldTask.of(given).game)
        infos = textworld.EnvInfos(admissible_commands=True, score=True, won=True, lost=True)
        original = textworld.start(str(files.story), request_infos=infos)
        for seed in range(3):
            state, world = original.reset(), TextWorld()
            observation, done = world.reset(given), False
            for action in episode(given, random.Random(f"{number} {seed}"), 12):
                assert commands(observation) == state.admissible_commands
                state, score, over = original.step(action)
                observation, _, done, info = world.step(action)
                assert (info["score"], done) == (score, over), action
                said = observation.rpartition("\n\nCommands: ")[0] or observation
                assert said.split() == plain(state.feedback).split(), action
                if done:
                    break
        original.close()


def plain(feedback: str) -> str:
    """TextWorld's feedback without the status line, and without the offer to restart."""
    text = re.sub(r"\n>[^\n]*-= .*", "", feedback, flags=re.S)
    return re.sub(r"(\*\*\* (?:The End|You lost!) \*\*\*).*", r"\1", text, flags=re.S)


def test_forks_go_on_as_independent_runs_do(games) -> None:
    """Each fork three ways: a snapshot in a world that was elsewhere, a history in a pool, and a run from the start."""
    rng, elsewhere = random.Random(0), TextWorld()
    with WorldPool(TextWorld, size=3) as pool:
        for fork in range(FORKS):
            task = of(games.cooking if fork % 2 else games.quest, step_limit=60, commands=fork % 3 == 0)
            before = episode(task, rng, rng.randint(0, 10))
            world, (history, _) = TextWorld(), pool.reset(task)
            world.reset(task)
            for action in before:
                history, answer = pool.step(history, action)
                assert answer == world.step(action)
            if world.done:
                continue
            token = world.snapshot()
            written = json.dumps(token, sort_keys=True)
            for branch in range(2):
                after = (episode(task, rng, 4), [rng.choice(OTHERS) for _ in range(4)])[branch]
                alone = TextWorld()
                alone.reset(task)
                play(alone, before)
                expected = play(alone, after)
                elsewhere.restore(json.loads(written))
                assert play(elsewhere, after) == expected, (before, after)
                assert elsewhere.snapshot() == alone.snapshot()
                there = history
                for action, answer in zip(after, expected, strict=False):
                    there, found = pool.step(json.loads(json.dumps(there)), action)
                    assert found == answer, (before, after)
                play(world, after)  # the forked one goes on: its token stays what it was
                assert json.dumps(token, sort_keys=True) == written
                world.restore(token)
        assert len(pool) <= 3


def test_a_history_that_is_not_the_world_s_is_found_out(games) -> None:
    with WorldPool(TextWorld, size=1) as pool:
        history, _ = pool.reset(of(games.cooking))
        for action in ("examine cookbook", "look", "inventory"):
            history, _ = pool.step(history, action)
        other = json.loads(json.dumps(history))
        other["steps"][1]["action"] = "take knife"
        with pytest.raises(ReplayDivergedError) as caught:
            pool.step(other, "look")
        assert (caught.value.step, caught.value.part) == (2, "observation")
        pool.step(history, "look")


@pytest.mark.parametrize(
    "action", ["save", "Restore", "look. save", "undo", "script", "transcript on", "restart", "quit", "print_state"]
)
def test_commands_to_the_program_are_none_of_the_game(games, action, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = TextWorld()
    world.reset(of(games.cooking))
    world.step("take knife")
    before = world.snapshot()
    for said in (action, f"tw-trace-actions then {action}", f"enable print state option, {action}"):
        observation, reward, done, _ = world.step(said)
        assert (observation, reward, done) == (REFUSED, 0.0, False)
    assert world.snapshot() == before | {"steps": 4}
    assert not list(tmp_path.iterdir())


def test_a_step_is_one_command(games) -> None:
    world = TextWorld()
    world.reset(of(games.cooking))
    before = world.snapshot()
    assert {world.step(said)[0] for said in ("look. inventory", "look then look", "look; look")} == {ONE}
    assert world.snapshot() == before | {"steps": 3}
    assert world.step("inventory\n")[0] == world.step("inventory.")[0]
    assert "beg your pardon" in world.step("\n")[0]
    world.step("x" * 5000)
    before = world.snapshot()
    with pytest.raises(TextWorldError, match="a command is text"):
        world.step(None)  # type: ignore[arg-type]
    assert world.snapshot() == before


def test_no_character_makes_the_interpreter_wait(games) -> None:
    script = """
        import json, sys
        from langgraph_amc_textworld import TextWorld
        world = TextWorld()
        world.reset(json.loads(sys.argv[1]))
        print([world.step(said)[2] for said in ("a\\0", "\\0", "look\\0look", "\\x1b", "\\x7f", "\\ud800")])
    """
    # In a process of its own: nothing else ends one that waits.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), json.dumps(of(games.quest, step_limit=6))],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == str([False] * 5 + [True]), done.stderr


def test_the_limit_ends_a_game(games) -> None:
    world = TextWorld()
    assert "You have 3 commands." in world.reset(of(games.quest, step_limit=3))
    assert [world.step("look")[2] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"step_limit": 0},
        {"step_limit": "3"},
        {"game": {"kind": "chess", "seed": 1, "settings": {}}},
        {"game": {"kind": "coin", "seed": 1, "settings": {"rooms": 3}}},
        {"game": {"kind": "coin", "seed": -1, "settings": {"level": 3}}},
        {"game": "coin"},
        {"goal": "win"},
    ],
)
def test_what_is_no_task_is_refused(games, change) -> None:
    with pytest.raises(TextWorldError):
        TextWorld().reset(of(games.quest, **change))


def test_what_is_no_snapshot_is_refused(games) -> None:
    world = TextWorld()
    with pytest.raises(TextWorldError, match="reset"):
        world.step("look")
    world.reset(of(games.quest))
    token = world.snapshot()
    broken = token["machine"] | {"memory": "AAAA"}
    for wrong in ({}, token | {"steps": None}, token | {"machine": broken}, token | {"task": {"goal": 1}}):
        with pytest.raises(TextWorldError):
            TextWorld().restore(wrong)
    elsewhere = token | {"machine": token["machine"] | {"story": "another"}}
    with pytest.raises(TextWorldError, match="compiled differently"):
        TextWorld().restore(elsewhere)


def test_a_story_compiled_another_day_takes_the_same_states(games, tmp_path: Path) -> None:
    story = find_game(TextWorldTask.of(of(games.cooking)).game).story
    program = bytearray(story.read_bytes())
    program[0x12:0x18] = b"991231"  # the header's date, and with it the sum
    program[0x1C:0x1E] = bytes(2)
    (tmp_path / "game.z8").write_bytes(program)
    machine, later = Machine(story), Machine(tmp_path / "game.z8")
    machine.send("take knife")
    later.send("look")
    later.restore(machine.state())
    for command in ("inventory", "examine cookbook", "drop knife", "look"):
        assert later.send(command) == machine.send(command)
    assert later.state() == machine.state()


def interpreters() -> int:
    """Live ones: each has its own copy of the library."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return len({line.split(maxsplit=5)[5] for line in lines if "libfrotz.so" in line})


class Breaking(TextWorld):
    broken = False

    def step(self, action: str) -> Any:
        if action == "look" and not Breaking.broken:
            Breaking.broken = True
            raise OSError("the interpreter is gone")
        return super().step(action)


@pytest.mark.skipif(sys.platform != "linux", reason="counts what the process has mapped")
def test_no_interpreter_is_left(games) -> None:
    start = interpreters()
    pool = WorldPool(Breaking, size=4)
    histories = [pool.reset(of(games.quest))[0] for _ in range(4)]
    _, (observation, *_) = pool.step(histories[0], "look")  # breaks: closed, and done again in another world
    assert Breaking.broken
    assert "-=" in observation
    assert start < interpreters() <= start + 4
    pool.close()
    assert interpreters() == start
    for _ in range(20):
        Machine(find_game(TextWorldTask.of(of(games.quest)).game).story)
    assert interpreters() == start
