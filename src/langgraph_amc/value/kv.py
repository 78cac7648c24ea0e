"""Keys and values carried along a lineage: at the next boundary only the tokens that are new are encoded.

The states of all particles are one tree of tokens: clones begin as their parent did. `PrefixTree` keeps the keys
and values of each token of that tree once, `Carried` encodes what a batch of states adds to it. Rows of any age
share one forward pass, through the ragged pool of the batch engine (`policy.kv`, `policy.forward`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.forward import Decoder
from langgraph_amc.policy.kv import KVPool, probe
from langgraph_amc.value.model import ValueModel
from langgraph_amc.value.tokens import IntArray, chunks, common_prefix, families

TRIED = 12  # tokens
_MASK_ELEMENTS = 1 << 25
"""Bound of one attention mask, rows × new tokens × all tokens: longer passes are cut."""


@dataclass(slots=True, eq=False)
class _Run:
    """A stretch of tokens without a branch, with their keys and values, [2·layers, tokens, heads, head size]."""

    ids: IntArray
    data: Tensor
    parent: _Run | None
    children: dict[int, _Run] = field(default_factory=dict)


class PrefixTree:
    """Keys and values by token prefix, each token once, bounded in bytes; the least recently used go first.

    `policy.prefix.PrefixStore` keeps whole sequences, each with a copy of its own of what it shares with others;
    here the clones of a particle share the memory of their past. Not thread-safe: one owner.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._root: dict[int, _Run] = {}
        # A run is always newer than the runs that continue it, so the oldest one is a leaf.
        self._order: OrderedDict[_Run, None] = OrderedDict()

    def __len__(self) -> int:
        """Tokens that are kept."""
        return sum(len(run.ids) for run in self._order)

    def match(self, ids: IntArray) -> list[Tensor]:
        """The keys and values of the longest prefix of ``ids`` that is kept, piece by piece."""
        path = self._walk(ids)
        self._touch(path[-1][0] if path else None)
        return [run.data[:, :count] for run, count in path]

    def insert(self, ids: IntArray, start: int, data: Tensor) -> None:
        """Keep ``ids``, whose tokens from ``start`` on have the keys and values ``data``.

        Nothing happens if the tokens before ``start`` are not kept (any more).
        """
        path = self._walk(ids)
        known = sum(count for _, count in path)
        if known < start or known == len(ids):
            return
        parent = None
        if path:
            run, count = path[-1]
            parent = run if count == len(run.ids) else self._split(run, count)
        leaf = _Run(ids[known:].copy(), _copy(data[:, known - start :]), parent)
        self._children(parent)[int(ids[known])] = leaf
        self.nbytes += leaf.data.nbytes
        self._touch(leaf)
        while self.nbytes > self.max_bytes:
            self._drop_oldest()

    def clear(self) -> None:
        """Forget everything."""
        while self._order:
            self._drop_oldest()

    def _walk(self, ids: IntArray) -> list[tuple[_Run, int]]:
        """The runs along ``ids`` and how many tokens of each agree; all but the last agree in full."""
        path: list[tuple[_Run, int]] = []
        children, at = self._root, 0
        while at < len(ids) and (run := children.get(int(ids[at]))) is not None:
            count = common_prefix([run.ids, ids[at:]])
            path.append((run, count))
            if count < len(run.ids):
                break
            children, at = run.children, at + count
        return path

    def _touch(self, run: _Run | None) -> None:
        while run is not None:
            self._order[run] = None
            self._order.move_to_end(run)
            run = run.parent

    def _split(self, run: _Run, count: int) -> _Run:
        """Cut a run in two; the copies let go of the memory of the whole."""
        upper = _Run(run.ids[:count].copy(), _copy(run.data[:, :count]), run.parent, {int(run.ids[count]): run})
        self._children(run.parent)[int(run.ids[0])] = upper
        run.ids, run.data, run.parent = run.ids[count:].copy(), _copy(run.data[:, count:]), upper
        return upper

    def _children(self, run: _Run | None) -> dict[int, _Run]:
        return self._root if run is None else run.children

    def _drop_oldest(self) -> None:
        run, _ = self._order.popitem(last=False)
        del self._children(run.parent)[int(run.ids[0])]
        self.nbytes -= run.data.nbytes


def _copy(data: Tensor) -> Tensor:
    return data.clone(memory_format=torch.contiguous_format)


@dataclass(slots=True)
class _Row:
    """A state whose first ``known`` tokens have the keys and values ``pieces``."""

    ids: IntArray
    pieces: list[Tensor]
    known: int

    def then(self, piece: Tensor) -> _Row:
        """The same state when the tokens of ``piece`` are known as well."""
        return _Row(self.ids, [*self.pieces, piece], self.known + piece.shape[1])


class Carried:
    """Encodes states from where their longest known beginnings end. Not thread-safe: one owner.

    Parameters
    ----------
    model: in evaluation mode; its weights must not change.
    max_bytes: bound of what is kept from one call to the next.

    Raises
    ------
    ConfigurationError: the model keeps something else than plain keys and values, or its positions depend on the
        length of the row.
    """

    def __init__(self, model: ValueModel, max_bytes: int) -> None:
        self.tree = PrefixTree(max_bytes)
        self.encoded_tokens = 0
        self._model = model
        self._shape = probe(model.backbone)
        self._decoder(KVPool(self._shape, 1))  # says at once what it cannot do

    def hidden(self, states: Sequence[IntArray], max_tokens: int, share: bool) -> Tensor:
        """Hidden state of the last token of each state, [n, width]."""
        rows = []
        for ids in states:
            pieces = self.tree.match(ids[:-1])  # the last token is always encoded: the value is read there
            rows.append(_Row(ids, pieces, sum(piece.shape[1] for piece in pieces)))
        for prefix, members in families(states, share, [row.known for row in rows]):
            if prefix:
                first = rows[members[0]]
                head = _Row(first.ids[:prefix], first.pieces, first.known)
                (piece,), _ = self._encode([head], max_tokens)
                for member in members:
                    rows[member] = rows[member].then(piece)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids) - rows[i].known)
        found: dict[int, Tensor] = {}
        for chunk in chunks(order, [len(row.ids) for row in rows], max_tokens):
            _, hidden = self._encode([rows[i] for i in chunk], max_tokens)
            found.update(zip(chunk, hidden, strict=True))
        return torch.stack([found[i] for i in range(len(rows))])

    def agrees(self) -> bool:
        """Whether the model, tried on a few tokens, finds the same from carried keys and values as from scratch."""
        states, device = trial_states(self._model), self._model.device
        direct = [self._model.hidden(torch.from_numpy(ids)[None].to(device))[0, -1] for ids in states]
        (piece,), _ = self._encode([_Row(states[0][:TRIED], [], 0)], TRIED)
        _, carried = self._encode([_Row(ids, [], 0).then(piece) for ids in states], len(states[0]))
        self.tree.clear()
        self.encoded_tokens = 0
        return agree(carried, torch.stack(direct))

    def _encode(self, rows: list[_Row], max_tokens: int) -> tuple[list[Tensor], Tensor]:
        """Keys and values of the new tokens of each row, which are kept, and the hidden state of its last token."""
        longest = max(len(row.ids) for row in rows)
        pool = KVPool(self._shape, len(rows))
        pool.reserve(len(rows), longest)
        for number, row in enumerate(rows):
            at = 0
            for piece in row.pieces:
                pool.data[:, number, at : at + piece.shape[1]] = piece
                at += piece.shape[1]
        hidden = self._decoder(pool).prefill(
            0,
            [array("q", row.ids[row.known :].tobytes()) for row in rows],
            [row.known for row in rows],
            max(1, min(max_tokens, _MASK_ELEMENTS // (len(rows) * longest))),
        )
        new = [pool.data[:, number, row.known : len(row.ids)] for number, row in enumerate(rows)]
        for row, piece in zip(rows, new, strict=True):
            self.tree.insert(row.ids, row.known, piece)
            self.encoded_tokens += piece.shape[1]
        return new, hidden

    def _decoder(self, pool: KVPool) -> Decoder:
        return Decoder(_Reader(self._model), pool)


def carry(model: ValueModel, max_bytes: int) -> Carried | None:
    """What carries the model's keys and values, or ``None`` where that would change its values."""
    try:
        carried = Carried(model, max_bytes)
        return carried if carried.agrees() else None
    except (ConfigurationError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None  # it takes no positions, no mask in four dimensions or no cache of this kind


def trial_states(model: ValueModel) -> list[IntArray]:
    """Two states of some tokens, the first `TRIED` in common, to try a way of encoding on."""
    ids = np.arange(2 * TRIED, dtype=np.int64) % model.classifier.config.get_text_config().vocab_size
    return [ids, ids[: TRIED + 1]]


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways of encoding gave the same, but for rounding."""
    tolerance = 1e-4 if expected.dtype == torch.float32 else 0.1
    return bool((found - expected).abs().max() <= tolerance * (1 + expected.abs().max()))


class _Reader:
    """A value model as the engine's decoder sees a language model: its logits are the hidden states."""

    def __init__(self, model: ValueModel) -> None:
        self.config = model.backbone.config
        self._model = model

    def __call__(self, *, input_ids: Tensor, use_cache: bool, logits_to_keep: int, **others: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self._model.hidden(input_ids, **others)[:, -logits_to_keep:])
