"""A real HTTP server that speaks OpenAI's chat completions on loopback, for tests that must not fake a client.

    with OpenAIServer() as server:
        model = chat_model("openai/test-model", api_base=server.base_url, api_key="test")

``server.requests`` holds the parsed body of every request in order of arrival. ``server.reply`` decides the
answer: it is called with the body and the number of the choice within the whole server's life, and returns
text, or a dict with an OpenAI message (its ``finish_reason``, if any, becomes the choice's); what it raises as
`ServerError` becomes an HTTP error, and as `Broken` what its name says. ``server.arrivals`` holds when each came.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any], int], str | dict[str, Any]]
_MAX_BODY = 1 << 20


class ServerError(Exception):
    """Raised by a reply hook to answer with an HTTP error."""

    def __init__(
        self, status: int, message: str = "", code: str | None = None, retry_after: str | float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class Broken(Exception):
    """Raised by a reply hook to answer with malformed JSON (``"json"``), or to hang up without one (``"drop"``)."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class OpenAIServer:
    """Context manager around the server.

    Parameters
    ----------
    honour_n: return as many choices as ``n`` asks for; if not, one, as some servers do.
    delay: seconds before each answer, to have requests overlap.
    """

    def __init__(self, *, honour_n: bool = True, delay: float = 0.0) -> None:
        self.honour_n = honour_n
        self.delay = delay
        self.requests: list[dict[str, Any]] = []
        self.arrivals: list[float] = []
        self.running = self.most_running = 0
        self.reply: Reply = lambda body, number: f"answer {number}"
        self.prompt_tokens = 100
        self.completion_tokens = 10
        """Per choice."""
        self._choices = 0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def base_url(self) -> str:
        """What to give a client as its base URL."""
        assert self._server is not None, "use the server in a with statement"
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> OpenAIServer:
        owner = self

        class Handler(_Handler):
            server_state = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response to one request."""
        with self._lock:
            self.requests.append(body)
            self.arrivals.append(time.monotonic())
            count = (body.get("n") or 1) if self.honour_n else 1
            numbers = range(self._choices, self._choices + count)
            self._choices += count
        self._closing.wait(self.delay)
        choices = []
        for index, number in enumerate(numbers):
            message = self.reply(body, number)
            if isinstance(message, str):
                message = {"role": "assistant", "content": message}
            message = dict(message)
            reason = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
            choices.append({"index": index, "message": message, "finish_reason": reason, "logprobs": None})
        new = self.completion_tokens * count
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }
        return {
            "id": f"chatcmpl-{numbers[0]}",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model", ""),
            "choices": choices,
            "usage": usage,
        }

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Counts how many requests are being answered at a time."""
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1

    @property
    def billed(self) -> tuple[int, int]:
        """Input and output tokens of every request so far."""
        with self._lock:
            return self.prompt_tokens * len(self.requests), self.completion_tokens * self._choices


class _Handler(BaseHTTPRequestHandler):
    server_state: OpenAIServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > _MAX_BODY or not self.path.endswith("/chat/completions"):
            self.close_connection = True
            self._json(413 if length > _MAX_BODY else 404, {"error": {"message": "no"}})
            return
        body = json.loads(self.rfile.read(length))
        state = self.server_state
        try:
            with state.in_flight():
                response = state.answer(body)
        except ServerError as error:
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            told = {"error": {"message": str(error), "type": kind, "code": error.code}}
            self._json(error.status, told, error.retry_after)
            return
        except Broken as broken:
            self.close_connection = True
            if broken.how == "json":
                self._send(200, b'{"id": "chatcmpl-1", "choi')
            return
        if body.get("stream"):
            self._stream(response, bool((body.get("stream_options") or {}).get("include_usage")))
        else:
            self._json(200, response)

    def _json(self, status: int, payload: dict[str, Any], retry_after: str | float | None = None) -> None:
        self._send(status, json.dumps(payload).encode(), retry_after)

    def _send(self, status: int, data: bytes, retry_after: str | float | None = None) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if retry_after is not None:
                self.send_header("Retry-After", str(retry_after))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up: tests cancel requests

    def _stream(self, response: dict[str, Any], with_usage: bool) -> None:
        base = {k: response[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        events: list[dict[str, Any]] = []
        for choice in response["choices"]:
            message = choice["message"]
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            deltas += [{"content": part} for part in _parts(message.get("content") or "")]
            if message.get("tool_calls"):
                calls = [{**call, "index": i} for i, call in enumerate(message["tool_calls"])]
                deltas.append({"tool_calls": calls})
            for delta in deltas:
                events.append({"choices": [{"index": choice["index"], "delta": delta, "finish_reason": None}]})
            end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
            events.append({"choices": [end]})
        if with_usage:
            events.append({"choices": [], "usage": response["usage"]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for event in events:
                self.wfile.write(f"data: {json.dumps({**base, **event})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client gave up
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are recorded, not printed."""


def _parts(text: str) -> list[str]:
    return [text[i : i + 4] for i in range(0, len(text), 4)]
