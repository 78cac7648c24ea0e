"""Scoring particles with a trained transformer: one batch, in which a shared prefix is encoded once."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.checkpoint import ValueSpec, load
from langgraph_amc.value.model import ValueModel, pick_device
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.tokens import Encoded, IntArray, encode, last_state

_SHARED_AT_LEAST = 32  # tokens that states must have in common to be treated as one family


class TransformerValue:
    """A trained transformer as a `SoftValueFunction`; safe to call from several threads.

    Parameters
    ----------
    model, spec: as loaded by `load_value`.
    max_tokens: tokens of one forward pass, padding and shared prefix included.
    share_prefix: encode the common prefix of states once and expand its key-value cache.
    """

    def __init__(
        self, model: ValueModel, spec: ValueSpec, *, max_tokens: int = 32_768, share_prefix: bool = True
    ) -> None:
        if max_tokens < 1:
            raise ConfigurationError(f"max_tokens must be at least 1, got {max_tokens}")
        self.spec = spec
        self._model = model
        self._max_tokens = max_tokens
        self._share_prefix = share_prefix
        self._lock = threading.Lock()
        self._warned = False
        # transformers 5 renamed the argument on its way; both names live in the supported range.
        accepted = inspect.signature(model.backbone.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, float64 [n], in units of reward."""
        return self.spec.head.mean(self.logits(transcripts)).numpy()

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n], in units of reward, for any β > 0 (AMC, soft value).

        Raises
        ------
        ConfigurationError: β is not positive, or the model knows only the mean of graded returns.
        """
        return self.spec.head.soft_value(self.logits(transcripts), beta).numpy()

    def logits(self, transcripts: Sequence[Segments]) -> Tensor:
        """Head outputs, float32 [n, head size] on the CPU; equal states are computed once."""
        with self._lock, torch.inference_mode():
            encoded = encode(self._model.tokenizer, transcripts)
            self._warn_of_cuts(encoded)
            states = [last_state(e, self.spec.max_length) for e in encoded]
            number: dict[bytes, int] = {}
            which = [number.setdefault(ids.tobytes(), len(number)) for ids in states]
            unique = [states[which.index(n)] for n in range(len(number))]
            found = torch.empty(len(unique), self.spec.head.size)
            for prefix, members in _families(unique, self._share_prefix):
                self._score_family(unique, prefix, members, found)
            return found[torch.tensor(which, dtype=torch.long)]

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
        for chunk in _chunks(states, members, self._max_tokens):
            suffixes = [states[m][prefix:] for m in chunk]
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


def load_value(
    path: str | Path,
    transcript_fingerprint: str | None = None,
    *,
    allow_fingerprint_mismatch: bool = False,
    base: str | Path | None = None,
    device: str = "auto",
    max_tokens: int = 32_768,
    share_prefix: bool = True,
) -> TransformerValue:
    """Load a value function that `train_value` saved.

    Parameters
    ----------
    transcript_fingerprint: of the transcripts it will be given; ``None`` leaves that unchecked.
    base: where the base model of an adapter is now, if it was moved.

    Raises
    ------
    FingerprintMismatch: it was trained on transcripts written with other options.
    ValueModelError: something is missing or does not fit: weights, head, base or description.
    """
    model, spec = load(
        Path(path),
        transcript_fingerprint,
        allow_fingerprint_mismatch=allow_fingerprint_mismatch,
        base=base,
        device=pick_device(device),
    )
    return TransformerValue(model, spec, max_tokens=max_tokens, share_prefix=share_prefix)


def _families(states: list[IntArray], share: bool) -> list[tuple[int, list[int]]]:
    """Group states by their first tokens: (length of the common prefix, members), members by length.

    States with no relatives make one group without a prefix. A prefix leaves every state its last token, at
    which the value is read.
    """
    groups: dict[bytes, list[int]] = {}
    for index, ids in enumerate(states):
        groups.setdefault(ids[:_SHARED_AT_LEAST].tobytes(), []).append(index)
    families, alone = [], []
    for members in groups.values():
        prefix = _common_prefix([states[m] for m in members]) if share and len(members) > 1 else 0
        if prefix >= _SHARED_AT_LEAST:
            families.append((prefix, members))
        else:
            alone += members
    if alone:
        families.append((0, alone))
    return [(prefix, sorted(members, key=lambda m: len(states[m]))) for prefix, members in families]


def _common_prefix(states: list[IntArray]) -> int:
    limit = min(map(len, states)) - 1
    first = states[0][:limit]
    different = np.zeros(limit, dtype=np.bool_)
    for ids in states[1:]:
        different |= ids[:limit] != first
    return int(different.argmax()) if different.any() else limit


def _chunks(states: list[IntArray], members: list[int], max_tokens: int) -> list[list[int]]:
    """Cut members, sorted by length, so that rows × longest state stays within the budget."""
    chunks: list[list[int]] = []
    for member in members:
        if chunks and (len(chunks[-1]) + 1) * len(states[member]) <= max_tokens:
            chunks[-1].append(member)
        else:
            chunks.append([member])
    return chunks
