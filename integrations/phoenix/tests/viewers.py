"""Viewers on loopback that keep what they are sent; each speaks the part of its protocol that scores need."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import langgraph_amc as amc

Answer = Callable[[str, str, Any], tuple[int, Any]]
"""``(method, path, body) -> (status, answer)``"""


@contextmanager
def viewer(answer: Answer) -> Iterator[str]:
    """A server that answers with a function; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind = self.headers.get("content-type") or ""
            status, said = answer(self.command, self.path, json.loads(body) if body and "json" in kind else body)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _any

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def run(sink: Any) -> tuple[amc.AMCResult, dict[str, str]]:
    """Two steps of four particles, and the names of all spans by their ids."""

    def step(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", f"step {len(state['messages'])}")]}

    def length(transcript: str) -> float:
        return len(transcript) / 1000

    graph = StateGraph(MessagesState).add_node("a", step).add_node("b", step)
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = amc.Telemetry(tracer_provider=provider, scores=sink)
    better = amc.wrap(
        app, particles=4, value=length, reward=lambda run: 0.5, boundary="step", telemetry=telemetry, seed=0
    )
    better.invoke({"messages": [("user", "go")]})
    found = {f"{s.context.span_id:016x}": s.name for s in spans.get_finished_spans() if s.context is not None}
    return amc.last_run(better), found
