"""Counting model usage of any LangChain chat model through a callback, and pricing it.

A call's usage is counted once, however many generations it returned. The price is the user's own, else what the
model reported (`response_cost`), else LiteLLM's price table; where none knows one, the cost becomes ``None`` and
stays so.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from langgraph_amc.trajectories.types import Usage

LOCAL_PROVIDER = "amc-local"
"""Prefix of models served from this process, which cost nothing per token."""

_USAGE_KEYS = ("token_usage", "usage", "usage_metadata")
"""Where models without usage metadata leave their counts."""

Pricing = Callable[[Sequence[str], int, int, int], float | None]
"""``(names of the model, input tokens, output tokens, cached input tokens) -> US dollars``, ``None`` where it has no
price for that model; `Account.price` is one."""


def price(model: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float | None:
    """Price of one call in US dollars by LiteLLM's table, ``None`` if the table does not know the model.

    Parameters
    ----------
    model: with or without its provider, like ``"openai/gpt-5.1"``.
    cached_tokens: those of the input tokens that were read from the provider's prompt cache.
    """
    if model.startswith(f"{LOCAL_PROVIDER}/"):
        return 0.0
    table = price_table()
    row = table.get(model) or table.get(model.partition("/")[2])
    if row is None or "input_cost_per_token" not in row or "output_cost_per_token" not in row:
        return None
    if any("_above_" in key for key in row) and input_tokens > 128_000:
        return None  # a tiered price: only the provider's own figure is right
    cached_price = row.get("cache_read_input_token_cost", row["input_cost_per_token"])
    return (
        (input_tokens - cached_tokens) * row["input_cost_per_token"]
        + cached_tokens * cached_price
        + output_tokens * row["output_cost_per_token"]
    )


@functools.cache
def price_table() -> Mapping[str, Mapping[str, Any]]:
    """LiteLLM's table of models: prices, longest answers."""
    # Read as data: importing litellm takes seconds, and this runs inside a callback.
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "model_prices_and_context_window_backup.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class UsageCallback(BaseCallbackHandler):
    """Adds up what every chat model below this callback used. Thread-safe; share it freely.

    Parameters
    ----------
    price: the user's own prices; they go before what a model reports and before the table.
    """

    # In the calling thread: a hop to an executor per event costs more than the handler.
    run_inline = True

    def __init__(self, price: Pricing | None = None) -> None:
        super().__init__()
        self._price = price
        self._lock = threading.Lock()
        self._usage = Usage()
        self._models: dict[UUID, str] = {}

    @property
    def usage(self) -> Usage:
        """Total so far."""
        with self._lock:
            return self._usage

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        self._start(run_id, metadata)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, metadata: Any = None, **kwargs: Any) -> None:
        self._start(run_id, metadata)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            self._models.pop(run_id, None)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            started_as = self._models.pop(run_id, None)
        self.add(usage_of(response, started_as, self._price))

    def add(self, used: Usage) -> None:
        """Count one call."""
        with self._lock:
            self._usage = self._usage + used

    def _start(self, run_id: UUID, metadata: Mapping[str, Any] | None) -> None:
        model = (metadata or {}).get("ls_model_name")
        if model:
            with self._lock:
                self._models[run_id] = model


def usage_of(response: LLMResult, started_as: str | None, own_price: Pricing | None = None) -> Usage:
    """Usage of one finished call; what the model does not report counts as no tokens (see `is_reported`)."""
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    message = generation.message if isinstance(generation, ChatGeneration) else None
    metadata = (message.response_metadata if message is not None else None) or {}
    info = (generation.generation_info if generation is not None else None) or {}
    output = response.llm_output or {}
    counts, cached = _tokens(message, info, output)
    if counts.get("total_cost") == 0:  # LangChain marks an answer from its own cache like this
        return Usage(calls=1)
    input_tokens, output_tokens = counts["input"], counts["output"]
    told = (
        metadata.get("model_name"),
        started_as,
        metadata.get("model"),
        info.get("model_name"),
        output.get("model_name"),
        output.get("model"),
    )
    names = [name for name in told if name]
    cost = None if own_price is None else own_price(names, input_tokens, output_tokens, cached)
    if cost is None:
        cost = metadata.get("response_cost")
    if cost is None:
        listed = (price(name, input_tokens, output_tokens, cached) for name in names)
        cost = next((found for found in listed if found is not None), None)
    return Usage(1, input_tokens, output_tokens, cost)


def is_reported(response: LLMResult) -> bool:
    """Whether an answer says what it used."""
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if isinstance(message, AIMessage) and message.usage_metadata is not None:
        return True
    info = (generation.generation_info if generation is not None else None) or {}
    metadata = message.response_metadata if isinstance(message, AIMessage) else {}
    return any(holder.get(key) for holder in (info, metadata, response.llm_output or {}) for key in _USAGE_KEYS)


def cached_tokens(response: LLMResult) -> int:
    """How many of an answer's input tokens were read from the provider's cache."""
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    return _tokens(generation.message, {}, {})[1] if isinstance(generation, ChatGeneration) else 0


def _tokens(message: Any, info: Mapping[str, Any], output: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Input and output tokens wherever the model left them, and how many of the input were cached."""
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    if usage:
        details = usage.get("input_token_details") or {}
        counts = {
            "input": usage.get("input_tokens") or 0,  # an answer from LangChain's cache may have a cost only
            "output": usage.get("output_tokens") or 0,
            "total_cost": usage.get("total_cost"),
        }
        return counts, details.get("cache_read") or 0
    metadata = message.response_metadata if isinstance(message, AIMessage) else {}
    for holder in (info, metadata, output):  # an answer from a journal has its metadata only
        raw = next((found for key in _USAGE_KEYS if (found := holder.get(key))), None)
        if raw:
            raw = raw if isinstance(raw, Mapping) else raw.model_dump()
            return {
                "input": raw.get("prompt_tokens") or raw.get("input_tokens") or 0,
                "output": raw.get("completion_tokens") or raw.get("output_tokens") or 0,
            }, 0
    return {"input": 0, "output": 0}, 0
