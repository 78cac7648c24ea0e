"""The commands and the Python of an example's README, run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_amc.cli.app import app as amc_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def commands(example: str) -> list[list[str]]:
    """The words of every ``amc`` command that needs no key: those for a real model begin with a variable."""
    blocks = re.findall(r"```bash\n(.*?)```", (EXAMPLES / example / "README.md").read_text(), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    for line in lines:
        assert line.startswith(("amc ", "AGENT_MODEL=")), f"who runs {line!r}?"
    return [shlex.split(line)[1:] for line in lines if line.startswith("amc ")]


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> Any:
    """What a command prints as JSON, in this process, from the root of the repository; ``more`` makes it smaller."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("AGENT_MODEL", raising=False)
    done = CliRunner().invoke(amc_command, [*words, *more, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def compared(words: list[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    """A comparison of a few tasks, its arms by name; every run could be judged, and particles parted."""
    found: dict[str, Any] = run_command(words, monkeypatch, "--no-same-tokens", *more)
    assert found["missing"] == 0
    assert not [w for w in found["warnings"] if "same steps" in w or "no boundary" in w]
    return {**found, "arms": {arm["name"]: arm for arm in found["arms"]}}


def run_python(example: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The names that each Python block leaves, run in the example's folder."""
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES / example / "README.md").read_text(), re.S)
    assert blocks
    monkeypatch.syspath_prepend(str(EXAMPLES / example))
    monkeypatch.delenv("AGENT_MODEL", raising=False)
    left: list[dict[str, Any]] = []
    for block in blocks:
        sys.modules.pop("agent", None)  # every example has one
        namespace: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, f"{example}/README.md", "exec"), namespace)
        left.append(namespace)
    sys.modules.pop("agent", None)
    return left
