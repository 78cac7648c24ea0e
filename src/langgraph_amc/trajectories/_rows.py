"""A trajectory as rows and back, with the checks that keep NaN and unprintable text out of the store."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import sqlalchemy as sa

from langgraph_amc.trajectories import schema
from langgraph_amc.trajectories.schema import StoreError
from langgraph_amc.trajectories.types import Trajectory, Usage


class Row(NamedTuple):
    """One state: what it appended, the reward that came with it (none at t = 0), and V where scored."""

    segment: str
    reward: float | None
    value: float | None


def rows_of(trajectory: Trajectory) -> list[Row]:
    """The trajectory's states, checked."""
    states = len(trajectory.segments)
    if trajectory.values and len(trajectory.values) != states:
        raise StoreError(f"{states} states need {states} values or none, got {len(trajectory.values)}")
    values = trajectory.values or (None,) * states
    rewards = (None, *trajectory.rewards)
    return [
        Row(
            check_text(segment, f"segment {t}"),
            check_number(reward, f"reward {t}"),
            check_number(value, f"value {t}"),
        )
        for t, (segment, reward, value) in enumerate(zip(trajectory.segments, rewards, values, strict=True))
    ]


def load(connection: sa.Connection, keys: list[int]) -> list[Trajectory]:
    """The trajectories of ``keys``, put together from their own and their ancestors' steps."""
    table, steps = schema.trajectories, schema.steps
    heads: dict[int, Any] = {}
    missing = set(keys)
    while missing:
        for row in connection.execute(sa.select(table).where(table.c.key.in_(missing))):
            heads[row.key] = row
        missing = {row.shares_key for row in heads.values() if row.shares_key is not None} - heads.keys()
    rows: dict[int, list[Row]] = {key: [] for key in heads}
    own = sa.select(steps).where(steps.c.trajectory.in_(heads)).order_by(steps.c.trajectory, steps.c.t)
    for step in connection.execute(own):
        rows[step.trajectory].append(Row(step.segment, step.reward, step.value))
    for key in sorted(heads):  # a parent's key is smaller than its clone's
        head = heads[key]
        if head.shares_key is not None:
            rows[key] = rows[head.shares_key][: head.shares] + rows[key]
        if len(rows[key]) != head.states:
            raise StoreError(f"particle {head.particle!r} of run {head.run_id!r} has lost steps: import it again")
    return [_trajectory(heads[key], rows[key]) for key in keys]


def _trajectory(head: Any, rows: list[Row]) -> Trajectory:
    """The trajectory of a row of the trajectories table and its states."""
    return Trajectory(
        run_id=head.run_id,
        particle=head.particle,
        segments=tuple(row.segment for row in rows),
        rewards=tuple(row.reward for row in rows[1:] if row.reward is not None),
        outcome=head.outcome,
        status=head.status,
        task_id=head.task_id,
        parent=head.parent,
        forked_at=head.forked_at,
        log_weight=head.log_weight,
        values=tuple(row.value for row in rows) if head.has_values else (),
        usage=Usage(head.calls, head.input_tokens, head.output_tokens, head.cost),
        fingerprint=head.fingerprint,
        error=head.error,
        metadata=json.loads(head.metadata),
    )


def check_number(value: float | None, what: str, *, minus_infinity: bool = False) -> float | None:
    """``value`` as a float, or `StoreError` where it is NaN or infinite; ``None`` is *missing*."""
    if value is None:
        return None
    number = float(value)
    if math.isfinite(number) or (minus_infinity and number == -math.inf):
        return number
    raise StoreError(f"{what} is {number}: a missing number is None, and a failed evaluation is missing")


def check_text(text: str, what: str) -> str:
    """``text``, or `StoreError` where not every database can hold it."""
    if text.isascii() and "\x00" not in text:
        return text
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise StoreError(f"{what} contains a lone surrogate: write it with Transcript.render") from exc
    if "\x00" in text:
        raise StoreError(f"{what} contains a NUL character: write it with Transcript.render")
    return text


def check_id(text: str, what: str) -> str:
    """``text`` if it can be a key: printable and at most 255 characters."""
    if not isinstance(text, str) or not text or len(text) > 255:
        raise StoreError(f"{what} is a string of 1 to 255 characters, not {text!r:.80}")
    return check_text(text, what)
