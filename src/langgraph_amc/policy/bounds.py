"""The most a model call can cost, known before it is made.

Input: a tokenizer that works on bytes (byte-level BPE, as those of all providers in use) never makes more tokens
than there are UTF-8 bytes, so the bytes of the messages and tool schemas as JSON, plus what a provider's template
wraps around them, bound the tokens. Images, audio, video and files are a constant each: no formula holds for all.
Output: the call's own limit, else the budget's, else the model's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.budget import ANY_MODEL, Budget, Price, UnknownPriceError
from langgraph_amc.policy.usage import LOCAL_PROVIDER, cached_tokens, is_reported, price_table, usage_of
from langgraph_amc.trajectories.types import Usage

CALL_TOKENS = 32
"""Added to every prompt, for what opens and closes it."""
MESSAGE_TOKENS = 16
"""Added for each message: role, separators."""
TOOL_TOKENS = 1024
"""Added once where there are tools: the instructions that some providers put before their schemas."""
MEDIA_TOKENS = 50_000
"""For each image, piece of audio, video or file; the dearest known image takes 48,169."""
LOCAL_OUTPUT = 256
"""Without a limit, an ``amc-local`` model stops here."""
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
_SCHEMAS = ("tools", "functions", "response_format")
_BARE = frozenset((HumanMessage, SystemMessage))
_MEDIA = ("image", "audio", "video", "file", "document")


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a model call before it is made.

    Attributes
    ----------
    names: what the model is called, the most telling first.
    input_tokens: an upper bound.
    output_tokens: the call's own limit for one answer, ``None`` without.
    answers: how many answers it asks for.
    tier: whether it asks for a service tier, which may be dearer than the standard one.
    callers: how many calls share it, each of which takes one of the answers.
    """

    names: tuple[str, ...]
    input_tokens: int
    output_tokens: int | None = None
    answers: int = 1
    tier: bool = False
    callers: int = 1

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.names[0] if self.names else ANY_MODEL

    @property
    def local(self) -> bool:
        """Whether the model runs in this process, for nothing."""
        return any(name.startswith(f"{LOCAL_PROVIDER}/") for name in self.names)


def chat_request(
    messages: Sequence[BaseMessage | Mapping[str, Any]], params: Mapping[str, Any], *names: Any
) -> Request:
    """The request of a chat model call with these messages and invocation parameters."""
    tokens = CALL_TOKENS + MESSAGE_TOKENS * len(messages)
    for message in messages:
        if type(message) in _BARE:  # most of a long history: as `is_bare` and `_text_tokens`, without calls
            fields = message.__dict__
            said = fields["content"]
            if type(said) is str and said.isascii() and not fields["additional_kwargs"] and fields.get("name") is None:
                tokens += len(said)
                continue
        tokens += _message_tokens(message)
    return _request(tokens, params, names)


def is_bare(message: BaseMessage | Mapping[str, Any]) -> bool:
    """Whether there is nothing to a message but its type and its content."""
    if type(message) not in _BARE:
        return False
    fields = message.__dict__
    return not fields["additional_kwargs"] and fields.get("name") is None


def text_request(prompt: str, params: Mapping[str, Any], *names: Any) -> Request:
    """The request of a plain language model's call."""
    return _request(CALL_TOKENS + len(prompt.encode()), params, names)


def worst_case(request: Request, budget: Budget) -> Usage:
    """The most the call can take; its cost is ``None`` where money is not capped and the price is unknown.

    Raises
    ------
    UnknownPriceError: money is capped and nobody knows the model's price.
    ConfigurationError: money or tokens are capped and nobody limits the answer's length.
    """
    rates = highest_rates(request, budget)
    if rates is None and budget.usd is not None:
        raise UnknownPriceError(request.name)
    output = _longest_answer(request, budget)
    if output is None:
        if budget.usd is not None or budget.tokens is not None:
            raise ConfigurationError(
                f"the budget caps what {request.name!r} may spend, but nothing limits its answers: give the model "
                "max_tokens=…, or Budget(output_tokens=…)"
            )
        output = 0
    new = output * request.answers
    cost = None if rates is None else request.input_tokens * rates[0] + new * rates[1]
    return Usage(request.callers, request.input_tokens, new, cost)


def settled(request: Request, worst: Usage, response: LLMResult, budget: Budget) -> Usage:
    """What an answered call took: as reported, else the prompt's bound and the bytes that were received."""
    if is_reported(response):
        used = usage_of(response, request.name)
    else:
        received = _received(response)
        used = Usage(1, worst.input_tokens, min(received, worst.output_tokens or received), None)
    return priced(request, used, budget, cached_tokens(response))


def priced(request: Request, used: Usage, budget: Budget, cached: int = 0) -> Usage:
    """The usage at the budget's own price, where it has one; what has no price at all gets the highest known rates."""
    own = own_price(request, budget)
    if own is not None:
        return replace(used, cost=own.of(used.input_tokens, used.output_tokens, cached))
    rates = highest_rates(request, budget) if used.cost is None else None
    if rates is None:
        return used
    return replace(used, cost=used.input_tokens * rates[0] + used.output_tokens * rates[1])


def _received(response: LLMResult) -> int:
    total = 0
    for generation in (g for answers in response.generations for g in answers):
        message = generation.message if isinstance(generation, ChatGeneration) else None
        total += len(generation.text.encode()) if message is None else MESSAGE_TOKENS + _message_tokens(message)
    return total


def _request(tokens: int, params: Mapping[str, Any], names: Sequence[Any]) -> Request:
    schemas = [params[key] for key in _SCHEMAS if params.get(key)]
    if schemas:
        tokens += TOOL_TOKENS + sum(map(_bytes, schemas))
    known = [params.get("model"), params.get("model_name"), *names]
    limits = [limit for key in _OUTPUT_LIMITS if isinstance(limit := params.get(key), int) and limit > 0]
    named = tuple(dict.fromkeys(name for name in known if isinstance(name, str) and name))
    return Request(named, tokens, max(limits, default=None), params.get("n") or 1, bool(params.get("service_tier")))


def _message_tokens(message: BaseMessage | Mapping[str, Any]) -> int:
    if not isinstance(message, BaseMessage):
        rest = {key: value for key, value in message.items() if key != "content"}
        return _bytes(rest) + _content_tokens(message.get("content"))
    tokens = _content_tokens(message.content)
    if message.name is not None:
        tokens += _text_tokens(message.name)
    if message.additional_kwargs:
        tokens += _bytes(message.additional_kwargs)
    if isinstance(message, AIMessage):
        if message.tool_calls:
            tokens += _bytes(message.tool_calls)
    elif isinstance(message, ToolMessage):
        tokens += _bytes(message.tool_call_id)
    return tokens


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return _text_tokens(content)
    return sum(map(_block_tokens, content if isinstance(content, list) else [content]))


def _text_tokens(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _block_tokens(block: Any) -> int:
    kind = str(block.get("type", "")) if isinstance(block, Mapping) else ""
    return MEDIA_TOKENS if any(word in kind for word in _MEDIA) else _bytes(block)


def _bytes(value: Any) -> int:
    return _text_tokens(repr(value))  # at least as long as JSON but for true, false and null


def _longest_answer(request: Request, budget: Budget) -> int | None:
    if request.output_tokens is not None:
        return request.output_tokens
    if request.local:
        return LOCAL_OUTPUT
    if budget.output_tokens is not None:
        return budget.output_tokens
    for name in request.names:
        row = _row(name)
        if row is not None and isinstance(most := row.get("max_output_tokens") or row.get("max_tokens"), int):
            return most
    return None


def own_price(request: Request, budget: Budget) -> Price | None:
    """The price that the budget gives for this model: under its name, else under ``"*"`` where no table knows it."""
    if not budget.prices:
        return None
    named = budget.price(request.names)
    if named is not None or request.local or any(_listed(name, request) for name in request.names):
        return named
    return budget.prices.get(ANY_MODEL)


def highest_rates(request: Request, budget: Budget) -> tuple[float, float] | None:
    """The highest US dollars per token of input and of output, ``None`` where nobody knows."""
    if request.local:
        return 0.0, 0.0
    given = own_price(request, budget)
    if given is not None:
        return max(given.input, given.cached or 0.0) / 1e6, given.output / 1e6
    return next((rates for name in request.names if (rates := _listed(name, request))), None)


def _listed(name: str, request: Request) -> tuple[float, float] | None:
    """The highest rates in LiteLLM's table that may apply: of long prompts, of writing to a cache, of reasoning."""
    row = _row(name)
    if row is None or "input_cost_per_token" not in row or "output_cost_per_token" not in row:
        return None
    sums = {key: value for key, value in row.items() if isinstance(value, int | float) and _applies(key, request)}
    return tuple(max(v for k, v in sums.items() if k.startswith(prefixes)) for prefixes in _RATES)  # type: ignore[return-value]


_RATES = (
    ("input_cost_per_token", "cache_creation_input_token_cost"),
    ("output_cost_per_token", "output_cost_per_reasoning_token"),
)
_TIERS = ("_priority", "_flex", "_batches", "_ultrafast", "_balanced", "_decisions")


def _applies(key: str, request: Request) -> bool:
    """Whether this entry of the table may be what the call is charged by."""
    above = re.search(r"_above_(\d+)k_tokens", key)
    long_enough = above is None or request.input_tokens > int(above.group(1)) * 1000
    return long_enough and (request.tier or not key.endswith(_TIERS))


def _row(name: str) -> Mapping[str, Any] | None:
    table = price_table()
    return table.get(name) or table.get(name.partition("/")[2])
