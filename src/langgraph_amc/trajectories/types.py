"""What a run leaves behind: an append-only transcript, its rewards, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Segments = Sequence[str]
"""A transcript: ``segments[0]`` is the state before the first model call and ``segments[t]`` is what step
t appended, so the text of state t, ``"".join(segments[: t + 1])``, is a prefix of the text of state t+1."""

Status = Literal["finished", "failed", "interrupted", "truncated", "pruned"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Model usage. ``cost`` is in US dollars; ``None`` means that a price was unknown, never zero."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cost,
        )

    @property
    def tokens(self) -> int:
        """Input plus output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One particle's run from its first state to its last.

    Attributes
    ----------
    run_id: groups the particles that ran on one input.
    particle: name within the run.
    segments: the transcript, see `Segments`; T steps give T + 1 segments.
    rewards: observed step rewards, length T; ``rewards[t]`` arrived between state t and state t + 1.
    outcome: reward of the finished run as a whole, which no state contains; ``None`` is *missing*, not 0.
    status: how it ended. Failures are kept as labelled failures, pruned runs are censored.
    values: V at each state where it was scored, else ``None``; length T + 1 or empty.
    parent, forked_at: the particle and boundary this one was cloned from.
    fingerprint: of the transcript options that wrote the segments.
    """

    run_id: str
    particle: str
    segments: tuple[str, ...]
    rewards: tuple[float, ...] = ()
    outcome: float | None = None
    status: Status = "finished"
    task_id: str | None = None
    parent: str | None = None
    forked_at: int | None = None
    log_weight: float | None = None
    values: tuple[float | None, ...] = ()
    usage: Usage = Usage()
    fingerprint: str = ""
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError("a trajectory has at least one segment: its first state")
        if not self.rewards:
            object.__setattr__(self, "rewards", (0.0,) * (len(self.segments) - 1))
        if len(self.rewards) != len(self.segments) - 1:
            raise ValueError(
                f"{len(self.segments)} segments need {len(self.segments) - 1} rewards, got {len(self.rewards)}"
            )

    @property
    def total(self) -> float | None:
        """Return of the whole run, Σ rewards + outcome; ``None`` while the outcome is missing."""
        return None if self.outcome is None else sum(self.rewards) + self.outcome

    def returns(self) -> tuple[float, ...] | None:
        """Future return at each of the T + 1 states, or ``None`` while the outcome is missing.

        At the last state only the outcome is still to come: no state contains it.
        """
        if self.outcome is None:
            return None
        out = [self.outcome]
        for r in reversed(self.rewards):
            out.append(out[-1] + r)
        return tuple(reversed(out))

    def with_outcome(self, outcome: float | None) -> Trajectory:
        """The same trajectory with another outcome."""
        return replace(self, outcome=outcome)
