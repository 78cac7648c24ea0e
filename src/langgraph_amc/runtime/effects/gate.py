"""The gate every tool call of a particle passes: through, on hold, answered from the outbox, or refused.

A held effect raises LangGraph's own `GraphInterrupt`: the tool node, `ToolRetryMiddleware`, `ToolErrorMiddleware`
and retry policies let it through by design, the run ends as interrupted, and the writes of the other tasks of the
super-step are kept. A node of one's own that catches ``Exception`` around a tool call swallows it; the effect
then stays held and does not happen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Interrupt

from langgraph_amc.runtime.effects.asking import answering, keep_answers
from langgraph_amc.runtime.effects.current import body, inside
from langgraph_amc.runtime.effects.errors import EffectUnknownError
from langgraph_amc.runtime.effects.identity import canonical, jsonable
from langgraph_amc.runtime.effects.outcome import (
    INTERRUPTED,
    ResultLostError,
    decode,
    decode_error,
    encode,
    encode_error,
)
from langgraph_amc.runtime.effects.policy import Policy
from langgraph_amc.runtime.effects.records import Answer, EffectRecord, EffectState, HeldEffect, StatefulCall
from langgraph_amc.runtime.effects.scope import EffectScope
from langgraph_amc.runtime.outbox import Recorded

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Call:
    """A call that stands before the gate.

    Attributes
    ----------
    run: makes it, as it was asked for.
    again: makes it on a copy of the session, without the caller's callbacks.
    refuse: what the caller gets where the policy is deny; may raise.
    """

    tool: str
    policy: Policy
    arguments: Any
    tool_call_id: str | None
    config: RunnableConfig
    run: Callable[[], Any]
    again: Callable[[], Any]
    refuse: Callable[[str], Any]


class Port(Protocol):
    """How the gate reaches the tool and the outbox: blocking or awaiting; the gate itself is written once."""

    is_async: bool

    async def run(self, call: Callable[[], Any]) -> Any: ...

    async def catch_up(self, scope: EffectScope) -> None: ...

    async def begin(self, scope: EffectScope, key: str, tool: str, arguments: Any) -> Recorded | None: ...

    async def done(self, scope: EffectScope, key: str, result: Any) -> None: ...

    async def failed(self, scope: EffectScope, key: str, error: Any) -> None: ...


class Blocking:
    """Never suspends, see `engine.complete`."""

    is_async = False

    async def run(self, call: Callable[[], Any]) -> Any:
        return call()

    async def catch_up(self, scope: EffectScope) -> None:
        scope.worlds.recover()

    async def begin(self, scope: EffectScope, key: str, tool: str, arguments: Any) -> Recorded | None:
        return scope.outbox.begin(key, tool, arguments)

    async def done(self, scope: EffectScope, key: str, result: Any) -> None:
        scope.outbox.done(key, result)

    async def failed(self, scope: EffectScope, key: str, error: Any) -> None:
        scope.outbox.failed(key, error)


class Awaiting:
    """On the running event loop."""

    is_async = True

    async def run(self, call: Callable[[], Any]) -> Any:
        return await call()

    async def catch_up(self, scope: EffectScope) -> None:
        await scope.worlds.arecover()

    async def begin(self, scope: EffectScope, key: str, tool: str, arguments: Any) -> Recorded | None:
        return await scope.outbox.abegin(key, tool, arguments)

    async def done(self, scope: EffectScope, key: str, result: Any) -> None:
        await scope.outbox.adone(key, result)

    async def failed(self, scope: EffectScope, key: str, error: Any) -> None:
        await scope.outbox.afailed(key, error)


BLOCKING, AWAITING = Blocking(), Awaiting()


async def gate(scope: EffectScope, call: Call, port: Port) -> Any:
    """Let a call through, hold it, answer it from the outbox, or refuse it."""
    if inside.get() is not None and call.policy != "deny":  # a part of the effect whose body is running
        return await port.run(call.run)
    if call.policy == "pure":
        return await port.run(call.run)
    key, place = scope.identify(call.tool, call.arguments, call.tool_call_id, call.config)
    if call.policy == "deny":
        _note(scope, call, key, "denied")
        return call.refuse(f"{call.tool} was not run: it is not allowed here. Go on without it.")
    answer = scope.answered(key)
    if answer is not None:
        return _copy(answer.give())
    if call.policy == "stateful":
        return await _stateful(scope, call, key, port)
    if not scope.may_run(key):
        _hold(scope, call, key, place)
    try:
        return await _commit(scope, call, key, port)
    except Exception:
        raise
    except BaseException:  # cancelled, or Ctrl-C: all the outbox knows is that it was begun
        _note(scope, call, key, "unknown")
        raise


def _hold(scope: EffectScope, call: Call, key: str, place: str) -> NoReturn:
    scope.hold(HeldEffect(key, call.tool, call.arguments, call.tool_call_id, place), keep_answers(call.config))
    value = {"amc_effect": key, "tool": call.tool, "arguments": call.arguments}
    raise GraphInterrupt((Interrupt(value=value, id=key.removeprefix("amc-")),))


async def _stateful(scope: EffectScope, call: Call, key: str, port: Port) -> Any:
    await port.catch_up(scope)
    try:
        with body(key, "stateful"):
            answer = Answer(await port.run(call.run))
    except GraphBubbleUp:
        raise
    except Exception as error:
        answer = Answer(error=error)
    kept = Answer(_copy(answer.value), answer.error)  # LangGraph writes ids into the messages it is given
    scope.log(
        StatefulCall(
            key, scope.step, call.tool, call.arguments, call.tool_call_id, kept, call.again, is_async=port.is_async
        )
    )
    return answer.give()


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied is kept as it is
        return value


async def _commit(scope: EffectScope, call: Call, key: str, port: Port) -> Any:
    entry, turn = key, 0
    while (known := await port.begin(scope, entry, call.tool, call.arguments)) is not None:
        if known.outcome == "failed" and known.error == INTERRUPTED:
            turn += 1
            entry = f"{key}~{turn}"
            continue
        return _earlier(scope, call, key, entry, known)
    try:
        watch = scope.watch
        told = nullcontext() if watch is None else watch.effect(scope.particle, call.tool, key)
        with told, body(key, "commit"), answering(call.config, scope.take_answers(key)):
            result = await port.run(call.run)
    except GraphBubbleUp:
        await port.failed(scope, entry, INTERRUPTED)
        raise
    except Exception as error:
        await port.failed(scope, entry, encode_error(error))
        scope.remember(key, Answer(error=error))
        _note(scope, call, key, "failed")
        raise
    await port.done(scope, entry, encode(result))
    scope.remember(key, Answer(result))
    _note(scope, call, key, "committed")
    return result


def _earlier(scope: EffectScope, call: Call, key: str, entry: str, known: Recorded) -> Any:
    """The outcome of an effect that was begun before, in this process or an earlier one."""
    if known.outcome == "failed":
        _note(scope, call, key, "failed")
        raise decode_error(known.error)
    if known.outcome == "unknown":
        _note(scope, call, key, "unknown")
        what = "was begun by a run that ended before it could say whether it took place"
        raise EffectUnknownError(call.tool, call.arguments, entry, what)
    try:
        result = decode(known.result)
    except ResultLostError as lost:
        _note(scope, call, key, "unknown")
        what = f"took place, but its result of type {lost} could not be stored"
        raise EffectUnknownError(call.tool, call.arguments, entry, what) from None
    _note(scope, call, key, "committed")
    return _as_answer(call, result)


def _as_answer(call: Call, result: Any) -> Any:
    """A result a person gave with `settle_effect` is rarely the message a model's call is answered with."""
    items = result if isinstance(result, list) and result else [result]
    if call.tool_call_id is None or all(isinstance(item, ToolOutputMixin) for item in items):
        return result
    text = result if isinstance(result, str) else canonical(jsonable(result))
    return ToolMessage(text, name=call.tool, tool_call_id=call.tool_call_id)


def _note(scope: EffectScope, call: Call, key: str, state: EffectState) -> None:
    scope.settled(EffectRecord(call.tool, call.arguments, call.policy, state, scope.particle, key))
