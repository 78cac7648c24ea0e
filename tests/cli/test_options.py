"""What commands have in common: the same option means the same everywhere, and no password is shown."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from langgraph_amc.checks import without_password
from langgraph_amc.cli.app import app

SHARED = {
    "--split",
    "--boundary",
    "--effects",
    "--resample",
    "--concurrency",
    "--seed",
    "--quiet",
    "--json",
    "--max-usd",
    "--max-tokens",
    "--max-calls",
    "--max-seconds",
}
COMMANDS = ("collect", "compare", "advise", "iterate", "tune", "train-value")
ELSEWHERE = {("tune", "--boundary"), ("tune", "--split"), ("iterate", "--split")}
"""Where the same word says more."""
LONG = ("run", "collect", "compare", "advise", "iterate", "evolve", "optimize", "coevolve", "design")
COMMANDS_OF_ALL = tuple(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_shared_options_are_one_option() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    told = defaultdict(set)
    for name in COMMANDS:
        for option in commands[name].params:
            for word in SHARED.intersection(option.opts):
                if (name, word) not in ELSEWHERE:
                    told[word].add(option.help)
    assert set(told) == SHARED
    assert {word: helps for word, helps in told.items() if len(helps) > 1} == {}


@pytest.mark.parametrize("command", COMMANDS_OF_ALL)
def test_the_help_is_not_cut_on_eighty_columns_nor_broken_after_single_words(command: str) -> None:
    printed = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    assert max(map(len, printed.splitlines())) <= 80
    boxes = "".join(line for line in printed.splitlines(keepends=True) if line.startswith("│"))
    assert "…" not in re.sub(r"amc-local/…|0, 1, …", "", boxes)
    for option in typer.main.get_command(app).commands[command].params:  # type: ignore[attr-defined]
        for name in (*option.opts, *option.secondary_opts):
            assert not name.startswith("--") or name in printed
    assert not re.search(r"(│ {20,}[^\s\[]+ *│\n){2}", boxes)


@pytest.mark.parametrize("command", LONG)
def test_long_commands_have_their_options_in_panels_and_no_lines_that_end_early(command: str) -> None:
    for columns in ("60", "110"):
        printed = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": columns, "NO_COLOR": "1"}).output
        titles = re.findall(r"^╭─ (.*?) ─", printed, flags=re.M)
        assert titles[:2] == ["Arguments", "Options"]
        assert len(titles) > 3
        told = printed.partition("╭")[0]
        assert "[]" not in told  # what the markup swallows
        assert not re.search(r"\n +\w+ *\n(?= +\w)", told)  # one word alone, as of lines that were wrapped twice


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://anna:secret@host:8750/v1?x=1", "http://host:8750/v1?x=1"),
        ("postgresql+psycopg://anna:s3c@ret@db.example/runs", "postgresql+psycopg://db.example/runs"),
        ("https://token@host", "https://host"),
        ("http://host/models/@latest", "http://host/models/@latest"),
        ("runs.sqlite", "runs.sqlite"),
        ("anna@example.org", "anna@example.org"),
        ("sqlite:///runs@home.sqlite", "sqlite:///runs@home.sqlite"),
    ],
)
def test_an_address_is_shown_without_who_asks(address: str, shown: str) -> None:
    assert without_password(address) == shown


PART = st.text(st.characters(codec="ascii", categories=("L", "N", "P"), exclude_characters="/?#@\\"), min_size=1)


@given(
    user=PART,
    password=PART.filter(lambda text: text.strip(".:") != ""),
    host=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
)
def test_no_password_is_shown(user: str, password: str, host: str) -> None:
    assert without_password(f"http://{user}:{password}@{host}/x") == f"http://{host}/x"
    assert re.fullmatch(r"see http://[a-z]+ now", without_password(f"see http://{user}:{password}@{host} now"))
