"""LangChain callback handlers that make every model call of any chat model pass an `Account`.

An account has two, in this order: one for asynchronous calls, which waits in the caller's task, and one for
synchronous calls, which blocks. LangChain offers each call to both. In an asynchronous call the first has
reserved or raised before the second is asked. In a synchronous one LangChain runs the first one's coroutine last
and swallows what it raises: by then the second has reserved or raised, and the first leaves the call alone.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from langgraph_amc.policy.bounds import Request, chat_request, text_request

if TYPE_CHECKING:
    from langgraph_amc.policy.account import Account


def _hush() -> None:
    """LangChain drops the coroutines it made for the handlers after one that refuses an asynchronous call."""
    warnings.filterwarnings("ignore", "coroutine 'ahandle_event' was never awaited", RuntimeWarning)


_hush()

current_account: ContextVar[Account | None] = ContextVar("amc_current_account", default=None)
"""The innermost open account."""
calls_here: ContextVar[tuple[UUID, ...]] = ContextVar("amc_calls_here", default=())
"""The model calls that were begun in this context, the newest first; some have ended."""
_async_gate: ContextVar[AsyncGate | None] = ContextVar("amc_async_gate", default=None)
_sync_gate: ContextVar[SyncGate | None] = ContextVar("amc_sync_gate", default=None)


def activate(account: Account | None) -> Account | None:
    """Make this the account that is charged from here on; returns the one before."""
    before = current_account.get()
    current_account.set(account)
    _async_gate.set(None if account is None else account.async_gate)
    _sync_gate.set(None if account is None else account.sync_gate)
    return before


def _not_a_refusal(record: logging.LogRecord) -> bool:
    # LangChain logs what a handler raises before it raises it: a refused call is its caller's business, not a fault.
    return not (isinstance(record.args, tuple) and record.args[:1] in (("SyncGate",), ("AsyncGate",)))


logging.getLogger("langchain_core.callbacks.manager").addFilter(_not_a_refusal)


class _Deaf(BaseCallbackHandler):
    """Hears of model calls only, in the calling thread or task, and may forbid them."""

    raise_error = True
    run_inline = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True


class AsyncGate(_Deaf):
    """Reserves for asynchronous calls; deaf to the rest, as each coroutine costs a synchronous call an event loop."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    async def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if not self._account.knows(run_id):
            await _reserved(self._account, run_id, _chat(serialized, messages, kwargs))

    async def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if not self._account.knows(run_id):
            await _reserved(self._account, run_id, _text(serialized, prompts, kwargs))


class SyncGate(_Deaf):
    """Reserves for synchronous calls, and settles all."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if not self._account.knows(run_id):
            self._account.reserve(run_id, _chat(serialized, messages, kwargs), wait=may_block())
            _begun(self._account, run_id)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if not self._account.knows(run_id):
            self._account.reserve(run_id, _text(serialized, prompts, kwargs), wait=may_block())
            _begun(self._account, run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._account.settle(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._account.fail(run_id, error)


async def _reserved(account: Account, run_id: UUID, request: Request) -> None:
    try:
        await account.areserve(run_id, request)
    except BaseException:
        _hush()  # the user may have set other filters since the import
        raise
    _begun(account, run_id)


def _begun(account: Account, run_id: UUID) -> None:
    calls_here.set((run_id, *account.under_way(calls_here.get())))


def may_block() -> bool:
    """Whether this thread runs no event loop, whose other calls would then never end."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _chat(serialized: Any, messages: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
    params, names = _known(serialized, kwargs)
    return chat_request([message for batch in messages for message in batch], params, *names)


def _text(serialized: Any, prompts: Sequence[str], kwargs: Mapping[str, Any]) -> Request:
    params, names = _known(serialized, kwargs)
    return text_request("".join(prompts), params, *names)


def _known(serialized: Any, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A call's parameters and the names its model goes by, the class's last."""
    metadata = kwargs.get("metadata") or {}
    given = {k: v for k, v in (kwargs.get("invocation_params") or {}).items() if v is not None}
    params = {"max_tokens": metadata.get("ls_max_tokens"), **given}
    kind = ((serialized or {}).get("id") or [None])[-1]
    return params, (metadata.get("ls_model_name"), kwargs.get("name") or (serialized or {}).get("name") or kind)


register_configure_hook(_async_gate, inheritable=True)
register_configure_hook(_sync_gate, inheritable=True)
