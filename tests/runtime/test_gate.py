"""Boundaries inside subgraphs: held, scored, pruned and branched there, and otherwise a plain run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.runtime.test_clones import forced
from tests.runtime.test_equality import aconverse, converse, wrapped
from tests.support.nested_graphs import NESTED

# -- equal to the plain app ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NESTED)
async def test_equals_plain(name: str) -> None:
    """Outputs, history and state, subgraphs included, for several turns."""
    case = NESTED[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    for app in (wrapped(case.build(InMemorySaver()), case, 3), forced(case.build(InMemorySaver()), case.boundary)):
        assert await aconverse(app, case.inputs) == want
    for app in (wrapped(case.build(InMemorySaver()), case, 3), forced(case.build(InMemorySaver()), case.boundary)):
        assert await asyncio.to_thread(converse, app, case.inputs) == want
