"""Scores for viewers that keep them apart from spans: values and rewards, each of one span.

No form of OTLP becomes a score in every viewer. What is a span event (``gen_ai.evaluation.result``) in all of them is
handed to a `ScoreSink` besides, which files it where its viewer keeps scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from opentelemetry.trace import SpanContext

Annotator = Literal["CODE", "LLM"]


@dataclass(frozen=True, slots=True)
class Score:
    """A number given to a span.

    Attributes
    ----------
    trace_id, span_id: in hexadecimal, 32 and 16 digits.
    name: what was measured, e.g. ``"value"`` or ``"reward"``.
    value: finite. label: a word for it, or ``None``.
    """

    trace_id: str
    span_id: str
    name: str
    value: float
    label: str | None = None
    annotator: Annotator = "CODE"


def score_of(span: SpanContext, name: str, value: float) -> Score:
    """The score of this span, which may have ended."""
    return Score(f"{span.trace_id:032x}", f"{span.span_id:016x}", name, float(value))


@runtime_checkable
class ScoreSink(Protocol):
    """Takes the scores of a run when it is over; must return at once."""

    def send(self, scores: Sequence[Score]) -> None: ...
