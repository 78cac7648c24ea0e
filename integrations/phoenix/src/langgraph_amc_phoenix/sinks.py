"""Values and rewards as scores of viewers: one Protocol (`langgraph_amc.telemetry.ScoreSink`), three viewers.

A run hands over its scores when it ends, and goes on; they are sent from a thread, since a viewer can file a score only
once it has the span, which arrives in its own time.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import httpx

from langgraph_amc.telemetry import Score

PATIENCE = 30.0
"""Seconds a viewer may take to know a span."""


class NotThereYetError(Exception):
    """The viewer does not know the span yet."""


class _Sender:
    """Sends batches one after another from a thread, each again and again until its spans are known."""

    def __init__(self, send: Callable[[Sequence[Score]], None], patience: float) -> None:
        self._send = send
        self._patience = patience
        self._waiting: queue.SimpleQueue[Sequence[Score]] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._pending = 0
        self._thread: threading.Thread | None = None

    def put(self, scores: Sequence[Score]) -> None:
        with self._idle:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="amc-scores", daemon=True)
                self._thread.start()
        self._waiting.put(tuple(scores))

    def flush(self, timeout: float) -> bool:
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def _run(self) -> None:
        while True:
            scores = self._waiting.get()
            try:
                self._try(scores)
            except Exception as error:
                lost = f"{len(scores)} score(s) were not filed: {type(error).__name__}: {error}"
                warnings.warn(lost, RuntimeWarning, stacklevel=2)
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _try(self, scores: Sequence[Score]) -> None:
        end = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                self._send(scores)
                return
            except NotThereYetError:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


class PhoenixScores:
    """Span annotations of Phoenix, through its REST API.

    Parameters
    ----------
    url: of the server, like ``http://127.0.0.1:6006``.
    patience: seconds to wait for spans to arrive there.
    """

    def __init__(self, url: str, *, api_key: str | None = None, patience: float = PATIENCE) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=30)
        self._sender = _Sender(self._annotate, patience)

    def send(self, scores: Sequence[Score]) -> None:
        """Send from a thread; returns at once."""
        self._sender.put(scores)

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Wait until everything is filed or given up; False if it takes longer than that."""
        return self._sender.flush(timeout)

    def _annotate(self, scores: Sequence[Score]) -> None:
        data = [
            {
                "span_id": s.span_id,
                "name": s.name,
                "annotator_kind": s.annotator,
                "result": {"score": s.value, "label": s.label},
                "identifier": "langgraph-amc",
            }
            for s in scores
        ]
        answer = self._client.post("/v1/span_annotations", params={"sync": "true"}, json={"data": data})
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotThereYetError(answer.text)
        answer.raise_for_status()


class _Langfuse(Protocol):
    def create_score(self, *, name: str, value: float, trace_id: str, observation_id: str, score_id: str) -> None: ...

    def flush(self) -> None: ...


class LangfuseScores:
    """Scores of Langfuse's observations; ``client`` is its own (``langfuse.Langfuse()``), which sends from a thread.

    The same score sent again replaces the earlier one.
    """

    def __init__(self, client: _Langfuse) -> None:
        self._client = client

    def send(self, scores: Sequence[Score]) -> None:
        """Hand them to the client, which queues them."""
        for s in scores:
            self._client.create_score(
                name=s.name,
                value=s.value,
                trace_id=s.trace_id,
                observation_id=s.span_id,
                score_id=f"{s.span_id}-{s.name}",
            )

    def flush(self) -> None:
        """Wait until everything is sent."""
        self._client.flush()


class LangSmithScores:
    """Feedback on LangSmith's runs; ``client`` is its own (``langsmith.Client()``).

    LangSmith makes the id of a run from that of the span; it keeps four decimals of a score.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sender = _Sender(self._feed_back, 0.0)

    def send(self, scores: Sequence[Score]) -> None:
        """Send from a thread; returns at once."""
        self._sender.put(scores)

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Wait until everything is filed or given up; False if it takes longer than that."""
        done = self._sender.flush(timeout)
        self._client.flush()
        return done

    def _feed_back(self, scores: Sequence[Score]) -> None:
        from langsmith.integrations.otel import langsmith_run_id_from_otel_span_id

        for s in scores:
            run_id = langsmith_run_id_from_otel_span_id(int(s.span_id, 16))
            self._client.create_feedback(run_id=run_id, key=s.name, score=s.value)
