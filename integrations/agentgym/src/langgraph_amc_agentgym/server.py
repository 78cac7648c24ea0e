"""One environment server over HTTP: its requests, what may be sent twice, and the environments it holds for us.

A create, a step and a reset are sent once: again only where the first was surely not received (no connection).
A close may be repeated. Whatever else goes wrong is said by name; the address is shown without its credentials.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from langgraph_amc.checks import is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import WorldLostError
from langgraph_amc_agentgym.dialects import Dialect, Where, dialect_of
from langgraph_amc_agentgym.errors import (
    LeakedEnvironmentWarning,
    ServerRefusedError,
    ServerUnreachableError,
    UnexpectedAnswerError,
)

CLOSE_TIMEOUT = 10.0
"""Seconds that a close may take: it must not hold up the end of a run."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
_again = retry(
    retry=retry_if_exception_type(_NOT_SENT),
    stop=stop_after_attempt(3),
    wait=wait_exponential(0.1, max=1),
    reraise=True,
)


@dataclass(eq=False, slots=True)
class RemoteEnvironment:
    """One environment on the server. ``used``: it has been reset before."""

    id: int | str
    used: bool = False


@dataclass(slots=True)
class _Held:
    """The environments on the server that are ours: in use, and those that it cannot close, to be used again."""

    process: int = field(default_factory=os.getpid)
    open: dict[int | str, RemoteEnvironment] = field(default_factory=dict)
    free: list[RemoteEnvironment] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Server:
    """A server at ``url`` that speaks ``dialect``; for any number of worlds and threads.

    Parameters
    ----------
    url: as in ``http://127.0.0.1:36001``; a user and password in it are sent as basic authentication.
    dialect: or its name.
    timeout: seconds for an answer.
    """

    def __init__(self, url: str, dialect: str | Dialect, *, timeout: float = 60.0) -> None:
        if not is_number(timeout) or timeout <= 0:
            raise ConfigurationError(f"timeout={timeout!r}: a request needs some seconds")
        self.dialect = dialect_of(dialect)
        address = _address(url)
        self.shown = str(address.copy_with(username=None, password=None)).rstrip("/")
        self.closes = self.dialect.closes
        self.timeout = timeout
        self._http = httpx.Client(
            base_url=self.shown + self.dialect.prefix,
            auth=(address.username, address.password) if address.username else None,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 5.0), pool=None),
            # Uvicorn drops a connection that is idle for 5 seconds, and a model may think longer than that.
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
            trust_env=not _is_loopback(address.host),  # a proxy has no way to this machine's own servers
        )
        self._held = _Held()
        self._exclusive = _lock(self.shown) if self.dialect.exclusive else nullcontext()
        self._finalizer = weakref.finalize(self, _close_all, self._http, self._held, self.dialect, self.shown, timeout)

    @property
    def open(self) -> int:
        """Environments in use now."""
        return len(self._held.open)

    def create(self, *, fresh: bool = False) -> RemoteEnvironment:
        """A new environment, or unless ``fresh`` one that could not be closed after another episode."""
        with self._held.lock:
            if self._held.free and not fresh:
                env = self._held.free.pop()
                self._held.open[env.id] = env
                return env
        try:
            with self._exclusive:
                answer = self._send("POST", "/create", dict(self.dialect.create))
        except WorldLostError as lost:
            what = f"{self.shown} may have made an environment whose id never came: {lost}"
            warnings.warn(LeakedEnvironmentWarning(what), stacklevel=3)
            raise
        given = self.at(answer, self.dialect.created, "/create")
        if isinstance(given, bool) or not isinstance(given, int | str):
            raise self.unexpected("/create", f"an environment's id, not {_cut(answer)}")
        env = RemoteEnvironment(given)
        with self._held.lock:
            # An id that is in use here is given by a server that was started anew: the older environment is lost.
            self._held.open[env.id] = env
        return env

    def reset(self, env: RemoteEnvironment, index: int) -> Any:
        """The server's answer to a reset."""
        body = {self.dialect.env: self._id(env), self.dialect.index: index, **self.dialect.reset}
        with self._exclusive:
            answer = self._send("POST", "/reset", body)
        env.used = True
        return answer

    def observation(self, env: RemoteEnvironment) -> Any:
        """What ``GET /observation`` says."""
        return self._send("GET", "/observation", {self.dialect.env: self._id(env)})

    def step(self, env: RemoteEnvironment, action: str) -> Any:
        """The server's answer to an action."""
        return self._send("POST", "/step", {self.dialect.env: self._id(env), "action": action})

    def release(self, env: RemoteEnvironment, *, sound: bool = True) -> None:
        """Close an environment; where the server cannot, keep it for another episode if it is ``sound``.

        Never raises: one that could not be closed now is tried again at the end.
        """
        if os.getpid() != self._held.process:
            return  # a fork: its parent goes on using the environment
        if self._held.open.get(env.id) is not env:
            return
        try:
            closes = self.closes and _close(self._http, self.dialect, env.id, self.timeout)
        except httpx.HTTPError:
            return
        with self._held.lock:
            self.closes = closes
            if self._held.open.get(env.id) is env:
                del self._held.open[env.id]
                if not closes and sound:
                    self._held.free.append(env)

    def close(self) -> None:
        """Close all environments that are still open, and the connections."""
        self._finalizer()

    def at(self, answer: Any, path: Where, request: str) -> Any:
        """The value at ``path`` in an answer; `UnexpectedAnswerError` where there is none."""
        for part in path:
            if not (isinstance(answer, Mapping) and part in answer):
                raise self.unexpected(request, f"{'.'.join(map(str, path))} in the answer, not {_cut(answer)}")
            answer = answer[part]
        return answer

    def unexpected(self, request: str, expected: str) -> UnexpectedAnswerError:
        """The error that says what was ``expected`` of an answer."""
        return UnexpectedAnswerError(
            f"{self.shown}{self.dialect.prefix}{request} should give {expected}: is this AgentGym's server for "
            f"{self.dialect.name}? Name its dialect, or describe it with a Dialect of your own"
        )

    def _id(self, env: RemoteEnvironment) -> int | str:
        if self._held.open.get(env.id) is not env:
            raise WorldLostError(f"{self.shown} was started anew, and its environment {env.id} is another one now")
        return env.id

    def _send(self, method: str, path: str, fields: dict[str, Any]) -> Any:
        request = f"{method} {self.shown}{self.dialect.prefix}{path}"
        try:
            response = self._request(method, path, fields)
        except _NOT_SENT as exc:
            raise ServerUnreachableError(
                f"{request}: no connection ({exc or type(exc).__name__}). Start the {self.dialect.name} server, "
                "or correct the address"
            ) from exc
        except httpx.TimeoutException as exc:
            raise WorldLostError(
                f"{request}: no answer in {self.timeout:g} s, so what it did is not known. Give the server more "
                "time (timeout=…), or fewer worlds at once (size=…)"
            ) from exc
        except httpx.TransportError as exc:
            raise WorldLostError(
                f"{request}: the connection broke ({exc or type(exc).__name__}), so what it did is not known. "
                "Look into the server's log, and whether it still runs"
            ) from exc
        return self._checked(request, path, response)

    @_again
    def _request(self, method: str, path: str, fields: dict[str, Any]) -> httpx.Response:
        if method == "GET":
            return self._http.get(path, params=fields)
        return self._http.post(path, json=fields)

    def _checked(self, request: str, path: str, response: httpx.Response) -> Any:
        status = response.status_code
        try:
            answer = response.json()
        except ValueError:
            if status == 200:
                raise self.unexpected(path, f"JSON, not {_cut(response.text)}") from None
            answer = response.text
        if status == 404:
            raise ServerRefusedError(
                request, status, _cut(answer), f"is this AgentGym's server for {self.dialect.name}?"
            )
        if status == 422:
            raise ServerRefusedError(
                request, status, _cut(answer), f"it asks for other fields than the dialect {self.dialect.name} has"
            )
        if status != 200:
            raise ServerRefusedError(request, status, _cut(answer), "look into the server's log")
        if isinstance(answer, Mapping) and "error" in answer:
            raise ServerRefusedError(
                request, status, _cut(answer["error"]), "the index or action may be none of this server's"
            )
        return answer


def _close(http: httpx.Client, dialect: Dialect, env: int | str, timeout: float) -> bool:
    """Close one environment; False where the server has no such request. Raises where it may still be open."""
    for last in (False, True):
        try:
            response = http.post("/close", json={dialect.env: env}, timeout=min(timeout, CLOSE_TIMEOUT))
        except httpx.ConnectError:
            return True  # a server that is gone has no environments
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            if last:
                raise
            continue
        if response.status_code in (502, 503, 504):
            response.raise_for_status()
        # Any other answer is of a server that closed it, or that had lost it.
        return response.status_code not in (404, 405)
    raise AssertionError("unreachable")


def _close_all(http: httpx.Client, held: _Held, dialect: Dialect, shown: str, timeout: float) -> None:
    """At the end, or when the interpreter exits: what is still open."""
    if os.getpid() != held.process:
        return
    kept = []
    for env in list(held.open) if dialect.closes else ():
        try:
            _close(http, dialect, env, timeout)
        except httpx.HTTPError:
            kept.append(env)
    http.close()
    if kept:
        warnings.warn(
            LeakedEnvironmentWarning(f"{shown} did not close its environments {kept}: restart it"), stacklevel=2
        )


@functools.cache
def _lock(shown: str) -> AbstractContextManager[Any]:
    """One for all of this process that speak to a server."""
    return threading.Lock()


def _address(url: str) -> httpx.URL:
    with suppress(httpx.InvalidURL, TypeError):
        address = httpx.URL(url)
        if address.scheme in ("http", "https") and address.host and not address.query and not address.fragment:
            return address
    raise ConfigurationError("the address of an environment server looks like http://127.0.0.1:36001")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _cut(said: Any, limit: int = 200) -> str:
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}…"
