"""The table in docs/tracing.md and the module of names are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from langgraph_amc.telemetry import names

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()


@pytest.mark.parametrize(
    ("what", "heading"), [("spans", "Spans"), ("attributes", "Attributes"), ("metrics", "Metrics")]
)
def test_every_name_is_in_its_table_and_none_else(what: str, heading: str) -> None:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([^`]+)` \|", section, re.M)
    assert sorted(documented) == sorted(names.all_names()[what])
    assert len(documented) == len(set(documented))


def test_names_are_of_one_style() -> None:
    known = {"invoke_workflow"}
    for group in names.all_names().values():
        for name in group:
            assert name in known or re.fullmatch(r"(amc|gen_ai|session|openinference|error|graph)(\.[a-z_]+)+", name)


def test_the_library_needs_the_api_only() -> None:
    source = Path(names.__file__).parents[1]
    lines = [line for path in source.rglob("*.py") for line in path.read_text().splitlines()]
    modules = [found[1] for line in lines if (found := re.match(r"\s*(?:from|import) (opentelemetry\S*)", line))]
    assert modules
    assert [m for m in modules if m.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))] == []
