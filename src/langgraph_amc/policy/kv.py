"""The ragged key/value cache: every row has its own length, and rows of any age share one forward pass.

Rows live in one preallocated pool of shape ``(2 * layers, rows, length, heads, head_dim)``, keys before
values. Row r writes token t at position t of its own row, so nothing is shifted or padded when rows of
different ages meet, and a batch is always a contiguous range of rows, so attention reads a view of the pool
and nothing is gathered. The last position of each row is a bin for the padding of a ragged prefill.

`RaggedCache` is the same pool in the words of the documented ``transformers`` cache interface, so any
standard decoder runs on it unchanged.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from langgraph_amc.errors import ConfigurationError

CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""What this version of transformers calls the cache argument of ``forward``."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Geometry of one model's cache."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes that one cached token takes."""
        return 2 * self.layers * self.heads * self.dim * self.dtype.itemsize


def probe(model: Any) -> KVShape:
    """Read the cache geometry off one real forward pass, which also proves that the model fits the pool.

    Raises
    ------
    ConfigurationError: a layer keeps something else than equally shaped keys and values.
    """
    device = next(model.parameters()).device
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(
            input_ids=torch.zeros(1, 1, dtype=torch.long, device=device),
            use_cache=True,
            **{CACHE_ARGUMENT: cache},
        )
    shapes: set[tuple[torch.Size, torch.dtype]] = set()
    plain = True
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            plain = False
            break
        shapes |= {(tensor.shape, tensor.dtype) for tensor in (layer.keys, layer.values)}
    if not plain or len(shapes) != 1:
        raise ConfigurationError(
            f"{type(model).__name__} does not cache plain keys and values of one shape in all its layers; the"
            " batch engine serves decoders that do (Llama, Qwen, SmolLM, Mistral, ...)"
        )
    (shape, dtype), *_ = shapes
    return KVShape(len(cache.layers), shape[1], shape[3], dtype, device)


@dataclass(frozen=True, slots=True)
class Step:
    """Where the tokens of one forward pass go: rows ``first:last``, all reading ``extent`` positions."""

    first: int
    last: int
    extent: int
    slots: torch.Tensor
    """Flat index ``row * length + position`` of every token, shape ``(rows * tokens,)``."""


class KVPool:
    """Keys and values of the rows that are running; grows as needed, never shrinks."""

    def __init__(self, shape: KVShape, max_rows: int) -> None:
        self.shape = shape
        self.max_rows = max_rows
        self.rows = 0
        self.length = 0
        self.step: Step | None = None
        self.data = self._zeros(0, 0)
        self.flat: list[torch.Tensor] = []

    def _zeros(self, rows: int, length: int) -> torch.Tensor:
        s = self.shape
        # Zeros, not garbage: a masked position has weight 0, and 0 times NaN is NaN.
        return torch.zeros(2 * s.layers, rows, length, s.heads, s.dim, dtype=s.dtype, device=s.device)

    def reserve(self, rows: int, length: int) -> None:
        """Make room for ``rows`` rows of ``length`` tokens each, plus the bin."""
        if rows <= self.rows and length < self.length:
            return
        new_rows = self.rows if rows <= self.rows else max(rows, min(2 * self.rows, self.max_rows))
        new_length = self.length
        if length >= self.length:
            new_length = (max(length + 1, self.length * 5 // 4) + 63) // 64 * 64
        data = self._zeros(new_rows, new_length)
        data[:, : self.rows, : self.length] = self.data
        self.data, self.rows, self.length = data, new_rows, new_length
        s = self.shape
        self.flat = [layer.view(new_rows * new_length, s.heads, s.dim) for layer in data]

    def load(self, row: int, entry: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` tokens of a stored sequence into a row."""
        self.data[:, row, :length] = entry[:, :length]

    def snapshot(self, row: int, length: int) -> torch.Tensor:
        """Copy a row out: shape ``(2 * layers, length, heads, head_dim)``."""
        return self.data[:, row, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy one row over another, to close a gap."""
        self.data[:, target, :length] = self.data[:, source, :length]

    def clear(self, row: int) -> None:
        """Forget a row whose numbers went bad, so that they cannot leak through a mask."""
        self.data[:, row] = 0


class _RaggedLayer(CacheLayerMixin):
    """One layer of the pool: writes at each row's own positions, returns views."""

    def __init__(self, pool: KVPool, index: int) -> None:
        super().__init__()
        self.pool = pool
        self.key_index = index
        self.value_index = pool.shape.layers + index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the pool is allocated before the forward pass."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pool = self.pool
        step = pool.step
        assert step is not None
        out = []
        for index, states in ((self.key_index, key_states), (self.value_index, value_states)):
            # (rows, heads, tokens, dim) -> (rows * tokens, heads, dim)
            pool.flat[index].index_copy_(0, step.slots, states.transpose(1, 2).flatten(0, 1))
            out.append(pool.data[index][step.first : step.last, : step.extent].transpose(1, 2))
        return out[0], out[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.pool.step is not None
        return self.pool.step.extent, 0

    def get_seq_length(self) -> int:
        # Rows have no common length; positions and masks are always given explicitly.
        return 0

    def get_max_length(self) -> int:
        return -1


class RaggedCache(Cache):
    """A `KVPool` as a ``transformers`` cache; the pool's current `Step` says where tokens go."""

    def __init__(self, pool: KVPool) -> None:
        super().__init__(layers=[_RaggedLayer(pool, i) for i in range(pool.shape.layers)])
