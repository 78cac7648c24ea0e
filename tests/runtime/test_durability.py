"""``durability``, ``print_mode`` and ``debug``: honoured as by a plain run."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.runtime.equality import CONFIG, canonical, described, numbered, wrapped
from tests.support.cases import ALL, PARALLEL

RACY = {"join", "mutating", "create_react_agent"}
"""A plain run saves these while the next super-step edits the value being saved."""
DIFFERS = {
    ("delta", "exit"): "a graph with a DeltaChannel keeps its lineage",
    ("command_parent", "exit"): "a plain run leaves the checkpoint of a subgraph that was left by a command",
}


def saved(saver: InMemorySaver) -> list[str]:
    """Every checkpoint and pending write, by namespace."""
    found = [
        (
            re.sub(":[0-9a-f-]{36}", "", t.config["configurable"]["checkpoint_ns"]),
            {k: v for k, v in t.metadata.items() if k in ("source", "step")},
            t.checkpoint["channel_values"],
            sorted(numbered((described((name, value)) for _, name, value in t.pending_writes or ()), ordered=False)),
            t.parent_config is None,
        )
        for t in saver.list(None)
    ]
    return sorted(numbered((described(f) for f in found), ordered=False))


@pytest.mark.parametrize("durability", ["exit", "sync", "async"])
@pytest.mark.parametrize("name", [n for n in ALL if n not in RACY])
async def test_the_saver_holds_what_a_plain_run_leaves(name: str, durability: str) -> None:
    case = ALL[name]
    if (name, durability) in DIFFERS:
        pytest.skip(DIFFERS[name, durability])

    async def leave(wrap: Any) -> tuple[list[str], list[str]]:
        saver = InMemorySaver()
        app = wrap(case.build(saver))
        outputs = []
        for given in case.inputs:
            outputs.append(described(await app.ainvoke(copy.deepcopy(given), CONFIG, durability=durability)))
        return canonical(name, outputs), saved(saver)

    want = await leave(lambda app: app)
    for particles in (1, 3):
        got = await leave(lambda app, n=particles: wrapped(app, case, n))
        assert got == want, particles


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize(
    "how", [{"print_mode": "updates"}, {"print_mode": ["values", "tasks"]}, {"debug": True}, "app"]
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_printing(how: Any, particles: int, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = ALL["subgraph_inherited"]
    assert "subgraph_inherited" not in PARALLEL
    options = {} if how == "app" else how

    def printed(wrap: Any) -> list[str]:
        app = case.build(InMemorySaver())
        app.debug = how == "app"
        list(wrap(app).stream(copy.deepcopy(case.inputs[0]), CONFIG, stream_mode="updates", version=version, **options))
        return numbered(capsys.readouterr().out.splitlines(), ordered=True)

    want = printed(lambda app: app)
    assert want
    assert printed(lambda app: wrapped(app, case, particles)) == want


def test_both_ways_to_say_it_are_refused() -> None:
    case = ALL["conditional"]
    app = wrapped(case.build(InMemorySaver()), case, 3)
    with pytest.raises(ValueError, match="checkpoint_during"):
        app.invoke(copy.deepcopy(case.inputs[0]), CONFIG, durability="exit", checkpoint_during=True)
