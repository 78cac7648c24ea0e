"""One forward pass of a Hugging Face decoder over the ragged pool.

Everything ragged is in three tensors: where each token is written, its position, and a four-dimensional mask
over the row's own positions. The model itself is called as it is.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.kv import CACHE_ARGUMENT, KVPool, RaggedCache, Step

_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
_SERVED = "the batch engine serves decoders with rotary or learned positions (Llama, Qwen, SmolLM, Mistral, GPT-2, ...)"


@functools.cache
def pick_device(device: str | None = None) -> torch.device:
    """The device asked for, else the first of CUDA, MPS, CPU that is there."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def depends_on_length(config: Any) -> bool:
    """Whether a token's keys depend on the longest row of the batch, so that rows cannot share or be padded."""
    return bool(_rope_types(getattr(config, "rope_parameters", None)) & _BATCH_DEPENDENT_ROPE)


def _rope_types(parameters: Mapping[str, Any] | None) -> set[str]:
    """All rope types in a config, which keeps one for the model or one per type of layer."""
    if not parameters:
        return set()
    nested: list[Mapping[str, Any]] = [value for value in parameters.values() if isinstance(value, dict)]
    groups: list[Mapping[str, Any]] = nested or [parameters]
    return {group["rope_type"] for group in groups if "rope_type" in group}


class Decoder:
    """Runs contiguous rows of a pool through a model; returns logits of each row's last token."""

    def __init__(self, model: Any, pool: KVPool) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.pool = pool
        self.cache = RaggedCache(pool)
        self.device = pool.shape.device
        self.dtype = pool.shape.dtype
        self.vocabulary: int = config.vocab_size
        self.context_length: int = getattr(config, "max_position_embeddings", 0)
        if not self.context_length:
            raise ConfigurationError(f"{type(model).__name__} has no max_position_embeddings in its config: {_SERVED}")
        if depends_on_length(config):
            raise ConfigurationError(
                "this model's rope_type makes a token's keys depend on the longest row of the batch; the"
                " batch engine needs position embeddings that depend on the position only"
            )
        if model.config._attn_implementation not in ("sdpa", "eager"):
            raise ConfigurationError(
                f"attention {model.config._attn_implementation!r} takes no ragged mask: load the model with"
                " attn_implementation='sdpa'"
            )
        kinds = set(getattr(config, "layer_types", None) or ())
        self.window: int | None = getattr(config, "sliding_window", None)
        self.by_kind = "sliding_attention" in kinds
        if kinds == {"full_attention"}:
            self.window = None
        if kinds - {"full_attention", "sliding_attention"}:
            raise ConfigurationError(f"layers of type {sorted(kinds)} are not plain attention")

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """One new token for each of the rows ``0 .. len(tokens)``; returns logits ``(rows, vocabulary)``."""
        positions = torch.tensor(lengths, device=self.device).unsqueeze(1)
        ids = torch.tensor(tokens, device=self.device).unsqueeze(1)
        rows = torch.arange(len(tokens), device=self.device).unsqueeze(1)
        slots = (rows * self.pool.length + positions).flatten()
        return self._run(ids, positions, Step(0, len(tokens), max(lengths) + 1, slots))

    def prefill(self, first: int, suffixes: Sequence[array[int]], lengths: Sequence[int], chunk: int) -> torch.Tensor:
        """Extend rows ``first ..`` by suffixes of different length, padded on the left.

        Parameters
        ----------
        suffixes: new tokens of each row, at least one.
        lengths: tokens that each row holds already.
        chunk: at most this many columns per pass.
        """
        width = max(map(len, suffixes))
        ids = torch.zeros(len(suffixes), width, dtype=torch.long)
        positions = torch.zeros_like(ids)
        slots = torch.empty_like(ids)
        for i, (suffix, length) in enumerate(zip(suffixes, lengths, strict=True)):
            pad = width - len(suffix)
            base = (first + i) * self.pool.length
            ids[i, pad:] = torch.frombuffer(suffix, dtype=torch.long)
            positions[i, pad:] = torch.arange(length, length + len(suffix))
            slots[i, :pad] = base + self.pool.length - 1
            slots[i, pad:] = positions[i, pad:] + base
        ids, positions, slots = (t.to(self.device) for t in (ids, positions, slots))
        for start in range(0, width, chunk):
            part = slice(start, start + chunk)
            end = min(start + chunk, width)
            extent = max(length + len(suffix) - (width - end) for suffix, length in zip(suffixes, lengths, strict=True))
            step = Step(first, first + len(suffixes), max(extent, 1), slots[:, part].flatten())
            logits = self._run(ids[:, part], positions[:, part], step)
        return logits

    def check(self) -> None:
        """Run one token in an empty pool; ConfigurationError for a model that takes no mask and positions of ours."""
        try:
            with torch.inference_mode():
                self.pool.reserve(1, 1)
                self.prefill(0, [array("q", [0])], [0], 1)
                self.pool.clear(0)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"{type(self.model).__name__} does not run on rows with a mask and positions of their own ({error}): "
                f"{_SERVED}"
            ) from error

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, step: Step) -> torch.Tensor:
        self.pool.step = step
        keys = torch.arange(step.extent, device=self.device)
        queries = positions.unsqueeze(-1)
        allowed = keys <= queries
        full = self._additive(allowed)
        mask: Any = full
        if self.window is not None:
            near = self._additive(allowed & (keys > queries - self.window))
            mask = {"full_attention": full, "sliding_attention": near} if self.by_kind else near
        return self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{CACHE_ARGUMENT: self.cache},
        ).logits[:, -1]

    def _additive(self, allowed: torch.Tensor) -> torch.Tensor:
        # Additive in the model's own dtype: what both `sdpa` and `eager` take, converted once, not per layer.
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, torch.finfo(self.dtype).min).unsqueeze(1)
