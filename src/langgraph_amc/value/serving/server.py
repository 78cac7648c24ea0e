"""A value function as an HTTP server: what `amc serve-value` runs, and what `RemoteValue` talks to.

    POST /score     {"transcripts": [["…", "…"], …], "beta": 0.1}  ->  {"scores": [0.7, null, …], "value": …, …}
    GET  /version   what is served: library version, fingerprints, whether it knows the soft value
    GET  /health    {"status": "ok"}

Requests that come within a few milliseconds are scored in one batch. Errors are {"error": {"code": …, "message": …}}.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langgraph_amc.checks import check_text, is_number, is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.callables import CheckedValue, LazyValue, as_value
from langgraph_amc.value.protocol import SoftValueFunction, SupportsUncertainty, ValueFunction
from langgraph_amc.value.serving.batching import MicroBatches
from langgraph_amc.value.serving.connection import NO_SOFT_VALUE, SERVICE
from langgraph_amc.value.serving.http_server import HTTPServer, Refusal

_STEPS = 256  # of which the uncertainty is told one by one


@dataclass(frozen=True, slots=True)
class Served:
    """A value function and what clients may know of it.

    Attributes
    ----------
    value: whose results are checked, see `as_value`.
    fingerprint: differs where the value function does; ``None`` if that cannot be told.
    transcripts: fingerprint of the transcripts it was trained on; ``None``: it reads any.
    soft: whether it knows the soft value.
    uncertainty: standard deviation of its error at each step, `SupportsUncertainty`; the last goes for all later ones.
    """

    value: ValueFunction
    fingerprint: str | None = None
    transcripts: str | None = None
    soft: bool = False
    uncertainty: tuple[float, ...] = ()

    @classmethod
    def of(cls, given: Any, fingerprint: str | None = None) -> Served:
        """Anything that `as_value` takes, loaded now; the fingerprint of a folder is that of its files."""
        value = as_value(given)
        soft, transcripts = isinstance(value, SoftValueFunction), None
        if isinstance(value, CheckedValue) and isinstance(value.inner, LazyValue):
            value.inner.load()
            manifest = value.inner.manifest
            fingerprint = digest(*sorted(p for p in manifest.parent.iterdir() if p.is_file()))
            transcripts = json.loads(manifest.read_text(encoding="utf-8")).get("transcript_fingerprint")
            soft = soft and _has_soft_values(value)
        return cls(value, fingerprint, transcripts, soft, _uncertainty(value))


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a server.

    Attributes
    ----------
    batch: transcripts of one request, and of one call of the value function.
    waiting: transcripts that may wait; more are refused with 503.
    window: seconds that a request waits for others to share its batch.
    body: bytes of a request.
    """

    batch: int = 256
    waiting: int = 4096
    window: float = 0.005
    body: int = 32 << 20

    def __post_init__(self) -> None:
        counts = all(is_whole(count, 1) for count in (self.batch, self.waiting, self.body))
        if not (counts and is_number(self.window) and 0 <= self.window < 10):
            raise ConfigurationError(f"bounds of a value server are above 0, and its window below 10 s, got {self}")


class ValueServer:
    """Serves a value function until it is closed; use it in a ``with`` statement.

    Parameters
    ----------
    host, port: where it listens; port 0 takes a free one. Nothing but this machine reaches the default host.
    token: bearer token that requests must carry, but those for /health.

    Raises
    ------
    ConfigurationError: it cannot listen there.
    """

    def __init__(
        self,
        served: Served,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        if not isinstance(served, Served):
            raise ConfigurationError(f"a value server serves Served.of(value), got {served!r}")
        if not isinstance(host, str) or not is_whole(port):
            raise ConfigurationError(f"host is text and port a whole number, 0 for a free one, got {host!r}:{port!r}")
        check_text("token", token)
        if limits is not None and not isinstance(limits, ServerLimits):
            raise ConfigurationError(f"limits is ServerLimits(…), or None, got {limits!r}")
        self.served = served
        self.limits = limits or ServerLimits()
        self._token = token
        self._host = host
        self.batches = MicroBatches(served.value, self.limits.batch, self.limits.waiting, self.limits.window)
        try:
            self._http = HTTPServer(self, host, port)
        except (OSError, OverflowError) as error:
            self.batches.close()
            raise ConfigurationError(f"cannot listen on {host}:{port} ({error}): choose another --port") from error
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, name="amc-value-server", daemon=True
        )

    @property
    def url(self) -> str:
        """Its address."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._http.server_address[1]}"

    def __enter__(self) -> ValueServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more requests, answer those that are there, and stop."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self.batches.close()
        self._http.hang_up()

    def about(self) -> dict[str, Any]:
        """What /version says."""
        return {
            "service": SERVICE,
            "version": version("langgraph-amc"),
            "value": self.served.fingerprint,
            "transcripts": self.served.transcripts,
            "soft": self.served.soft,
            "uncertainty": _numbers(self.served.uncertainty),
            "max_transcripts": self.limits.batch,
            "max_body": self.limits.body,
        }

    def authorised(self, header: str | None) -> bool:
        """Whether a request with this Authorization header may pass."""
        if self._token is None:
            return True
        return hmac.compare_digest((header or "").encode(), f"Bearer {self._token}".encode())

    def score(self, request: Any) -> dict[str, Any]:
        """What /score answers to this JSON."""
        transcripts, beta = self._read(request)
        try:
            scores = self.batches.score(transcripts, beta)
        except ConfigurationError as error:
            if beta is None:
                raise
            raise Refusal(400, NO_SOFT_VALUE, str(error)) from error
        return {
            "scores": _numbers(scores.tolist()),
            "value": self.served.fingerprint,
            "transcripts": self.served.transcripts,
        }

    def _read(self, request: Any) -> tuple[list[Segments], float | None]:
        if not isinstance(request, Mapping) or not set(request) <= {"transcripts", "beta"}:
            raise Refusal(400, "bad_request", 'send {"transcripts": [["…"], …]}, and "beta" for the soft value')
        transcripts, beta = request.get("transcripts"), request.get("beta")
        if not isinstance(transcripts, list) or not all(_is_transcript(segments) for segments in transcripts):
            raise Refusal(400, "bad_request", "transcripts is a list of transcripts, each a list of one or more texts")
        if len(transcripts) > self.limits.batch:
            raise Refusal(413, "too_many", f"at most {self.limits.batch} transcripts in one request: send it in parts")
        if beta is None:
            return transcripts, None
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < math.inf:
            raise Refusal(400, "bad_request", "beta is a temperature, a finite number above 0")
        if not self.served.soft:
            raise Refusal(400, NO_SOFT_VALUE, "this value function has no soft value: leave beta out")
        return transcripts, float(beta)


def serve(server: ValueServer) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for the answers under way. Main thread only."""
    stopped = threading.Event()
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def restore(*_: object) -> None:
        stopped.set()
        for kind, handler in before.items():
            signal.signal(kind, handler)

    for kind in before:
        signal.signal(kind, restore)
    try:
        with server:
            while not stopped.wait(0.2):  # without a timeout no signal gets through on Windows
                pass
    finally:
        restore()


def digest(*files: Path) -> str:
    """Sixteen hex digits that differ where the names or contents of the files differ."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as opened:
            found.update(f"{path.name}\0{hashlib.file_digest(opened, 'sha256').hexdigest()}\0".encode())
    return found.hexdigest()[:16]


def _has_soft_values(value: Any) -> bool:
    """Whether a trained value function has a soft value: one that knows means of graded returns says so when asked."""
    try:
        value.soft_score([("?",)], 1.0)
    except ConfigurationError:
        return False
    return True


def _uncertainty(value: ValueFunction) -> tuple[float, ...]:
    """What it knows of its own error, step by step, without repetitions at the end."""
    inner = value.inner if isinstance(value, CheckedValue) else value
    if not isinstance(inner, SupportsUncertainty):
        return ()
    found = [inner.uncertainty(step) for step in range(_STEPS)]
    while len(found) > 1 and (found[-1] == found[-2] or (math.isnan(found[-1]) and math.isnan(found[-2]))):
        found.pop()
    return tuple(found)


def _numbers(found: Sequence[float]) -> list[float | None]:
    """JSON knows no NaN."""
    return [None if math.isnan(number) else number for number in found]


def _is_transcript(segments: Any) -> bool:
    return isinstance(segments, list) and bool(segments) and all(isinstance(segment, str) for segment in segments)
