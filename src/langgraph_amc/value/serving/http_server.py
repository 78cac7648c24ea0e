"""The HTTP side of a value server: requests of bounded size, answers and errors in JSON, a clean end.

The standard library's server suffices: no ASGI server is among the dependencies, and every answer waits for the one
model anyway. Nothing of a request is ever logged.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import AMCError
from langgraph_amc.value.serving.batching import BusyError
from langgraph_amc.value.serving.connection import SERVICE

if TYPE_CHECKING:
    from langgraph_amc.value.serving.server import ValueServer

_log = logging.getLogger(__name__)
_IDLE = 60.0  # seconds after which a connection on which nothing comes is closed
_CONNECTIONS = 64
_GRACE = 10.0  # seconds that the answers under way have when the server stops
_DIGITS = re.compile("[0-9]{1,18}")
_ROUTES = {"/health": "GET", "/version": "GET", "/score": "POST"}


class Refusal(Exception):
    """An HTTP error to answer with."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class HTTPServer(ThreadingHTTPServer):
    """Accepts connections, a thread each, and knows which answers are under way."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner: ValueServer, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.owner = owner
        self.stopping = False
        self._open: set[socket.socket] = set()
        self._answering = 0
        self._changed = threading.Condition()
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            full = len(self._open) >= _CONNECTIONS
            if not full:
                self._open.add(request)
        if full:
            self.shutdown_request(request)  # the client comes again
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that hangs up is no error of ours."""

    def count(self, more: int) -> None:
        """One more or one fewer answer is under way."""
        with self._changed:
            self._answering += more
            self._changed.notify_all()

    def hang_up(self) -> None:
        """Let the answers under way be sent, then close all connections."""
        self.stopping = True
        with self._changed:
            self._changed.wait_for(lambda: not self._answering, _GRACE)
            left = list(self._open)
        for connection in left:
            with suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it


class _Handler(BaseHTTPRequestHandler):
    server: HTTPServer
    protocol_version = "HTTP/1.1"
    server_version = SERVICE
    sys_version = ""
    timeout = _IDLE
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses: broken requests and methods that nothing takes."""
        self.close_connection = True
        said = message or HTTPStatus(code).phrase
        self._json(code, {"error": {"code": "bad_request", "message": said}})

    def _answer(self, method: str) -> None:
        self.server.count(1)
        lengths = self.headers.get_all("Content-Length", ["0"])
        # one number, and nothing in pieces: where a request ends must not be a matter of opinion
        framed = len(lengths) == 1 and bool(_DIGITS.fullmatch(lengths[0])) and "Transfer-Encoding" not in self.headers
        self._unread = int(lengths[0]) if framed else 0
        try:
            if not framed:
                self.close_connection = True
                raise Refusal(411, "bad_request", "send a Content-Length, in digits, and the body in one piece")
            answer = self._found(method, self.path.partition("?")[0])
            self.close_connection |= bool(self._unread)
            self._json(200, answer)
        except Refusal as refusal:
            self._complain(refusal.status, refusal.code, str(refusal))
        except BusyError as error:
            self._complain(503, "busy", str(error), {"Retry-After": "1"})
        except AMCError as error:  # it would fail again
            self._complain(422, "value_error", str(error))
        except OSError:
            self.close_connection = True  # the client has gone
        except Exception as error:
            _log.warning("the value function failed with %s", type(error).__name__)
            self._complain(500, "value_error", f"the value function failed with {type(error).__name__}")
        finally:
            self.server.count(-1)

    def _found(self, method: str, path: str) -> dict[str, Any]:
        owner = self.server.owner
        if path not in _ROUTES:
            raise Refusal(404, "not_found", f"there are {', '.join(_ROUTES)}")
        if _ROUTES[path] != method:
            raise Refusal(405, "wrong_method", f"{path} takes {_ROUTES[path]}")
        if path == "/health":
            return {"status": "ok"}
        if not owner.authorised(self.headers.get("Authorization")):
            raise Refusal(401, "unauthorised", "send the bearer token that the server was started with")
        return owner.about() if path == "/version" else owner.score(self._request())

    def _request(self) -> Any:
        """The JSON of the body."""
        # what a web page can send to another site without asking first is not taken
        if self.headers.get_content_type() != "application/json":
            raise Refusal(415, "bad_request", "send application/json")
        if self._unread > self.server.owner.limits.body:
            most = self.server.owner.limits.body
            raise Refusal(413, "too_large", f"at most {most:,} bytes in one request: send it in parts")
        length, self._unread = self._unread, 0
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client hung up")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "bad_request", "the body is no JSON") from None

    def _complain(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error; a body that was not read is thrown away, or the client would not see the answer."""
        try:
            if self._unread:
                self.close_connection = True
                left = min(self._unread, self.server.owner.limits.body)
                while left > 0 and (thrown := len(self.rfile.read(min(left, 1 << 16)))):
                    left -= thrown
            self._json(status, {"error": {"code": code, "message": message}}, headers)
        except OSError:
            self.close_connection = True

    def _json(self, status: int, answer: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection or self.server.stopping:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
