"""Sending one request to a provider: its turn at the limiter, its retries, and what counts as an answer.

The only layer of retries: LiteLLM's own and those of the SDKs below it are switched off. An attempt that was
billed but brought no answer is booked in the open accounts before the next one is made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception

from langgraph_amc.policy.account import Account
from langgraph_amc.policy.bounds import Request, chat_request
from langgraph_amc.policy.gate import current_account, may_block
from langgraph_amc.policy.limiter import Limiter, Turn
from langgraph_amc.policy.retry import TOO_MANY, AnswerError, Retry, check_answers, is_transient, may_be_billed
from langgraph_amc.trajectories.types import Usage

_SLACK = 0.05
"""A request whose timeout was cut at the deadline may give up so many seconds before it."""


@dataclass(frozen=True, slots=True)
class Sending:
    """One request.

    Attributes
    ----------
    messages, params: as LiteLLM takes them.
    callers: how many calls share it.
    """

    messages: Sequence[Mapping[str, Any]]
    params: Mapping[str, Any]
    retry: Retry
    limiter: Limiter
    accept_truncated: bool
    callers: int = 1

    def send(self, completion: Callable[..., Any]) -> Any:
        """The response, or an iterator over its chunks; its last error when no attempt is left."""

        def attempt() -> Any:
            with _named_at_the_deadline(), ExitStack() as held:
                turn = held.enter_context(self.limiter.turn(self._tokens()))
                response = completion(messages=self.messages, **self._params())
                if self.params.get("stream"):
                    return _released_after(response, held.pop_all())
                return self._checked(response, turn)

        return Retrying(**self._policy(), sleep=time.sleep, before_sleep=self._between)(attempt)

    async def asend(self, completion: Callable[..., Any]) -> Any:
        """The same without blocking the event loop."""

        async def attempt() -> Any:
            with _named_at_the_deadline():
                async with AsyncExitStack() as held:
                    turn = await held.enter_async_context(self.limiter.aturn(self._tokens()))
                    response = await completion(messages=self.messages, **self._params())
                    if self.params.get("stream"):
                        return _areleased_after(response, held.pop_all())
                    return self._checked(response, turn)

        return await AsyncRetrying(**self._policy(), sleep=asyncio.sleep, before_sleep=self._abetween)(attempt)

    def _policy(self) -> dict[str, Any]:
        return {
            "retry": retry_if_exception(is_transient),
            "wait": self._wait,
            "stop": self._stop,
            "reraise": True,
        }

    def _wait(self, state: RetryCallState) -> float:
        return self.retry.wait(_error(state), state.attempt_number)

    def _stop(self, state: RetryCallState) -> bool:
        account = current_account.get()
        late = account is not None and is_late(account, state.upcoming_sleep)
        return late or state.attempt_number >= self.retry.attempts

    def _between(self, state: RetryCallState) -> None:
        account = self._note(state)
        if account is not None:
            account.retry(self._request(), _usage(state), wait=self._alone and may_block())

    async def _abetween(self, state: RetryCallState) -> None:
        account = self._note(state)
        if account is not None:
            await account.aretry(self._request(), _usage(state), wait=self._alone)

    @property
    def _alone(self) -> bool:
        """Whether one call only hangs on this request; those that share it would wait for themselves."""
        return self.callers == 1

    def _note(self, state: RetryCallState) -> Account | None:
        """Hold everybody back where the provider is overrun; the account to charge if the attempt was billed."""
        error = _error(state)
        self.limiter.backed_off += state.upcoming_sleep
        if getattr(error, "status_code", None) == TOO_MANY:  # one of LiteLLM's errors
            self.limiter.pause(state.upcoming_sleep)
        billed = isinstance(error, AnswerError) or (error is not None and may_be_billed(error))
        return current_account.get() if billed else None

    def _params(self) -> dict[str, Any]:
        timeout = self.params.get("timeout") or self.retry.timeout
        account = current_account.get()
        if account is not None and is_late(account, 0.0):  # it waited for its turn until then
            raise account.timed_out()
        if account is not None and account.deadline is not None and isinstance(timeout, int | float):
            timeout = max(0.001, min(timeout, account.deadline - time.monotonic()))
        return {**self.params, "timeout": timeout, "max_retries": 0, "num_retries": 0}

    def _request(self) -> Request:
        return replace(chat_request(self.messages, self.params), callers=self.callers)

    def _tokens(self) -> int:
        if self.limiter.limits.tokens_per_minute is None:
            return 0
        request = self._request()
        return request.input_tokens + (request.output_tokens or 0) * request.answers

    def _checked(self, response: Any, turn: Turn) -> Any:
        counts = response.get("usage")
        usage = None
        if counts is not None:
            cost = response._hidden_params.get("response_cost")
            usage = Usage(self.callers, counts["prompt_tokens"] or 0, counts["completion_tokens"] or 0, cost)
            turn.tokens = usage.tokens
        check_answers(response, usage, accept_truncated=self.accept_truncated)
        return response


def is_late(account: Account, wait: float) -> bool:
    """Whether the account's seconds are over after such a wait."""
    return account.deadline is not None and time.monotonic() + wait >= account.deadline


def _error(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _usage(state: RetryCallState) -> Usage | None:
    error = _error(state)
    return error.usage if isinstance(error, AnswerError) else None


@contextmanager
def _named_at_the_deadline() -> Iterator[None]:
    """A request that runs out of time because the account's seconds are over fails with that account's error."""
    account = current_account.get()
    try:
        yield
    except Exception as error:
        if account is None or not may_be_billed(error) or not is_late(account, _SLACK):
            raise
        raise account.timed_out() from error


def _released_after(chunks: Iterator[Any], held: ExitStack) -> Iterator[Any]:
    with held, _named_at_the_deadline():
        yield from chunks


async def _areleased_after(chunks: AsyncIterator[Any], held: AsyncExitStack) -> AsyncIterator[Any]:
    async with held:
        with _named_at_the_deadline():
            async for chunk in chunks:
                yield chunk
