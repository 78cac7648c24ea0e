"""The README's example of an app that is not ours, from its files to the table, against a real HTTP server."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.openai_server import OpenAIServer

ROOT = Path(__file__).parents[2]
SLIP = 0.3


def calculator(body: dict[str, Any], number: int) -> str | dict[str, Any]:
    """A model that computes the innermost bracket next, and now and then mistypes a number."""
    rng = random.Random(number)
    messages = body["messages"]
    expression = messages[1]["content"].removeprefix("Compute ")
    results = [m["content"] for m in messages if m["role"] == "tool"]
    steps = re.findall(r"([+*]) (\d+)", expression)
    if len(results) == len(steps):
        return str(results[-1])
    sign, operand = steps[len(results)]
    left = results[-1] if results else re.search(r"\d+", expression).group()  # type: ignore[union-attr]
    a, b = int(left), int(operand) + (17 if rng.random() < SLIP else 0)
    call = {"name": "add" if sign == "+" else "multiply", "arguments": json.dumps({"a": a, "b": b})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
    }


@pytest.fixture
def server() -> Any:
    with OpenAIServer() as running:
        running.reply = calculator
        yield running


def command(readme: str) -> list[str]:
    """The amc command that README gives for the example."""
    block = next(b for b in re.findall(r"```bash\n(.*?)```", readme, re.S) if "examples/calculator" in b)
    line = next(part for part in block.replace("\\\n", " ").splitlines() if part.startswith("amc compare"))
    return shlex.split(line)


def test_readme_example_runs(server: OpenAIServer) -> None:
    environment = {
        **os.environ,
        "AGENT_MODEL": "openai/calculator",
        "OPENAI_API_BASE": server.base_url,
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    words = command((ROOT / "README.md").read_text())
    result = subprocess.run(
        [sys.executable, "-m", "langgraph_amc", *words[1:], "--seeds", "3", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms["one run"]["observable"]["mean"] < arms["best-of-N"]["observable"]["mean"]
    assert arms["AMC"]["tokens"] > 0
    # mistakes are final and the judge sees them: steering beats choosing afterwards
    assert found["difference_selected"]["mean"] > 0
    assert found["resamplings"] > 0
    assert len(server.requests) > 100
