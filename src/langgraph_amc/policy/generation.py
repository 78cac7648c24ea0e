"""What the batch engine takes and gives, and the state of one sequence while it is being generated."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from langgraph_amc.errors import AMCError, ConfigurationError

FinishReason = Literal["stop", "length"]
OnText = Callable[[int, str], None]
"""``(sample number, new text)``, called from the engine's thread as text becomes final."""


class EngineError(AMCError, RuntimeError):
    """The batch engine could not finish a request."""


class ContextOverflowError(EngineError):
    """The prompt leaves no room for a single new token in the model's context."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context holds {limit}, the new ones"
            " included: shorten the prompt, or use a model with a longer context"
        )


class EngineClosedError(EngineError):
    """The engine was closed before the request was finished."""

    def __init__(self) -> None:
        super().__init__("the batch engine is closed: get a new one from `get_engine`")


class VariantsEndedError(EngineError):
    """The engine stopped serving variants before the request was finished."""

    def __init__(self) -> None:
        super().__init__(
            "the engine stopped serving the variant that this request names: await all requests of a generation"
            " before leaving `BatchEngine.serving`"
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it.

    Attributes
    ----------
    prompt_ids, messages: exactly one: token ids, or OpenAI-style messages for the chat template.
    max_tokens: at most this many new tokens; ``None``, and whatever exceeds it, means what the context holds.
    temperature: 0 is greedy.
    top_p: nucleus mass in (0, 1].
    seed: reproduces the samples, whoever else is in the batch; ``None`` draws fresh entropy.
    stop: generation ends before the first of these strings, which is not part of the text.
    n: samples of one prompt, which is prefilled once.
    tools: OpenAI-style tool schemas for a chat template that knows them; only with ``messages``.
    variant: which of the variants that the engine serves answers; ``None`` is the model as it is.
    """

    prompt_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = 256
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    tools: Sequence[Mapping[str, Any]] | None = None
    variant: Hashable | None = None

    def __post_init__(self) -> None:
        if (self.prompt_ids is None) == (self.messages is None):
            raise ConfigurationError("give exactly one of prompt_ids and messages")
        if self.tools and self.messages is None:
            raise ConfigurationError("tools need messages: a chat template writes them into the prompt")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigurationError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigurationError(f"temperature must be finite and not negative, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.n < 1:
            raise ConfigurationError(f"n must be at least 1, got {self.n}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ConfigurationError("stop must be a tuple of non-empty strings")


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished sample.

    Attributes
    ----------
    text: decoded without special tokens, cut before a stop string.
    token_ids: every sampled token, the end-of-sequence token included.
    finish_reason: ``"stop"`` (end of sequence or stop string) or ``"length"``.
    prompt_tokens: length of the prompt.
    reused_tokens: how much of the prompt came from the cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Running totals of one engine, in tokens, rows and forward passes.

    ``variant_samples`` of the ``samples`` were of a variant; the tokens of these are counted like all others.
    """

    samples: int = 0
    variant_samples: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    prefills: int = 0
    decode_steps: int = 0
    largest_batch: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a batch: rows, bytes of the running rows' cache, padded tokens of one prefill pass."""

    rows: int
    running_bytes: int
    prefill_tokens: int


@dataclass(slots=True, eq=False)
class Job:
    """A submitted request until its future is set."""

    request: GenerationRequest
    prompt: array[int]
    keys: list[int]
    max_new: int
    seed: int
    future: Future[list[Generation]]
    on_text: OnText | None
    stop_ids: frozenset[int]
    stop: tuple[str, ...]
    results: dict[int, Generation] = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        """Nobody waits any more: cancelled, or failed through a sibling sample."""
        return self.future.done()


def fresh_seed() -> int:
    """63 bits of entropy."""
    return secrets.randbits(63)


@dataclass(slots=True, eq=False)
class Row:
    """One running sample: its tokens, how many of them are in the cache, and its random stream."""

    job: Job
    sample: int
    rng: np.random.Generator
    ids: array[int]
    cached: int = 0
    reused: int = 0
    source: Any = None
    """The stored sequence that this row started from."""
    version: int = 0
    """Version of the weights that wrote its cache."""
    sent: int = 0

    @property
    def variant(self) -> Hashable | None:
        """The variant of the model that computes it."""
        return self.job.request.variant

    @property
    def new(self) -> array[int]:
        """Sampled tokens so far."""
        return self.ids[len(self.job.prompt) :]

    @property
    def need(self) -> int:
        """Cache positions this row may come to use."""
        return len(self.job.prompt) + self.job.max_new
