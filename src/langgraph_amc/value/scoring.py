"""Scoring particles with a trained transformer: one batch, in which what is known or shared is not encoded again.

What states share within a batch is encoded once, and what was scored at an earlier boundary is carried along the
lineage (`kv`). Both are exact: a causal model's keys and values of a token depend on what came before it only.
"""

from __future__ import annotations

import copy
import inspect
import math
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from langgraph_amc.checks import check_path, check_text, check_whole
from langgraph_amc.policy.forward import depends_on_length
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.checkpoint import ValueSpec, load
from langgraph_amc.value.kv import TRIED, agree, carry, trial_states
from langgraph_amc.value.model import ValueModel, pick_device
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.tokens import Encoded, IntArray, chunks, encode, families, last_state


class TransformerValue:
    """A trained transformer as a `SoftValueFunction`; safe to call from several threads.

    Parameters
    ----------
    model, spec: as loaded by `load_value`.
    max_tokens: tokens of one forward pass, padding and shared prefix included.
    share_prefix: encode the common prefix of states of one call once.
    cache_bytes: keys and values kept from call to call, so that states that go on are encoded from there; 0: none.
    """

    def __init__(
        self,
        model: ValueModel,
        spec: ValueSpec,
        *,
        max_tokens: int = 32_768,
        share_prefix: bool = True,
        cache_bytes: int = 1 << 30,
    ) -> None:
        _check(max_tokens, cache_bytes)
        self.spec = spec
        self._model = model
        alone = depends_on_length(model.classifier.config.get_text_config())
        self._max_tokens = 1 if alone else max_tokens
        self._encoded_tokens = 0
        self._segment_ids: dict[str, IntArray] = {}
        self._lock = threading.Lock()
        self._warned = False
        # transformers 5 renamed the argument on its way; both names live in the supported range.
        accepted = inspect.signature(model.backbone.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        with torch.inference_mode():
            self._carried = carry(model, cache_bytes) if cache_bytes and not model.network.training else None
            shares = self._carried is not None or (share_prefix and not alone and self._shares_exactly())
        self._share_prefix = share_prefix and shares

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, float64 [n], in units of reward."""
        return self.spec.mean(self.logits(transcripts), _steps(transcripts))

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n], in units of reward, for any β > 0 (AMC, soft value).

        Raises
        ------
        ConfigurationError: β is not positive, or the model knows only the mean of graded returns.
        """
        return self.spec.soft_value(self.logits(transcripts), _steps(transcripts), beta)

    def uncertainty(self, step: int) -> float:
        """Standard deviation of V's error among states of one task at a step, in units of reward; NaN if unknown."""
        return math.nan if self.spec.uncertainty is None else self.spec.uncertainty(step)

    def logits(self, transcripts: Sequence[Segments]) -> Tensor:
        """Head outputs, float32 [n, head size] on the CPU; equal states are computed once."""
        with self._lock, torch.inference_mode():
            encoded = encode(self._model.tokenizer, transcripts, self._segment_ids)
            self._warn_of_cuts(encoded)
            states = [last_state(e, self.spec.max_length) for e in encoded]
            number: dict[bytes, int] = {}
            which = [number.setdefault(ids.tobytes(), len(number)) for ids in states]
            unique = [states[which.index(n)] for n in range(len(number))]
            return self._unique_logits(unique)[torch.tensor(which, dtype=torch.long)]

    @property
    def carries(self) -> bool:
        """Whether keys and values are carried from call to call; not every architecture can be continued exactly."""
        return self._carried is not None

    @property
    def encoded_tokens(self) -> int:
        """Tokens that went through the model so far, padding not counted."""
        return self._encoded_tokens + (self._carried.encoded_tokens if self._carried else 0)

    @property
    def cached_bytes(self) -> int:
        """Bytes of keys and values that are kept."""
        return self._carried.tree.nbytes if self._carried else 0

    def _unique_logits(self, states: list[IntArray]) -> Tensor:
        if self._carried is not None and self._model.network.training:
            self._carried.tree.clear()  # dropout would be carried on, and its weights change
        elif self._carried is not None and states:
            hidden = self._carried.hidden(states, self._max_tokens, self._share_prefix)
            return self._model.head(hidden.float()).cpu()
        found = torch.empty(len(states), self.spec.head.size)
        for prefix, members in families(states, self._share_prefix):
            self._score_family(states, prefix, members, found)
        return found

    def _shares_exactly(self) -> bool:
        """Whether the model, tried on a few tokens, goes on from a prefix as if it had encoded it again."""
        states = trial_states(self._model)
        shared, apart = torch.empty(2, 2, self.spec.head.size)
        self._score_family(states, TRIED, [0, 1], shared)
        for number in range(2):
            self._score_family(states, 0, [number], apart)
        self._encoded_tokens = 0
        return agree(shared, apart)

    def _warn_of_cuts(self, encoded: Sequence[Encoded]) -> None:
        """Once: V that does not see how a run began may rank states by their length."""
        longest = max((len(e.ids) for e in encoded), default=0)
        if longest > self.spec.max_length and not self._warned:
            self._warned = True
            warnings.warn(
                f"a transcript of {longest:,} tokens is longer than the {self.spec.max_length:,} the value model was "
                "trained for: its beginning is cut off; train with a larger max_length, or shorten tool results "
                "(Transcript(max_tool_chars=…))",
                stacklevel=2,
            )

    def _score_family(self, states: list[IntArray], prefix: int, members: list[int], found: Tensor) -> None:
        """Fill the rows of ``members``, whose first ``prefix`` tokens are the same."""
        model, shared = self._model, None
        if prefix:
            shared = DynamicCache(config=model.classifier.config)
            head = torch.from_numpy(states[members[0]][:prefix])[None].to(model.device)
            model.hidden(head, **{self._cache_argument: shared})
            self._encoded_tokens += prefix
        for chunk in chunks(members, [len(ids) for ids in states], self._max_tokens):
            suffixes = [states[m][prefix:] for m in chunk]
            self._encoded_tokens += sum(map(len, suffixes))
            ids = np.zeros((len(chunk), max(map(len, suffixes))), dtype=np.int64)
            for row, suffix in enumerate(suffixes):
                ids[row, : len(suffix)] = suffix
            cache = {}
            if shared is not None:
                cache[self._cache_argument] = expanded = copy.deepcopy(shared)
                expanded.batch_repeat_interleave(len(chunk))
            hidden = model.hidden(torch.from_numpy(ids).to(model.device), **cache)
            rows = torch.arange(len(chunk), device=model.device)
            columns = torch.tensor([len(suffix) - 1 for suffix in suffixes], device=model.device)
            found[chunk] = model.logits(hidden, rows, columns).cpu()


def _check(max_tokens: int, cache_bytes: int) -> None:
    check_whole("max_tokens", max_tokens, 1)
    check_whole("cache_bytes", cache_bytes)


def _steps(transcripts: Sequence[Segments]) -> list[int]:
    return [len(segments) - 1 for segments in transcripts]


def load_value(
    path: str | Path,
    transcript_fingerprint: str | None = None,
    *,
    allow_fingerprint_mismatch: bool = False,
    base: str | Path | None = None,
    device: str = "auto",
    max_tokens: int = 32_768,
    share_prefix: bool = True,
    cache_bytes: int = 1 << 30,
) -> TransformerValue:
    """Load a value function that `train_value` saved.

    Parameters
    ----------
    transcript_fingerprint: of the transcripts it will be given; ``None`` leaves that unchecked.
    base: where the base model of an adapter is now, if it was moved.
    max_tokens, share_prefix, cache_bytes: see `TransformerValue`.

    Raises
    ------
    FingerprintMismatch: it was trained on transcripts written with other options.
    ConfigurationError: options that cannot work.
    ValueModelError: something is missing or does not fit: weights, head, base or description.
    """
    _check(max_tokens, cache_bytes)
    check_text("transcript_fingerprint", transcript_fingerprint)
    model, spec = load(
        check_path("a value function's folder", path),
        transcript_fingerprint,
        allow_fingerprint_mismatch=allow_fingerprint_mismatch,
        base=None if base is None else check_path("base", base),
        device=pick_device(device),
    )
    return TransformerValue(model, spec, max_tokens=max_tokens, share_prefix=share_prefix, cache_bytes=cache_bytes)
