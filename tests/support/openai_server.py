"""A real HTTP server that speaks OpenAI's chat completions on loopback, for tests that must not fake a client.

    with OpenAIServer() as server:
        model = chat_model("openai/test-model", api_base=server.base_url, api_key="test")

``server.requests`` holds the parsed body of every request in order of arrival. ``server.reply`` decides the
answer: it is called with the body and the number of the choice within the whole server's life, and returns
text, or a dict with an OpenAI message; what it raises as `ServerError` becomes an HTTP error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any], int], str | dict[str, Any]]
_MAX_BODY = 1 << 20


class ServerError(Exception):
    """Raised by a reply hook to answer with an HTTP error."""

    def __init__(self, status: int, message: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


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
            count = (body.get("n") or 1) if self.honour_n else 1
            numbers = range(self._choices, self._choices + count)
            self._choices += count
        self._closing.wait(self.delay)
        choices = []
        for index, number in enumerate(numbers):
            message = self.reply(body, number)
            if isinstance(message, str):
                message = {"role": "assistant", "content": message}
            reason = "tool_calls" if message.get("tool_calls") else "stop"
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
        try:
            response = self.server_state.answer(body)
        except ServerError as error:
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            self._json(error.status, {"error": {"message": str(error), "type": kind, "code": error.code}})
            return
        if body.get("stream"):
            self._stream(response, bool((body.get("stream_options") or {}).get("include_usage")))
        else:
            self._json(200, response)

    def _json(self, status: int, payload: dict[str, Any]) -> None:
        data = json.dumps(payload).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
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
        for event in events:
            self.wfile.write(f"data: {json.dumps({**base, **event})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are recorded, not printed."""


def _parts(text: str) -> list[str]:
    return [text[i : i + 4] for i in range(0, len(text), 4)]
