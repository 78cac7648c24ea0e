"""The connection to a value server: kept open, with retries, and every failure as an error that says what to do."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception

from langgraph_amc.checks import check_text, without_password
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.policy.retry import Retry, is_transient

if TYPE_CHECKING:
    import httpx

SERVICE = "langgraph-amc-value"
"""What `amc serve-value` calls itself."""
TOKEN_VARIABLE = "AMC_VALUE_TOKEN"  # noqa: S105  # a name, not a secret
NO_SOFT_VALUE = "no_soft_value"
_SAID = 300


class RemoteValueError(AMCError, RuntimeError):
    """A value server cannot be reached, refuses a request, or answers with something else than scores.

    ``status_code`` is the HTTP status of a refusal; ``litellm_response_headers`` its headers, under the name by which
    `policy.retry` looks for a Retry-After.
    """

    def __init__(self, message: str, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status
        self.litellm_response_headers = headers or {}


class _Unreachable(RemoteValueError, ConnectionError):
    """No answer came: worth another try."""


class Connection:
    """JSON over HTTP with one server; safe to use from several threads.

    Parameters
    ----------
    url: its address, beginning with http:// or https://; what is kept for messages has no user and password.
    token: bearer token, or ``None``.
    retry: how often and how patiently a failed request is sent again, and the seconds until one counts as failed.
    """

    def __init__(self, url: str, token: str | None, retry: Retry) -> None:
        self._address = _checked(url).rstrip("/")
        self.url = without_password(self._address)
        check_text("token", token)
        if not isinstance(retry, Retry):
            raise ConfigurationError(f"retry is a Retry, such as Retry(attempts=3), got {retry!r}")
        self._token = token
        self._retry = retry
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    def close(self) -> None:
        """Close what is open; the next request opens it again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer, after as many attempts as are allowed."""
        data = None if body is None else json.dumps(body).encode()
        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            wait=lambda state: self._retry.wait(_error(state), state.attempt_number),
            stop=lambda state: state.attempt_number >= self._retry.attempts,
            sleep=time.sleep,
            reraise=True,
        )
        return retrying(self._send, method, path, data)

    def _send(self, method: str, path: str, data: bytes | None) -> Any:
        import httpx

        try:
            response = self._http().request(method, path, content=data)
        except httpx.TimeoutException as error:
            raise _Unreachable(f"{self.url} did not answer within {self._retry.timeout:g} seconds") from error
        except httpx.TransportError as error:
            raise _Unreachable(f"{self.url} cannot be reached ({error}): is the value server running?") from error
        if response.status_code in (401, 403):
            raise ConfigurationError(
                f"{self.url} refuses the bearer token: set {TOKEN_VARIABLE} to the one it was started with"
            )
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success and answer is not None:
            return answer
        code, said = _complaint(answer)
        if code == NO_SOFT_VALUE:
            raise ConfigurationError(
                f"{self.url}: {said}; chances of success are weighed for beta with wrap(…, tau=amc.tilt(beta))"
            )
        what = "answers with something else than JSON" if response.is_success else f"answers {response.status_code}"
        raise RemoteValueError(
            f"{self.url}{path} {what}" + (f": {said}" if said else ""),
            None if response.is_success else response.status_code,
            response.headers,
        )

    def _http(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                headers = {"Content-Type": "application/json", "Accept": "application/json"}
                if self._token:
                    headers["Authorization"] = f"Bearer {self._token}"
                try:
                    url = httpx.URL(self._address)
                except httpx.InvalidURL as error:
                    raise ConfigurationError(f"{self.url!r} is no address of a server: {error}") from error
                # a proxy of the environment has no way to this machine's loopback
                self._client = httpx.Client(
                    base_url=url, headers=headers, timeout=self._retry.timeout, trust_env=not is_loopback(url.host)
                )
            return self._client


def _checked(url: Any) -> str:
    if not isinstance(url, str) or not is_url(url):
        given = without_password(url) if isinstance(url, str) else url
        raise ConfigurationError(f"the address of a value server begins with http:// or https://, got {given!r}")
    try:
        parts = urlsplit(url)
        known = parts.hostname is not None and parts.port != -1  # asked for the port, it checks it
    except ValueError as error:
        raise ConfigurationError(f"{without_password(url)!r} is no address of a server") from error
    if not known:
        raise ConfigurationError(f"{without_password(url)!r} is no address of a server: it names no host")
    return url


def is_url(text: str) -> bool:
    """Whether a text is the address of an HTTP server."""
    return text.lower().startswith(("http://", "https://"))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _error(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _complaint(answer: Any) -> tuple[str | None, str]:
    """Code and message of an error in JSON, in OpenAI's form, FastAPI's or a bare one."""
    found = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    if isinstance(found, Mapping):
        return str(found.get("code")), str(found.get("message") or found.get("detail") or "")[:_SAID]
    return None, str(found or "")[:_SAID]
