"""``ChatLiteLLM`` for particles: one request with ``n=k`` for k clones in the same state.

After a resampling, clones stand before the same prompt. Their calls, arriving within a short window, become
one request for k choices: the prompt is paid once and every clone gets a choice of its own. The first clone
books the input tokens, each its own output, so that usage summed over particles is what the provider billed.
Providers report the output of all choices together; it is split in proportion to the choices' length.

Import only through `chat.chat_model`: the import takes seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langgraph_amc.policy.litellm_setup import load_litellm

litellm = load_litellm()  # before langchain_litellm, which imports it without our settings

from langchain_core.callbacks import (  # noqa: E402
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
)
from langchain_core.messages import AIMessage, BaseMessage  # noqa: E402
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult  # noqa: E402
from langchain_litellm import ChatLiteLLM  # noqa: E402

from langgraph_amc.context import current_particle  # noqa: E402
from langgraph_amc.policy.coalesce import gather_async, gather_sync, share  # noqa: E402
from langgraph_amc.policy.seeds import mix  # noqa: E402
from langgraph_amc.policy.usage import LOCAL_PROVIDER, price  # noqa: E402

_ignores_n: set[str] = set()
"""Model and endpoint pairs that turned out to refuse or ignore ``n``."""


class CoalescingChatLiteLLM(ChatLiteLLM):
    """ChatLiteLLM that coalesces the calls of clones; everything else is inherited.

    Attributes
    ----------
    coalesce_window: seconds a particle's call waits for identical ones; 0 never coalesces.
    vary_seed: where a ``seed`` is set, give each particle its own seed made from it. With one seed for all,
        every clone would get the same answer and the particles would collapse.
    """

    coalesce_window: float = 0.005
    vary_seed: bool = True

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
        share_of_all: ChatResult | None = None
        if key is not None:

            def run(count: int) -> list[ChatResult | None]:
                if count == 1:
                    return [None]
                try:
                    result = call(messages, stop, None, False, **{**kwargs, "n": count})
                except litellm.BadRequestError as error:
                    return self._refused(error, count)
                return self._portions(result, count)

            share_of_all = gather_sync(key, self.coalesce_window, run)
        if share_of_all is not None:
            return share_of_all
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
        share_of_all: ChatResult | None = None
        if key is not None:

            async def run(count: int) -> list[ChatResult | None]:
                if count == 1:
                    return [None]
                try:
                    result = await call(messages, stop, None, False, **{**kwargs, "n": count})
                except litellm.BadRequestError as error:
                    return self._refused(error, count)
                return self._portions(result, count)

            share_of_all = await gather_async(key, self.coalesce_window, run)
        if share_of_all is not None:
            return share_of_all
        return await call(messages, stop, run_manager, stream, **kwargs)

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        return super()._stream(messages, *args, **self._seeded(kwargs))

    def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        return super()._astream(messages, *args, **self._seeded(kwargs))

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
        return json.dumps([type(self).__name__, params, message_dicts], sort_keys=True, default=repr)

    def _endpoint(self, params: Mapping[str, Any] | None = None) -> str:
        return f"{(params or {}).get('model', self.model_name or self.model)} {self.api_base}"

    def _refused(self, error: Exception, count: int) -> list[ChatResult | None]:
        """After a request for several choices was refused: everybody asks alone, unless that is hopeless."""
        if isinstance(error, litellm.ContextWindowExceededError | litellm.ContentPolicyViolationError):
            raise error
        if re.search(r"\bn\b", str(error).partition("Exception")[2] or str(error)):
            _ignores_n.add(self._endpoint())
        return [None] * count

    def _portions(self, result: ChatResult, count: int) -> list[ChatResult | None]:
        """One result per caller; a provider that returned too few choices leaves ``None`` for the last."""
        choices = result.generations[:count]
        if len(choices) == 1:
            _ignores_n.add(self._endpoint())
        return [*_split(result, choices, self.model_name or self.model)] + [None] * (count - len(choices))


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


def _split(result: ChatResult, choices: Sequence[ChatGeneration], model: str) -> list[ChatResult]:
    """A result for each choice with its share of the usage; the first one carries the prompt."""
    first = choices[0].message
    usage = first.usage_metadata if isinstance(first, AIMessage) else None
    outputs = inputs = [0] * len(choices)
    if usage is not None:
        inputs = [usage["input_tokens"]] + [0] * (len(choices) - 1)
        outputs = share(usage["output_tokens"], [_length(choice) for choice in choices])
    costs = _split_cost(first.response_metadata.get("response_cost"), inputs, outputs, model)
    results = []
    for i, choice in enumerate(choices):
        metadata = {k: v for k, v in choice.message.response_metadata.items() if k != "response_cost"}
        if costs is not None:
            metadata["response_cost"] = costs[i]
        update: dict[str, Any] = {"response_metadata": metadata}
        counts = {"input_tokens": inputs[i], "output_tokens": outputs[i]}
        counts["total_tokens"] = inputs[i] + outputs[i]
        if usage is not None:
            details = {k: v for k, v in usage.items() if k.endswith("_details")} if i == 0 else {}
            update["usage_metadata"] = {**details, **counts}
        message = choice.message.model_copy(update=update)
        token_usage = {
            "prompt_tokens": inputs[i],
            "completion_tokens": outputs[i],
            "total_tokens": inputs[i] + outputs[i],
        }
        results.append(
            ChatResult(
                generations=[ChatGeneration(message=message, generation_info=choice.generation_info)],
                llm_output={**(result.llm_output or {}), "token_usage": token_usage},
            )
        )
    return results


def _length(choice: ChatGeneration) -> int:
    """How much a choice wrote, in characters, tool calls included."""
    message = choice.message
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return len(str(message.content)) + sum(len(c["name"]) + len(json.dumps(c["args"])) for c in calls) + 1


def _split_cost(cost: float | None, inputs: list[int], outputs: list[int], model: str) -> list[float] | None:
    """Shares of one request's price that add up to it, by list price where known, else by tokens."""
    if cost is None:
        return None
    listed = [price(model, i, o) for i, o in zip(inputs, outputs, strict=True)]
    known = [p for p in listed if p is not None]
    weights: Sequence[float] = (
        known if len(known) == len(listed) and sum(known) > 0 else [i + o for i, o in zip(inputs, outputs, strict=True)]
    )
    mass = sum(weights) or 1
    costs = [cost * w / mass for w in weights[:-1]]
    return [*costs, cost - sum(costs)]
