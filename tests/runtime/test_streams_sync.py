"""The stream of a wrapped deterministic app is the plain app's, event by event, in every mode: sync."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.runtime.equality import VARIANTS, canonical, comparable, stream, wrapped
from tests.support.cases import ALL


@pytest.mark.parametrize("name", ALL)
def test_events_equal_plain(name: str) -> None:
    case = ALL[name]
    for options, populations in VARIANTS[-3:]:  # all modes together: each alone is as good when it is asynchronous
        if not comparable(name, options):
            continue
        want = canonical(name, stream(case.build(InMemorySaver()), case.inputs, **options))
        for particles in populations:
            app = wrapped(case.build(InMemorySaver()), case, particles)
            assert canonical(name, stream(app, case.inputs, **options)) == want, (options, particles)
