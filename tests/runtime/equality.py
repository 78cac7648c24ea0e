"""What the user of an app sees of a run, written so that two runs can be compared: ids and times are numbered."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage
from pydantic import BaseModel

import langgraph_amc as amc
from tests.support.cases import PARALLEL, Case

CONFIG = {"configurable": {"thread_id": "t"}}
MODES: tuple[Any, ...] = ("values", "updates", "messages", "custom", "debug", "checkpoints", "tasks")
EVERY = [*MODES]
VARIANTS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    *(({"stream_mode": mode, "subgraphs": False, "version": "v1"}, (3,)) for mode in MODES),
    *(({"stream_mode": mode, "subgraphs": True, "version": "v2"}, (3,)) for mode in MODES),
    ({"stream_mode": EVERY, "subgraphs": True, "version": "v1"}, (1, 3)),
    ({"stream_mode": EVERY, "subgraphs": False, "version": "v2"}, (1, 3)),
    ({"stream_mode": ["updates", "custom"], "subgraphs": False, "version": "v1"}, (1,)),
]
"""Options of a stream, and numbers of particles to compare under them: each mode alone and all together."""


def comparable(name: str, options: dict[str, Any]) -> bool:
    """LangGraph puts an interrupt into the dict a workflow returned, where its other events of v1 hold it too: what
    they show depends on which modes are on, and AMC always needs values."""
    return name != "functional" or options["version"] == "v2" or options["stream_mode"] not in ("debug", "checkpoints")


_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # runs, tasks, checkpoints
    r"|\b[0-9a-f]{32}\b"  # interrupts
    r"|\d{4}-\d\d-\d\dT[0-9:.+]+"  # times
    r"|\b0x[0-9a-f]+\b"  # objects
    r"|\b\d{32}\.\d\.\d+\b"  # channel versions
)


def wrapped(app: Any, case: Case, particles: int, **settings: Any) -> Any:
    """The app as particles that are resampled at every boundary, by noise."""
    noise = np.random.default_rng(0)
    return amc.wrap(
        app,
        **{
            "particles": particles,
            "value": lambda transcripts: noise.random(len(transcripts)),
            "transcript": None if "messages" in app.channels else amc.Transcript.from_state(lambda s: repr(s)),
            "boundary": case.boundary,
            "resample": amc.every(1),
            "seed": 3,
            **settings,
        },
    )


def in_order(interrupts: Any) -> Any:
    """Interrupts of tasks that run side by side come in the order in which those end."""
    return sorted(interrupts, key=lambda i: repr(i.value)) if isinstance(interrupts, list) else interrupts


def described(value: Any) -> str:
    """A value as text in which equal things read equal: keys sorted, types of containers kept."""
    if isinstance(value, dict):
        inner = (f"{k!r}: {described(in_order(v) if k == '__interrupt__' else v)}" for k, v in value.items())
        return "{" + ", ".join(sorted(inner)) + "}"
    if isinstance(value, list | tuple):
        items = ", ".join(described(v) for v in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    if isinstance(value, BaseMessage | BaseModel):
        return f"{type(value).__name__}{described(dict(value))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}{described({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})}"
    return repr(value)


def numbered(texts: Iterable[str], *, ordered: bool) -> list[str]:
    """Texts with every random name replaced by the order of its first appearance (or by one name for all)."""
    names: dict[str, str] = {}
    return [_RANDOM.sub(lambda m: names.setdefault(m[0], f"#{len(names)}") if ordered else "#", t) for t in texts]


def canonical(name: str, seen: list[str]) -> list[str]:
    if name in PARALLEL:
        return sorted(numbered(seen, ordered=False))
    return numbered(seen, ordered=True)


def stream(app: Any, inputs: Iterable[Any], **options: Any) -> list[str]:
    return [event for given in inputs for event in run(app, given, **options)]


async def astream(app: Any, inputs: Iterable[Any], **options: Any) -> list[str]:
    return [event for given in inputs for event in await arun(app, given, **options)]


def run(app: Any, given: Any, **options: Any) -> list[str]:
    return [described(e) for e in app.stream(copy.deepcopy(given), CONFIG, **options)]


async def arun(app: Any, given: Any, **options: Any) -> list[str]:
    return [described(e) async for e in app.astream(copy.deepcopy(given), CONFIG, **options)]
