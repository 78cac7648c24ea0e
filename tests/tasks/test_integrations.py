"""Integrations are found by their entry points, in a folder that holds what an installation leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_amc.tasks import IntegrationError, LoadError, TaskFamily, available, load_integration, load_object

FAMILY = """
graph = "the app"

def tasks():
    return ["one"]

class inner:
    word = "inside"
"""
ENTRY_POINTS = """
[langgraph_amc.integrations]
puzzle = amc_puzzle
broken = amc_broken
attribute = amc_puzzle:inner
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "amc_puzzle-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amc-puzzle\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "amc_puzzle.py").write_text(FAMILY)
    (tmp_path / "amc_broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "puzzle.py").write_text("graph = 'of another module'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("amc_puzzle", "puzzle"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_what_is_installed_is_listed_and_not_imported() -> None:
    names = list(available())
    assert names == sorted(names)
    assert {"puzzle", "broken", "attribute"} <= set(names)
    assert "amc_puzzle" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_a_module_and_an_object_load() -> None:
    assert isinstance(load_integration("puzzle"), TaskFamily)
    assert load_integration("attribute").word == "inside"
    assert not isinstance(load_integration("attribute"), TaskFamily)


@pytest.mark.usefixtures("installed")
def test_a_spec_means_the_integration_before_a_module_of_its_name() -> None:
    assert load_object("puzzle:graph") == "the app"
    assert load_object("puzzle:inner.word") == "inside"
    assert load_object("attribute:word") == "inside"
    with pytest.raises(LoadError, match="puzzle has no 'grap'; it has graph"):
        load_object("puzzle:grap")


@pytest.mark.usefixtures("installed")
def test_one_that_is_missing_says_how_to_get_it_and_what_there_is() -> None:
    with pytest.raises(IntegrationError, match=r"pip install langgraph-amc-chess \(installed: .*puzzle"):
        load_integration("chess")
    with pytest.raises(LoadError, match=r"no module 'amc_chess'.*pip install langgraph-amc-amc_chess"):
        load_object("amc_chess:graph")


@pytest.mark.usefixtures("installed")
def test_one_that_does_not_load_says_why() -> None:
    for load in (load_integration, lambda name: load_object(f"{name}:graph")):
        with pytest.raises(IntegrationError, match=r"'broken' \(amc_broken\).*nothing_of_this_name"):
            load("broken")
