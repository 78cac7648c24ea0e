"""Pairs and examples survive their files, tools and the shapes of arguments included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph_amc_trl import Example, Pair
from langgraph_amc_trl.exchange import read_examples, read_pairs, to_dataset, write

from langgraph_amc.errors import ConfigurationError

TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)


def asked(**arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


PROMPT = ({"role": "user", "content": "go ü"},)
PAIRS = (
    Pair("t", "r", 0, PROMPT, (asked(at="a"),), (asked(n=[1, {"deep": None}]),), 1.0, 0.25),
    Pair("t", "s", 2, PROMPT, ({"role": "assistant", "content": "x"},), (asked(),), 0.5, 0.0),
)
EXAMPLES = (
    Example("t", "r", PROMPT, (asked(at=1),), 1.0, True),
    Example("t", "r", PROMPT, (asked(by="b"),), 0.0, False),
)


def test_a_file_reads_back(tmp_path: Path) -> None:
    assert write(tmp_path / "p.jsonl", PAIRS, TOOLS) == 2
    assert read_pairs(tmp_path / "p.jsonl") == (PAIRS, TOOLS)
    write(tmp_path / "e.jsonl", EXAMPLES)
    assert read_examples(tmp_path / "e.jsonl") == (EXAMPLES, ())


def test_a_data_set_keeps_every_call_as_it_was() -> None:
    rows = to_dataset(PAIRS, TOOLS)
    assert [row["chosen"] for row in rows] == [list(p.chosen) for p in PAIRS]
    assert rows[0]["rejected"] == list(PAIRS[0].rejected)
    assert to_dataset(EXAMPLES)["label"][:] == [True, False]


def test_different_tools_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", PAIRS[:1], TOOLS)
    write(tmp_path / "b.jsonl", PAIRS[1:])
    (tmp_path / "c.jsonl").write_text((tmp_path / "a.jsonl").read_text() + (tmp_path / "b.jsonl").read_text())
    with pytest.raises(ConfigurationError, match="different tools"):
        read_pairs(tmp_path / "c.jsonl")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_examples(tmp_path / "none.jsonl")
