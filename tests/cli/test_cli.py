"""The commands on a user's own app, in real processes: collect, train-value, compare, and every clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from langgraph_amc.cli import _run
from tests.support.tiny_models import save_tiny

APP = '''
"""A walk: each step goes wrong with probability 0.3, for good."""
import random
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
import langgraph_amc as amc


class Coin(BaseChatModel):
    @property
    def _llm_type(self):
        return "coin"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        rng = random.Random(f"{amc.current_particle.get().seed}{len(messages)}{messages[0].content}")
        text = "good" if rng.random() < 0.7 else "bad"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def graph():
    coin = Coin()
    g = StateGraph(MessagesState)
    g.add_node("think", lambda s: {"messages": [coin.invoke(s["messages"])]})
    g.add_node("look", lambda s: {"messages": [HumanMessage("ok")]})
    g.add_edge(START, "think")
    g.add_edge("think", "look")
    g.add_conditional_edges("look", lambda s: END if len(s["messages"]) > 8 else "think", ["think", END])
    return g.compile()


def fine(outputs):
    return all(m.content != "bad" for m in outputs["messages"])


def blind(transcripts):
    return [0.5] * len(transcripts)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("app")
    (where / "agent.py").write_text(APP)
    lines = [{"id": f"t{i}", "input": f"walk {i}", "split": "train" if i < 24 else "test"} for i in range(32)]
    (where / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where


def amc(folder: Path, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "langgraph_amc", *words],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == check, result.stdout + result.stderr
    return result


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command in this process, for what ends before an app runs: standard error of one that fails."""

    def run(*words: str, code: int = 2) -> str:
        monkeypatch.setattr(sys, "argv", ["amc", *words])
        with pytest.raises(SystemExit) as stopped:
            _run()
        found = capfd.readouterr()
        assert stopped.value.code == code, found
        return found.err

    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    return run


APP_OPTIONS = ("agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:fine")


def test_from_own_app_to_table(folder: Path) -> None:
    collected = json.loads(
        amc(folder, "collect", *APP_OPTIONS, "--split", "train", "--store", "runs.sqlite", "-n", "4", "--json").stdout
    )
    assert collected["runs"] == 24 * 4
    assert 0.1 < collected["mean_reward"] < 0.4
    again = amc(folder, "collect", *APP_OPTIONS, "--split", "train", "--store", "runs.sqlite", "--limit", "1")
    assert "8 runs on 1 tasks" in again.stdout

    base = save_tiny(folder / "base")
    report = json.loads(
        amc(folder, "train-value", "runs.sqlite", "--base", str(base), "--epochs", "2", "--json").stdout
    )
    assert 1 <= len(report["epochs"]) <= 2
    assert (folder / "value" / "amc_value.json").exists()

    words = ("train-value", "runs.sqlite", "--base", str(base), "--epochs", "1", "--json")
    more = ("--validation", "0.5", "--no-calibrate", "--lr", "1e-5", "--td-lambda", "0.5", "--out", "other")
    other = json.loads(amc(folder, *words, *more).stdout)
    assert other["validation_tasks"] == 12
    assert other["calibrated"] is None
    assert json.loads((folder / "other" / "amc_value.json").read_text())["calibration"] is None
    alone = json.loads(amc(folder, *words, "--validation", "0", "--out", "third").stdout)
    assert alone["measured_on"] == "training"

    options = (*APP_OPTIONS, "--split", "test", "--value", "value", "--resample", "every(1)", "-n", "4")
    found = json.loads(amc(folder, "compare", *options, "--json").stdout)
    assert found["tasks"] == 8
    assert found["resamplings"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "nowhere.py:graph", *APP_OPTIONS[1:], "--value", "agent.py:blind"), "nowhere.py"),
        (("compare", "agent.py:grap", *APP_OPTIONS[1:], "--value", "agent.py:blind"), "graph"),
        (("compare", *APP_OPTIONS, "--value", "no-such-folder"), "no-such-folder"),
        (("compare", *APP_OPTIONS, "--value", "agent.py:blind", "--split", "tset"), "train, test"),
        (("compare", *APP_OPTIONS, "--value", "agent.py:blind", "--resample", "sometimes(3)"), "sometimes"),
        (("compare", *APP_OPTIONS, "--value", "agent.py:blind", "--boundary", "thinking"), "think"),
        (("train-value", "missing.sqlite", "--base", "x"), "missing.sqlite"),
        (("plan", "agent.py:graph", "--store", "missing.sqlite"), "missing.sqlite"),
        (("advise", "--store", "missing.sqlite"), "missing.sqlite"),
        (("tune", "missing.sqlite", "--value", "x"), "missing.sqlite"),
        (("serve-value", "http://anna:secret@host"), "http://host is an address"),
        (("collect", *APP_OPTIONS[:3], "--reward", "agent.py:nothing"), "nothing"),
    ],
)
def test_mistakes_get_a_clear_error(here: Callable[..., str], words: tuple[str, ...], message: str) -> None:
    said = here(*words)
    assert message in said
    assert "Traceback" not in said


def test_usage_errors_are_the_command_lines_own(here: Callable[..., str]) -> None:
    said = here("compare", "agent.py:graph")
    assert "Missing option '--tasks'" in said
    assert "AMC_TRACEBACK" not in said


def test_an_error_of_the_users_code_is_one_line(folder: Path) -> None:
    (folder / "broken.py").write_text("def value(transcripts):\n    raise RuntimeError('my own mistake')\n")
    result = amc(folder, "compare", *APP_OPTIONS, "--split", "test", "--value", "broken.py:value", "--quiet", check=1)
    assert "my own mistake" in result.stderr
    assert "Traceback" not in result.stderr


TOOLED = """
from pathlib import Path
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from agent import Coin

SENT = Path(__file__).with_name("sent.txt")


class Mailer(Coin):
    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        call = {"name": "send", "args": {"text": "hello"}, "id": "c1", "type": "tool_call"}
        said = AIMessage("good", tool_calls=[call] if len(messages) == 1 else [])
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def send(text: str) -> str:
    "Send a mail."
    with SENT.open("a") as file:
        file.write("sent\\n")
    return "sent"


graph = create_agent(Mailer(), [send])
"""


@pytest.mark.parametrize("command", ["collect", "compare"])
def test_the_effects_of_tools_are_said_on_the_command_line(folder: Path, command: str) -> None:
    (folder / "tooled.py").write_text(TOOLED)
    sent = folder / "sent.txt"
    options = (command, "tooled.py:graph", *APP_OPTIONS[1:], "--limit", "1", "-n", "3", "--quiet")
    options += ("--store", "mails.sqlite") if command == "collect" else ("--value", "agent.py:blind")
    runs = 3 if command == "collect" else 6
    sent.unlink(missing_ok=True)
    said = amc(folder, *options).stderr
    assert len(sent.read_text().splitlines()) == runs
    [line] = [line for line in said.splitlines() if "warning" in line]
    assert line.startswith("amc: warning: nothing is known of the side effects of send")
    assert "--effects NAME=POLICY" in line
    assert "typer" not in said
    sent.unlink()
    said = amc(folder, *options, "--effects", "send=deny").stderr
    assert not sent.exists()
    assert "warning: nothing is known" not in said
    assert "once per particle" in " ".join(amc(folder, command, "--help").stdout.split())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("send",), "NAME=POLICY"),
        (("send=",), "NAME=POLICY"),
        (("=pure",), "NAME=POLICY"),
        (("send=comit",), "commit"),
        (("send=pure", "send=deny"), "two policies"),
        (("sned=pure",), "did you mean 'send'"),
    ],
)
def test_effects_that_are_none(folder: Path, here: Callable[..., str], given: tuple[str, ...], message: str) -> None:
    (folder / "tooled.py").write_text(TOOLED)
    words = [word for text in given for word in ("--effects", text)]
    assert message in here("collect", "tooled.py:graph", *APP_OPTIONS[1:], *words)


def test_version(folder: Path) -> None:
    assert amc(folder, "--version").stdout.strip() == "0.1.0"
