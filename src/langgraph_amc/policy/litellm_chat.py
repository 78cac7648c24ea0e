"""``ChatLiteLLM`` for particles: one request with ``n=k`` for k clones in the same state.

After a resampling, clones stand before the same prompt. Their calls, arriving within a short window, become
one request for k choices: the prompt is paid once and every clone gets a choice of its own. The first clone
books the input tokens, each its own output, so that usage summed over particles is what the provider billed.
Providers report the output of all choices together; it is split in proportion to the choices' length. A choice
that is no answer is asked for again by its caller alone. Requests go out through `sending`: limits, retries.

Import only through `chat.chat_model`: the import takes seconds.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langgraph_amc.policy.litellm_setup import load_litellm

litellm = load_litellm()  # before langchain_litellm, which imports it without our settings

from langchain_core.callbacks import (  # noqa: E402
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import LanguageModelInput  # noqa: E402
from langchain_core.messages import AIMessageChunk, BaseMessage  # noqa: E402
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult  # noqa: E402
from langchain_litellm import ChatLiteLLM  # noqa: E402

from langgraph_amc.context import current_particle  # noqa: E402
from langgraph_amc.policy.account import Account  # noqa: E402
from langgraph_amc.policy.bounds import Request, chat_request  # noqa: E402
from langgraph_amc.policy.coalesce import gather_async, gather_sync  # noqa: E402
from langgraph_amc.policy.gate import current_account, may_block  # noqa: E402
from langgraph_amc.policy.instructions import place_in_messages  # noqa: E402
from langgraph_amc.policy.limiter import Limits, limiter_for  # noqa: E402
from langgraph_amc.policy.opening import Opening  # noqa: E402
from langgraph_amc.policy.portions import Portion, Rejected, divided, judged, split  # noqa: E402
from langgraph_amc.policy.retry import AnswerError, Retry  # noqa: E402
from langgraph_amc.policy.seeds import mix  # noqa: E402
from langgraph_amc.policy.sending import Sending, is_late  # noqa: E402
from langgraph_amc.policy.usage import LOCAL_PROVIDER  # noqa: E402

_ignores_n: set[str] = set()
"""Model and endpoint pairs that turned out to refuse or ignore ``n``."""
_callers: ContextVar[int] = ContextVar("amc_callers", default=1)
"""How many calls share the request that is made here."""


class CoalescingChatLiteLLM(ChatLiteLLM):
    """ChatLiteLLM that coalesces the calls of clones; everything else is inherited.

    Attributes
    ----------
    coalesce_window: seconds a particle's call waits for identical ones; 0 never coalesces.
    vary_seed: where a ``seed`` is set, give each particle its own seed made from it. With one seed for all,
        every clone would get the same answer and the particles would collapse.
    limits: how fast the provider may be asked; shared by all models on the same provider, endpoint and key.
    retry: how failed requests, and answers that are none, are asked for again.
    accept_truncated: take an answer that was cut off at its longest length. If not, it is asked for again and
        then an error, whoever set ``max_tokens``: half an answer must not be scored as one.
    instructions: text that every call gets beside its prompt (`policy.instructions`); those of the context, which a
        measurement sets, go before it.

    Models of this process (``amc-local/…``) have no limits and no retries, and any answer of theirs is taken: its
    seed makes it the particle's one answer, and it costs nothing.
    """

    coalesce_window: float = 0.005
    vary_seed: bool = True
    limits: Limits = Limits()
    retry: Retry = Retry()
    accept_truncated: bool = False
    instructions: str | None = None

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if any(limit is not None for limit in self.limits):
            _, params = self._create_message_dicts([], None)
            if not _is_local(params):
                self._sending([], params)  # states the limits, before another model on the same key asks

    def generate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        return super().generate([self._instructed(batch) for batch in messages], *args, **kwargs)

    async def agenerate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        return await super().agenerate([self._instructed(batch) for batch in messages], *args, **kwargs)

    def stream(self, input: LanguageModelInput, *args: Any, **kwargs: Any) -> Iterator[AIMessageChunk]:
        yield from super().stream(self._instructed(self._convert_input(input).to_messages()), *args, **kwargs)

    async def astream(self, input: LanguageModelInput, *args: Any, **kwargs: Any) -> AsyncIterator[AIMessageChunk]:
        placed = self._instructed(self._convert_input(input).to_messages())
        async for chunk in super().astream(placed, *args, **kwargs):
            yield chunk

    def _instructed(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """With the instructions: before callbacks see the call, so that a budget reckons with them."""
        return place_in_messages(messages, self.instructions)

    def completion_with_retry(self, run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any) -> Any:
        messages = kwargs.pop("messages")
        if _is_local(kwargs):
            return self.client.completion(messages=messages, **kwargs)
        return self._sending(messages, kwargs).send(self.client.completion)

    async def acompletion_with_retry(
        self, run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> Any:
        messages = kwargs.pop("messages")
        if _is_local(kwargs):
            return await self.client.acompletion(messages=messages, **kwargs)
        return await self._sending(messages, kwargs).asend(self.client.acompletion)

    def _sending(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Sending:
        where = params.get("model"), params.get("custom_llm_provider"), params.get("api_base")
        limiter = limiter_for(_provider(*where), where[2], params.get("api_key"), self.limits)
        return Sending(messages, params, self.retry, limiter, self.accept_truncated, _callers.get())

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        stream: bool | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        kwargs = self._seeded(kwargs)
        call = super()._generate
        key = self._key(messages, stop, stream, kwargs)
        portion: Portion = None
        if key is not None:

            def run(count: int) -> Sequence[Portion | AnswerError]:
                if count == 1:
                    return [None]
                try:
                    with _shared_by(count):
                        result = call(messages, stop, None, False, **{**kwargs, "n": count})
                except (litellm.BadRequestError, AnswerError) as error:
                    return self._refused(error, count)
                return self._portions(result, count)

            portion = gather_sync(key, self.coalesce_window, run)
        if isinstance(portion, Rejected) and (account := self._again(portion.error, 1)) is not None:
            account.retry(self._request(messages, kwargs), portion.error.usage, wait=may_block())
        if isinstance(portion, ChatResult):
            return portion
        return call(messages, stop, run_manager, stream, **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        stream: bool | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        kwargs = self._seeded(kwargs)
        call = super()._agenerate
        key = self._key(messages, stop, stream, kwargs)
        portion: Portion = None
        if key is not None:

            async def run(count: int) -> Sequence[Portion | AnswerError]:
                if count == 1:
                    return [None]
                try:
                    with _shared_by(count):
                        result = await call(messages, stop, None, False, **{**kwargs, "n": count})
                except (litellm.BadRequestError, AnswerError) as error:
                    return self._refused(error, count)
                return self._portions(result, count)

            portion = await gather_async(key, self.coalesce_window, run)
        if isinstance(portion, Rejected) and (account := self._again(portion.error, 1)) is not None:
            await account.aretry(self._request(messages, kwargs), portion.error.usage)
        if isinstance(portion, ChatResult):
            return portion
        return await call(messages, stop, run_manager, stream, **kwargs)

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        kwargs = self._seeded(kwargs)
        if _is_local({**self._default_params, **kwargs}):
            yield from super()._stream(messages, *args, **kwargs)
            return
        for attempt in itertools.count(1):
            opening = Opening(self.accept_truncated)
            for chunk in super()._stream(messages, *args, **kwargs):
                yield from opening.take(chunk)
            try:
                opening.check()
            except AnswerError as error:
                if opening.started:  # it has been passed on and cannot be taken back
                    raise
                if (account := self._again(error, attempt)) is not None:
                    account.retry(self._request(messages, kwargs), error.usage, wait=may_block())
                time.sleep(self.retry.wait(None, attempt))
            else:
                yield from opening.rest()
                return

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        kwargs = self._seeded(kwargs)
        if _is_local({**self._default_params, **kwargs}):
            async for chunk in super()._astream(messages, *args, **kwargs):
                yield chunk
            return
        for attempt in itertools.count(1):
            opening = Opening(self.accept_truncated)
            async for chunk in super()._astream(messages, *args, **kwargs):
                for settled in opening.take(chunk):
                    yield settled
            try:
                opening.check()
            except AnswerError as error:
                if opening.started:
                    raise
                if (account := self._again(error, attempt)) is not None:
                    await account.aretry(self._request(messages, kwargs), error.usage)
                await asyncio.sleep(self.retry.wait(None, attempt))
            else:
                for settled in opening.rest():
                    yield settled
                return

    def _again(self, error: AnswerError, attempts: int) -> Account | None:
        """The account to charge for an answer that is none; raises where there is no further attempt."""
        account = current_account.get()
        if attempts >= self.retry.attempts or (account is not None and is_late(account, 0.0)):
            raise error
        return account

    def _request(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> Request:
        """What is known of a call before another attempt at it."""
        message_dicts, params = self._create_message_dicts(messages, None)
        return chat_request(message_dicts, self._merge_call_params(params, kwargs))

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """What callbacks are told, here with everything that bounds a call's cost."""
        told = {k: v for k, v in self._default_params.items() if k in _BOUNDING and v is not None}
        return {**told, **super()._get_invocation_params(stop, **kwargs)}

    def _seeded(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's arguments with the user's seed, if any, made the particle's own."""
        seed = kwargs.get("seed", self.model_kwargs.get("seed"))
        particle = current_particle.get()
        if seed is None or particle is None or not self.vary_seed:
            return kwargs
        # 31 bits: some providers take no more.
        return {**kwargs, "seed": mix(seed, particle.seed) & 0x7FFFFFFF}

    def _key(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        stream: bool | None,
        kwargs: dict[str, Any],
    ) -> str | None:
        """What identical calls have in common, or ``None`` if this call goes alone."""
        streams = self.streaming if stream is None else stream
        if current_particle.get() is None or self.coalesce_window <= 0 or streams:
            return None
        message_dicts, params = self._create_message_dicts(messages, stop)
        params = self._merge_call_params(params, kwargs)
        seeded = params.get("seed") is not None and self.vary_seed
        if seeded or params.get("temperature") == 0 or (params.get("n") or 1) > 1:
            return None
        if self._endpoint(params) in _ignores_n or not _takes_n(params):
            return None
        # one account pays for a request that is sent again
        payer, patience = id(current_account.get()), (self.retry, self.accept_truncated)
        return json.dumps([type(self).__name__, payer, patience, params, message_dicts], sort_keys=True, default=repr)

    def _endpoint(self, params: Mapping[str, Any] | None = None) -> str:
        return f"{(params or {}).get('model', self.model_name or self.model)} {self.api_base}"

    def _refused(self, error: Exception, count: int) -> Sequence[Portion | AnswerError]:
        """After a request for several choices failed: everybody asks alone, unless that is hopeless."""
        if isinstance(error, AnswerError):
            return divided(error, count)
        if isinstance(error, litellm.ContextWindowExceededError | litellm.ContentPolicyViolationError):
            raise error
        if re.search(r"\bn\b", str(error).partition("Exception")[2] or str(error)):
            _ignores_n.add(self._endpoint())
        return [None] * count

    def _portions(self, result: ChatResult, count: int) -> Sequence[Portion]:
        """One result per caller; a provider that returned too few choices leaves ``None`` for the last."""
        choices = result.generations[:count]
        if len(choices) == 1:
            _ignores_n.add(self._endpoint())
        portions = split(result, choices, self.model_name or self.model)
        return [*(judged(p, self.accept_truncated) for p in portions), *[None] * (count - len(choices))]


def request_parameters(model: str, provider: str | None = None) -> frozenset[str]:
    """What LiteLLM takes with a request to this model, credentials included."""
    constants = litellm.constants
    supported = litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
    credentials = litellm.types.router.CredentialLiteLLMParams.model_fields
    openai = constants.OPENAI_CHAT_COMPLETION_PARAMS
    return frozenset({*openai, *constants.DEFAULT_CHAT_COMPLETION_PARAM_VALUES, *credentials, *supported, "extra_body"})


_BOUNDING = frozenset({"max_tokens", "max_completion_tokens", "n", "service_tier", "response_format", "tools"})


@contextmanager
def _shared_by(count: int) -> Iterator[None]:
    before = _callers.set(count)
    try:
        yield
    finally:
        _callers.reset(before)


def _is_local(params: Mapping[str, Any]) -> bool:
    """Whether the model runs in this process."""
    return (
        str(params.get("model")).startswith(f"{LOCAL_PROVIDER}/") or params.get("custom_llm_provider") == LOCAL_PROVIDER
    )


@functools.lru_cache(maxsize=256)
def _provider(model: str, named: str | None, api_base: str | None) -> str:
    try:
        return litellm.get_llm_provider(model=model, custom_llm_provider=named, api_base=api_base)[1]
    except litellm.BadRequestError:
        return named or model.partition("/")[0]  # the call itself will say what is wrong


def _takes_n(params: Mapping[str, Any]) -> bool:
    """Whether the provider of this call knows the parameter ``n`` and batching is not done elsewhere."""
    try:
        model, provider, _, _ = litellm.get_llm_provider(
            model=params["model"],
            custom_llm_provider=params.get("custom_llm_provider"),
            api_base=params.get("api_base"),
        )
    except litellm.BadRequestError:
        return False  # the call itself will say what is wrong
    if provider == LOCAL_PROVIDER:
        return False  # the engine shares prompts anyway, and keeps each particle's own seed
    return "n" in (litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or ())
