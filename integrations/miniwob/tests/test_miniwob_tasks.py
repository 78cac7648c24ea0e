"""The integration as it is found, its tasks and its agent's reading: nothing here needs a browser."""

from __future__ import annotations

import langgraph_amc_miniwob as miniwob
import pytest
from langgraph.pregel import Pregel
from langgraph_amc_miniwob import (
    PAGES,
    MiniWoB,
    MiniWoBError,
    MissingBrowserError,
    family,
    missing,
    read_action,
    solved,
    tasks,
    worlds,
)
from langgraph_amc_miniwob.taskset import LONG
from langgraph_amc_miniwob.world import MiniWoBTask

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import TaskFamily, available, load_app, load_integration, load_reward, load_tasks


def test_it_is_found_by_its_entry_point_and_its_name_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available()["miniwob"].value == "langgraph_amc_miniwob"
    assert load_integration("miniwob") is miniwob
    assert isinstance(miniwob, TaskFamily)
    assert load_tasks("miniwob:tasks", held_out="pages") == tasks(held_out="pages")
    assert load_reward("miniwob:solved").function is solved
    monkeypatch.setenv("MINIWOB_MODEL", "openai/some-model")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(load_app("miniwob:graph"), Pregel)  # no browser is started before a run
    monkeypatch.delenv("MINIWOB_MODEL")
    with pytest.raises(ConfigurationError, match="MINIWOB_MODEL"):
        load_app("miniwob:graph")


def test_seeds_are_held_out_by_default() -> None:
    everything = tasks()
    assert len(everything) == 12 * len(PAGES) == len(set(everything.ids))
    assert list(PAGES) == sorted(set(PAGES))
    assert set(LONG) <= set(PAGES)
    for split, seeds in {"train": range(6), "tune": range(6, 8), "test": range(8, 12)}.items():
        there = [task for task in everything if task.split == split]
        assert {task.input["task"]["page"] for task in there} == set(PAGES)
        assert {task.input["task"]["seed"] for task in there} == set(seeds)


def test_pages_can_be_held_out_with_all_their_variants() -> None:
    of_family: dict[str, set[str | None]] = {}
    for task in tasks(held_out="pages"):
        of_family.setdefault(task.metadata["family"], set()).add(task.split)
    assert all(len(splits) == 1 for splits in of_family.values())
    assert set().union(*of_family.values()) == {"train", "tune", "test"}
    assert tasks(held_out="pages").ids == tasks().ids
    assert {family(page) for page in PAGES if page.startswith("click-tab")} == {"click-tab"}
    assert {family(page) for page in PAGES if page.startswith("email")} == {"email-inbox"}
    assert family("click-collapsible-2-nodelay") == family("click-collapsible") == "click-collapsible"
    assert family("click-button-sequence") == "click-button-sequence"


def test_options_choose_among_the_same_tasks() -> None:
    two = tasks(pages="login-user,click-button")
    assert [task.id for task in two][::12] == ["miniwob-click-button-0", "miniwob-login-user-0"]
    assert all(tasks().get(task.id) == task for task in two)
    with pytest.raises(MiniWoBError, match="bisect-angle"):
        tasks(pages=["bisect-angle"])
    with pytest.raises(MiniWoBError, match="held out"):
        tasks(held_out="colours")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task", [{}, {"page": "click-test", "aim": 1}, {"page": "x", "seed": -1}, {"page": "x", "step_limit": 0}]
)
def test_what_is_no_task_is_refused(task: dict[str, object]) -> None:
    with pytest.raises(MiniWoBError):
        MiniWoBTask.of(task)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Thought: the first.\nAction: click('13')", "click('13')"),
        ("Action: noop()\nAction: `fill('14', 'I came.')`\nObservation: no", "fill('14', 'I came.')"),
        ("click('2')", "click('2')"),
        ("Action:", ""),
    ],
)
def test_the_action_is_read_out_of_a_reply(reply: str, action: str) -> None:
    assert read_action(reply) == action


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIWOB_PYTHON", "python-of-browsergym")
    monkeypatch.setenv("MINIWOB_CHROMIUM", "")
    monkeypatch.setenv("PATH", "")
    assert "MINIWOB_CHROMIUM" in str(missing())
    with pytest.raises(MissingBrowserError, match="apt install chromium"):
        MiniWoB()
    monkeypatch.setenv("MINIWOB_BROWSERS", "many")
    with pytest.raises(ConfigurationError, match="MINIWOB_BROWSERS"):
        worlds()
