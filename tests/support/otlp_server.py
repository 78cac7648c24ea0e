"""A receiver of OTLP over HTTP on loopback, to look at what really goes over the wire.

with OTLPServer() as server:
    exporter = OTLPSpanExporter(endpoint=server.traces)
    ...
server.spans  # decoded with opentelemetry-proto, in order of arrival
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_MAX_BODY = 1 << 24


@dataclass(frozen=True)
class WireLink:
    """Where a link leads, and what it says."""

    trace: str
    span: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class WireSpan:
    """A span as it arrived; ids in hexadecimal, ``parent`` empty for a root, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any], int]]
    links: list[WireLink]
    error: bool
    start: int
    end: int
    scope: str
    resource: dict[str, Any]


class OTLPServer:
    """Context manager around the server; stops by itself."""

    def __init__(self) -> None:
        self.spans: list[WireSpan] = []
        self.metrics: dict[str, list[Any]] = {}
        """Data points by the name of their instrument; the last export counts."""
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to."""
        assert self._server is not None, "use the server in a with statement"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def traces(self) -> str:
        """Where spans are sent."""
        return f"{self.endpoint}/v1/traces"

    def __enter__(self) -> OTLPServer:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers["content-length"]), _MAX_BODY)
                body = self.rfile.read(length)
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                owner._take(self.path, body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        with self._lock:
            if path == "/v1/traces":
                self.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            elif path == "/v1/metrics":
                request = ExportMetricsServiceRequest.FromString(body)
                for scope in (s for r in request.resource_metrics for s in r.scope_metrics):
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        self.metrics[metric.name] = list(data.data_points)


def _spans(request: ExportTraceServiceRequest) -> Iterator[WireSpan]:
    for resource in request.resource_spans:
        about = attributes_of(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield WireSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    attributes_of(span.attributes),
                    [(e.name, attributes_of(e.attributes), e.time_unix_nano) for e in span.events],
                    [WireLink(x.trace_id.hex(), x.span_id.hex(), attributes_of(x.attributes)) for x in span.links],
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    scope.scope.name,
                    about,
                )


def attributes_of(pairs: Sequence[Any]) -> dict[str, Any]:
    """Attributes as plain values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
