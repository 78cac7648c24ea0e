"""Options of a call mean what they mean for the plain app."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.runtime.equality import CONFIG, canonical, described, wrapped
from tests.support.cases import ALL

OPTIONS: list[tuple[str, dict[str, Any], int]] = [
    ("conditional", {"output_keys": "log"}, 1),
    ("conditional", {"output_keys": ["n"]}, 1),
    ("conditional", {"interrupt_before": ["b"]}, 3),
    ("conditional", {"interrupt_after": ["a", "c"]}, 3),
    ("conditional", {"interrupt_before": "*"}, 4),
    ("conditional", {"interrupt_after": "*"}, 4),
    ("subgraph_inherited", {"interrupt_before": ["sub"], "interrupt_after": ["sub"]}, 4),
    ("create_agent", {"interrupt_before": ["tools"]}, 4),
    ("create_agent", {"interrupt_after": ["model"]}, 3),
    ("create_agent", {"output_keys": "messages"}, 1),
    ("dataclass", {"output_keys": ["n"]}, 1),
    ("pydantic", {"output_keys": "log"}, 1),
    ("pydantic", {"interrupt_after": ["a"]}, 3),
]


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("name", "options", "turns"), OPTIONS)
async def test_options_equal_plain(
    name: str, options: dict[str, Any], turns: int, version: str, particles: int
) -> None:
    case = ALL[name]
    inputs = [case.inputs[0], *[None] * (turns - 1)]

    async def seen(wrap: Any) -> list[str]:
        found: list[str] = []
        app = wrap(case.build(InMemorySaver()))
        for given in inputs:
            events = app.stream(
                copy.deepcopy(given), CONFIG, stream_mode=["values", "updates"], version=version, **options
            )
            found.extend(described(e) for e in events)
        other = wrap(case.build(InMemorySaver()))
        for given in inputs:
            out = await other.ainvoke(copy.deepcopy(given), CONFIG, version=version, **options)
            state = await other.aget_state(CONFIG)
            found.extend([described(getattr(out, "value", out)), described((state.values, state.next))])
        return canonical(name, found)

    assert await seen(lambda app: wrapped(app, case, particles)) == await seen(lambda app: app)
