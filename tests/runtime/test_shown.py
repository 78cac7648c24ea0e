"""Which segments of particles are shown when: settled ones, or those of the one that is best valued."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.runtime.launch import Event
from langgraph_amc.runtime.streaming import BestStream, SettledStream, kept_event
from tests.runtime.support import ASK, THREAD, agent, by_hash, seeded, texts

_numbers = itertools.count()


def segment(size: int = 1) -> tuple[Event, ...]:
    return tuple(((), "updates", next(_numbers), None) for _ in range(size))


@dataclass
class Runner:
    name: str
    lineage: tuple[tuple[Event, ...], ...] = ()
    values: tuple[float | None, ...] = ()
    done: bool = False
    observed: float = 0.0

    def grown(self, *segments: tuple[Event, ...]) -> Runner:
        self.lineage = (*self.lineage, *segments)
        return self


def reader(events: list[Event], had: list[Any]) -> None:
    """What somebody sees who drops the events he is told to."""
    for _, mode, payload, _ in events:
        if mode == "custom":
            about = payload["amc"]
            assert about["withdrawn"] > 0
            assert about["kept"] + about["withdrawn"] == len(had)
            del had[about["kept"] :]
        else:
            had.append(payload)


def best() -> BestStream:
    return BestStream(lambda event: True)


def flat(lineage: tuple[tuple[Event, ...], ...]) -> list[Any]:
    return [payload for part in lineage for _, _, payload, _ in part]


def test_settled_waits_for_everybody() -> None:
    one, two = segment(), segment()
    shown = SettledStream()
    a, b = Runner("a", (one,)), Runner("b", ())
    assert shown.check([a, b]) == []
    b.grown(one)
    assert shown.check([a, b]) == list(one)
    a.grown(two)
    b.grown(segment())
    assert shown.check([a, b]) == []
    assert shown.check([a]) == list(two)
    assert shown.end(a.grown(segment())) == list(a.lineage[2])
    assert shown.end(a) == []


def test_best_runs_ahead_and_says_when_it_turns() -> None:
    common, left, right = segment(), segment(2), segment()
    shown = best()
    a, b = Runner("a", (common, left), (0.1,)), Runner("b", (common, right), (0.0,))
    assert shown.check([a, b]) == [*common, *left]
    assert shown.check([a, b]) == []
    b.values = (0.1,)
    assert shown.check([a, b]) == [], "of equals the one that is shown stays"
    b.values = (0.2,)
    turn, *rest = shown.check([a, b])
    assert turn[:3] == (
        (),
        "custom",
        {"amc": {"event": "switch", "particle": "b", "from": "a", "kept": 1, "withdrawn": 2}},
    )
    assert rest == list(right)
    assert shown.end(b) == []
    assert [e[1] for e in shown.end(a)] == ["custom", "updates", "updates"]


def test_a_finished_particle_is_valued_by_its_reward() -> None:
    a, b = Runner("a", (segment(),), (0.5,)), Runner("b", (segment(),), (0.4,), done=True, observed=0.2)
    assert best().check([a, b]) == list(b.lineage[0])


def test_a_pause_takes_nothing_back() -> None:
    first, second, third = segment(), segment(), segment()
    shown = best()
    particle = Runner("a", ((*first, *second),))
    shown.check([particle])
    particle.lineage = (first, third)  # the interrupted super-step is shown again
    assert shown.check([particle]) == list(third)


@st.composite
def races(draw: st.DrawFn) -> list[list[tuple[int, float]]]:
    """Rounds of (index of the parent that a slot continues, value)."""
    n = draw(st.integers(1, 4))
    slot = st.tuples(st.integers(0, n - 1), st.floats(0, 1))
    return draw(st.lists(st.lists(slot, min_size=n, max_size=n), min_size=1, max_size=6))


@given(races(), st.integers(0, 3))
def test_a_reader_ends_up_with_the_winners_line(rounds: list[list[tuple[int, float]]], winner: int) -> None:
    for stream in (best(), SettledStream()):
        racing = [Runner(f"p{i}") for i in range(len(rounds[0]))]
        had: list[Any] = []
        for number, slots in enumerate(rounds):
            racing = [
                Runner(f"p{number}-{i}", racing[parent].lineage, (value,)).grown(segment())
                for i, (parent, value) in enumerate(slots)
            ]
            reader(stream.check(racing), had)
        chosen = racing[winner % len(racing)]
        chosen.done = True
        reader(stream.end(chosen), had)
        assert had == flat(chosen.lineage)
        if isinstance(stream, SettledStream):
            assert stream.shown == len(chosen.lineage)


def test_events_are_kept_as_they_were() -> None:
    state = {"log": [1], "deep": ({"x": []},)}
    kept = kept_event(((), "values", state, ("values", state)), None, True)
    state["log"].append(2)  # type: ignore[attr-defined]
    assert kept[2] == {"log": [1], "deep": ({"x": []},)}
    assert kept_event(((), "values", state, ("values", state)), None, False)[2] is state


# -- through the facade ----------------------------------------------------------------------------------


def better(**settings: Any) -> Any:
    defaults = {"particles": 4, "value": by_hash, "tau": 0.3, "seed": 1, "resample": amc.every(1), "stream": "best"}
    return amc.wrap(agent(seeded(rounds=4), saver=InMemorySaver()), **{**defaults, **settings})


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("seed", range(4))
async def test_the_readers_view_of_an_app(seed: int, version: str) -> None:
    app = better(seed=seed)
    events = [e async for e in app.astream(ASK, THREAD, stream_mode=["values", "custom"], version=version)]
    pairs = [(e["type"], e["data"]) if isinstance(e, dict) else e for e in events]
    last = [p for m, p in pairs if m == "values"][-1]
    assert texts(last) == texts(app.get_state(THREAD).values)
    had: list[Any] = []
    reader([((), m, p, None) for m, p in pairs], had)
    assert [texts(v) for v in had] == [texts(v) for v in had if texts(last)[: len(texts(v))] == texts(v)]
    assert [len(texts(v)) for v in had] == [*range(1, len(texts(last)) + 1)]
    plain = list(better(seed=seed, stream="settled").stream(ASK, THREAD, stream_mode="values"))
    assert texts(plain[-1]) == texts(last), "how it is shown changes nothing about what is chosen"


def test_without_custom_nobody_is_told() -> None:
    events = list(better().stream(ASK, THREAD, stream_mode="updates"))
    assert all(set(e) <= {"model", "tools"} for e in events)


def test_the_best_is_shown_before_the_end() -> None:
    seen = []
    calls = 0

    def reply(messages: Any) -> Any:
        nonlocal calls
        calls += 1
        return seeded(rounds=4)(messages)

    app = amc.wrap(agent(reply), particles=4, value=by_hash, resample=amc.every(1), tau=10.0, seed=1, stream="best")
    for _ in app.stream(ASK, stream_mode="updates"):
        seen.append(calls)
    assert seen[0] == 4
    assert seen[-1] == 20
