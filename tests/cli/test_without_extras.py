"""With the core dependencies only: a model behind an API, the commands, and a clear error for what needs more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.test_cli import APP
from tests.support.openai_server import OpenAIServer

BARE = """
import sys

class Absent:
    \"\"\"As if the extras were not installed.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
EXTRAS = {
    *("torch", "transformers", "peft", "safetensors", "sklearn", "scipy", "pandas", "tokenizers"),
    *("aiosqlite", "psycopg", "pyarrow", "matplotlib", "bm25s", "pyseccomp", "langchain", "ray", "trl"),
    *("opentelemetry.sdk", "openinference", "langsmith_otel", "playwright"),
}
API = """
from langgraph.graph import END, START, MessagesState, StateGraph
import langgraph_amc as amc
from langgraph_amc import value as values
from langgraph_amc.value import judge

model = amc.chat_model("openai/m", api_base=sys.argv[1], api_key="none")
g = StateGraph(MessagesState)
g.add_node("think", lambda s: {"messages": [model.invoke(s["messages"])]})
g.add_edge(START, "think")
g.add_edge("think", END)
value = judge(model, task="Answer.", criteria="Right.", scale=(0, 10))
out = amc.wrap(g.compile(), particles=4, value=value).invoke({"messages": [("user", "?")]})
print(out["messages"][-1].content, len(out.amc.particles), out.amc.usage.calls)
for broken in (
    lambda: amc.chat_model("amc-local//no/model").invoke("?"),
    lambda: values.load_value(sys.argv[2]),
    lambda: amc.evolve,
):
    try:
        broken()
        print("no error")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
COMMANDS = """
from langgraph_amc.cli import _run

for command in {commands}:
    sys.argv = ["amc", *command]
    try:
        _run()
    except SystemExit as stop:
        print("exit", stop.code)
"""


def bare(tmp_path: Path, code: str, *arguments: str) -> list[str]:
    script = BARE.format(extras=EXTRAS) + code
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_a_model_behind_an_api_a_judge_and_what_needs_more(tmp_path: Path) -> None:
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / "amc_value.json").write_text("{}")
    with OpenAIServer() as server:
        server.reply = lambda body, n: json.dumps({"score": 7}) if "Right." in str(body) else "42"
        found = bare(tmp_path, API, server.base_url, str(tmp_path / "value"))
    assert found[0].split()[:2] == ["42", "4"]
    assert [line for line in found if "pip install 'langgraph-amc[local]'" in line] == found[-3:]
    assert "no error" not in found


def test_the_commands(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(APP)
    lines = [{"id": f"t{i}", "input": f"walk {i}", "split": "train" if i < 6 else "test"} for i in range(9)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    of_app = ["agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:fine"]
    commands = [
        ["run", "agent.py:graph", "walk", "-n", "3", "--value", "agent.py:blind", "--journal", "sqlite:///runs.sqlite"],
        ["collect", *of_app, "--split", "train", "-n", "2", "--store", "store.sqlite"],
        ["advise", "--store", "store.sqlite", "--value", "agent.py:blind"],
        ["compare", *of_app, "--split", "test", "-n", "2", "--value", "agent.py:blind", "--out", "compared"],
        ["report", "compared"],
        ["train-value", "store.sqlite", "--base", "nowhere", "--out", "value"],
        ["evolve", *of_app, "--model", "nowhere", "--out", "evolved"],
    ]
    found = bare(tmp_path, COMMANDS.format(commands=commands))
    print("\n".join(found))
    assert any("best-of-2" in line for line in found)
    assert any("not observable" in line for line in found)
    assert sum("exit 0" in line for line in found) == 5
    assert sum("pip install 'langgraph-amc[local]'" in line for line in found) == 2
