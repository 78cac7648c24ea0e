"""The task set and the games behind it: fixed, disjoint, and refused when they are not what they should be."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph_amc_textworld import GameDiffersError, GameSpec, GenerationError, TextWorldError, facts, find_game, tasks
from langgraph_amc_textworld import cooking as cooking_tasks
from langgraph_amc_textworld import games as module
from langgraph_amc_textworld.games import CACHE, known
from langgraph_amc_textworld.taskset import LEVELS, SEEDS, level_spec, tasks_with_commands


def test_tasks_have_fixed_ids_and_games_that_are_all_different() -> None:
    everything = tasks()
    assert everything.splits == ("train", "tune", "test")
    assert {(t.metadata["kind"], t.metadata["level"]) for t in everything} == {
        (k, n) for k in LEVELS for n in LEVELS[k]
    }
    for kind in LEVELS:
        for level in LEVELS[kind]:
            chosen = tasks(kinds=[kind], levels=[level])
            assert all(set(chosen.split(name)) for name in SEEDS), (kind, level)
    digests = [entry["digest"] for entry in known().values()]
    assert len(digests) == len(set(digests)) == len(everything)
    for task in everything:
        game = task.input["task"]["game"]
        assert task.id == f"textworld-{game['kind']}-{task.metadata['level']}-{game['seed']:03}"
        assert GameSpec(**game) == level_spec(game["kind"], task.metadata["level"], game["seed"], task.split)
        assert task.input["task"]["step_limit"] == 2 * task.metadata["walkthrough"] + 5
        json.dumps(task.input)


def test_options_choose_among_the_same_tasks() -> None:
    assert cooking_tasks(levels=[2]) == tasks(kinds=["cooking"], levels=[2])
    assert tasks_with_commands().ids == tasks().ids
    assert all(task.input["task"]["commands"] for task in tasks_with_commands())
    assert cooking_tasks(levels=2) == tasks(kinds="cooking", levels=[2])


@pytest.mark.parametrize(
    "options",
    [{"kinds": ["chess"]}, {"kinds": None}, {"kinds": ()}, {"levels": 7}, {"levels": "2"}, {"commands": "yes"}],
)
def test_options_that_choose_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TextWorldError, match=next(iter(options)).removesuffix("s")):
        tasks(**options)


def test_a_game_that_is_another_is_an_error(games) -> None:
    spec = GameSpec(**games.quest.input["task"]["game"])
    files = find_game(spec)
    assert files.digest == known()[spec.key]["digest"]
    source = files.folder / "game.ni"
    text = source.read_text("utf-8")
    source.write_text(text.replace("player", "reader"), "utf-8")
    try:
        with pytest.raises(GameDiffersError, match=r"Delete .*quest-200"):
            find_game(spec)
    finally:
        source.write_text(text, "utf-8")
    assert find_game(spec) == files


def test_what_textworld_cannot_make_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    with pytest.raises(GenerationError, match=r"within \[1-300\]"):
        find_game(GameSpec("coin", 1, {"level": 301}))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_game_that_many_ask_for_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    made = []

    def generate(spec: GameSpec, folder: Path) -> None:
        made.append(spec)
        time.sleep(0.05)
        folder.mkdir(parents=True)
        for name in ("game.json", "game.ni", "game.z8"):
            (folder / name).write_text("as it came")

    monkeypatch.setattr(module, "_generate", generate)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(find_game, [GameSpec("coin", 10_000, {"level": 1})] * 8))
    assert len(made) == len(set(found)) == 1


def test_threads_read_games_at_the_same_time(games) -> None:
    paths = [find_game(GameSpec(**task.input["task"]["game"])).data for task in (games.cooking, games.quest)]
    facts._read_game.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(facts.read_game, paths * 4))
    assert len({id(game) for game, _ in read}) == 2
