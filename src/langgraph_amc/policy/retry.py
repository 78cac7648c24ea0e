"""Which failures of a request are worth another try, how long to wait for it, and which answers are none.

The waits are exponential with full jitter (a random share of the doubled bound, so that clones do not come back
together), and at least what the provider's Retry-After asks for, up to a cap.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.trajectories.types import Usage

_FIRST_WAIT = 0.5
_TRANSIENT = frozenset({408, 409, 425, 429})
TOO_MANY = 429


class AnswerError(AMCError):
    """A model answered, but not with something to go on with; ``usage``: what that answer took, where known."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


class EmptyAnswerError(AnswerError):
    """The model answered with neither content nor a tool call."""


class TruncatedAnswerError(AnswerError):
    """The model's answer was cut off at its longest length."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a request is sent again; there is no other layer of retries below.

    Attributes
    ----------
    attempts: requests for one answer, the first included.
    longest_wait: cap on one wait in seconds, Retry-After included.
    timeout: seconds until a request counts as failed, if the model has no ``request_timeout``.
    """

    attempts: int = 5
    longest_wait: float = 60.0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigurationError(f"Retry(attempts=…) is a whole number of at least 1, got {self.attempts!r}")
        for name, value in (("longest_wait", self.longest_wait), ("timeout", self.timeout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigurationError(f"Retry({name}=…) is a number of seconds above 0, got {value!r}")

    def wait(self, error: BaseException | None, failures: int) -> float:
        """Seconds to wait after so many failures, the last with this error."""
        jittered = random.uniform(0.0, _FIRST_WAIT * 2 ** (failures - 1))
        asked = None if error is None else retry_after(error)
        # a little later than asked, and not all at the same moment
        return min(self.longest_wait, jittered if asked is None else asked + jittered / 4)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: rate limits, server errors, timeouts, lost connections, no answer.

    A bad key, a wrong request, a prompt that is too long or that a policy forbids fail at once.
    """
    if isinstance(error, AnswerError):
        return True
    status = getattr(error, "status_code", None)  # on LiteLLM's errors, which share no other ground
    if isinstance(status, int):
        return status in _TRANSIENT or status >= 500
    return isinstance(error, ConnectionError | TimeoutError)


def may_be_billed(error: BaseException) -> bool:
    """Whether the provider may have done the work although the call failed: it was given up while under way."""
    given_up = not isinstance(error, Exception) or isinstance(error, TimeoutError)
    return given_up or any("Timeout" in kind.__name__ for kind in type(error).__mro__)


def retry_after(error: BaseException) -> float | None:
    """Seconds after which the provider wants to be asked again; it gives seconds or a date."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    value = str(headers.get("retry-after") or "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - time.time())


def check_answers(response: Mapping[str, Any], usage: Usage | None, *, accept_truncated: bool) -> None:
    """Raise EmptyAnswerError or TruncatedAnswerError if none of a response's choices is an answer."""
    problems = [
        problem(choice["message"], choice.get("finish_reason"), accept_truncated) for choice in response["choices"]
    ]
    if not problems:
        raise no_answer("empty", usage)
    if all(problems):
        raise no_answer(problems[0] or "empty", usage)


def problem(message: Any, finish_reason: str | None, accept_truncated: bool) -> str | None:
    """Why a message in OpenAI's form is no answer: ``"empty"`` or ``"truncated"``; ``None`` if it is one."""
    if finish_reason == "length" and not accept_truncated:
        return "truncated"
    kept = ("content", "tool_calls", "function_call", "refusal", "audio", "images")
    if finish_reason != "length" and not any(has_content(message.get(key)) for key in kept):
        return "empty"
    return None


def has_content(part: Any) -> bool:
    """Whether a part of a message says anything; blanks alone do not."""
    return bool(part.strip()) if isinstance(part, str) else bool(part)


def no_answer(kind: str, usage: Usage | None = None) -> AnswerError:
    """The error for an answer that is none."""
    if kind == "truncated":
        return TruncatedAnswerError(
            "the model's answer was cut off at its longest length: raise max_tokens, or take such answers with "
            "chat_model(…, accept_truncated=True)",
            usage,
        )
    return EmptyAnswerError("the model answered with neither content nor a tool call: check the prompt", usage)
