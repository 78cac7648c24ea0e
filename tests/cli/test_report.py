"""``amc report`` and the options that write reports, in real processes, from what real commands have left."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from langgraph_amc.cli import main
from tests.cli.walker import WALK, amc, made
from tests.report.test_documents import evolution


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, object]:
    """A run with a journal, and its own report."""
    words = ("run", *WALK, "walk on", "--journal", "runs.sqlite", "--seed", "3", "--report", "own.json", "--json")
    found: dict[str, object] = json.loads(amc(folder, *words).stdout)
    return found


def test_a_run_of_a_journal(folder: Path, ran: dict[str, object]) -> None:
    (stored,) = json.loads(amc(folder, "runs", "--journal", "runs.sqlite", "--json").stdout)
    written = amc(folder, "report", stored["id"][:8], "--journal", "runs.sqlite", "--plots", "svg").stdout
    title, page, data, *plots = [line.strip() for line in written.splitlines()]
    assert title == f"Particle {ran['winner']} gave the answer"
    assert (page, data) == (f"amc-report-{stored['id'][:8]}.html", f"amc-report-{stored['id'][:8]}.json")
    assert (folder / page).read_text().startswith("<!doctype html>")
    assert len(plots) >= 4
    own, later = (json.loads((folder / name).read_text()) for name in ("own.json", data))
    assert [s["title"] for s in own["sections"]] == [s["title"] for s in later["sections"]]
    assert own["sections"][0] == later["sections"][0], "the journal tells the tree that the run itself tells"
    assert {f["label"]: f["text"] for f in later["facts"]} == {
        "run": stored["id"],
        "app": "walker",
        "seed": "3",
        "status": "finished",
    }


def test_a_comparison(folder: Path) -> None:
    words = ("compare", *WALK, "--tasks", "tasks.jsonl", "--reward", "agent.py:fine", "--limit", "3", "--out", "found")
    told = json.loads(amc(folder, *words, "--json").stdout)
    assert json.loads((folder / "found/result.json").read_text()) == {"comparisons": [told]}
    assert (folder / "found/report.html").exists()
    again = json.loads(amc(folder, "report", "found", "--out", "page.html", "--no-data", "--json").stdout)
    assert again["files"] == ["page.html"]
    assert (folder / "page.html").read_text() == (folder / "found/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "3f2a"), "there is no folder 3f2a; if it is a run's id, say in which journal"),
        (("report", "3f2a", "--journal", "runs.sqlite"), "no run begins with '3f2a'"),
        (("report", "."), "holds neither result.json nor amc_value_report.json"),
        (("report", "evolved", "--out", "page.pdf"), "--out is an HTML file"),
        (("report", "evolved", "--plots", "gif"), "plots are png, svg or pdf"),
        (("run", "agent.py:graph"), "say what to run on"),
        (("run", "agent.py:graph", "--input", "{"), "--input is JSON"),
        (("run", "agent.py:graph", "--input", "[" * 50_000), "--input is JSON"),
        (("run", "agent.py:graph", "x", "--report", "a.pdf"), "ends in .html or .json"),
    ],
)
def test_what_cannot_be_reported_is_said(
    folder: Path,
    ran: dict[str, object],
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "evolved").mkdir(exist_ok=True)
    (folder / "evolved/result.json").write_text(json.dumps(evolution().to_json()))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["amc", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said.startswith("amc: ")
    assert message in " ".join(said.split())


def test_run_prints_the_answer_and_takes_input_in_every_way(folder: Path) -> None:
    asked = json.dumps({"messages": [["user", "walk on"]]})
    (folder / "input.json").write_text(asked)
    plain = amc(folder, "run", *WALK, "walk on", "--seed", "3", "-q")
    assert plain.stdout.strip() == "ok"
    assert plain.stderr == ""
    assert amc(folder, "run", *WALK, "--input", "@input.json", "--seed", "3", "-q").stdout == plain.stdout


BROKEN = """
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


def say(state):
    if "break" in state["messages"][0].content:
        raise RuntimeError("the provider is down")
    return {"messages": [AIMessage("odd \\ud800 answer")]}


g = StateGraph(MessagesState)
g.add_node("say", say)
g.add_edge(START, "say")
g.add_edge("say", END)
graph = g.compile()
"""


def test_a_run_that_failed_has_the_report_that_was_asked_for(folder: Path) -> None:
    (folder / "broken.py").write_text(BROKEN)
    said = amc(folder, "run", "broken.py:graph", "break", "-n", "3", "--report", "failed.json", code=1).stderr
    assert "stands for all: every one failed" in said
    assert "what failed, and where: failed.json" in said
    assert "the provider is down" in said.splitlines()[-1]
    told = json.loads((folder / "failed.json").read_text())
    assert told["title"] == "Particle p0 stands for all, because every one failed"


def test_a_report_that_cannot_be_written_is_said_before_anything_is_spent(folder: Path) -> None:
    (folder / "taken.html").mkdir()
    for place in ("taken.html", "input.json/x.html"):
        (folder / "input.json").write_text("{}")
        said = amc(folder, "run", "agent.py:graph", "walk", "-n", "2", "--report", place, code=2).stderr
        assert f"{place} cannot be written" in said
        assert len(said.splitlines()) == 1, "nothing was run"


def test_an_answer_that_was_paid_for_is_printed_whatever_is_in_it(folder: Path) -> None:
    (folder / "broken.py").write_text(BROKEN)
    words = ("run", "broken.py:graph", "say", "-n", "1", "-q", "--report", "odd.html")
    assert amc(folder, *words).stdout == "odd \\ud800 answer\n"
    assert re.search("odd .+ answer", (folder / "odd.html").read_text(encoding="utf-8"))
