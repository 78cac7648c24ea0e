"""The prefix store: finished sequences stay with their keys and values, so that clones inherit them.

A request starts from the longest stored prefix of its prompt. The index maps a chained hash of each block of
tokens to the sequences that contain it, so a look-up costs one dictionary access per block, and the tokens
themselves are compared before anything is reused. Least recently used sequences go first. Sequences of different
variants of the model (`variants`) have nothing in common, whatever their tokens.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

BLOCK = 8
_CANDIDATES = 32


def block_keys(ids: array[int], variant: Hashable | None = None) -> list[int]:
    """Chained hash of every whole block: equal keys at i mean (almost surely) equal variant and first i + 1 blocks."""
    raw = memoryview(ids).cast("B")
    width = BLOCK * ids.itemsize
    keys: list[int] = []
    key = 0 if variant is None else hash(("variant", variant))
    for end in range(width, len(raw) + 1, width):
        key = hash((key, raw[end - width : end].tobytes()))
        keys.append(key)
    return keys


@dataclass(slots=True, eq=False)
class Entry:
    """One stored sequence: its tokens and their keys and values."""

    ids: array[int]
    data: Any
    nbytes: int
    variant: Hashable | None = None
    keys: list[int] = field(default_factory=list)
    number: int = 0


class PrefixStore:
    """Least-recently-used store of token sequences under a bound in bytes. Not thread-safe: one owner."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._index: dict[int, dict[int, Entry]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, ids: array[int], keys: list[int], variant: Hashable | None = None) -> tuple[Entry | None, int]:
        """The variant's stored sequence that shares the longest prefix with ``ids``, and that prefix's length."""
        bucket: dict[int, Entry] | None = None
        blocks = 0
        for key in keys:
            found = self._index.get(key)
            if not found:
                break
            bucket, blocks = found, blocks + 1
        if bucket is None:
            return None, 0
        best, best_length = None, 0
        for entry, _ in zip(reversed(bucket.values()), range(_CANDIDATES), strict=False):
            length = _common(entry.ids, ids, blocks * BLOCK) if entry.variant == variant else 0
            if length > best_length:
                best, best_length = entry, length
        if best is not None:
            self._entries.move_to_end(best.number)
        return best, best_length

    def insert(
        self,
        ids: array[int],
        data: Any,
        nbytes: int,
        replaces: Entry | None = None,
        variant: Hashable | None = None,
    ) -> Entry | None:
        """Keep a sequence; ``replaces`` is dropped if the new one contains all of it."""
        if replaces is not None and ids[: len(replaces.ids)] == replaces.ids:
            self.discard(replaces)
        if nbytes > self.max_bytes:
            return None
        while self.nbytes + nbytes > self.max_bytes:
            self.discard(next(iter(self._entries.values())))
        entry = Entry(ids, data, nbytes, variant, block_keys(ids, variant), next(self._numbers))
        self._entries[entry.number] = entry
        for key in entry.keys:
            self._index.setdefault(key, {})[entry.number] = entry
        self.nbytes += nbytes
        return entry

    def discard(self, entry: Entry) -> None:
        """Forget a sequence; nothing happens if it has gone already."""
        if self._entries.pop(entry.number, None) is None:
            return
        for key in entry.keys:
            bucket = self._index[key]
            del bucket[entry.number]
            if not bucket:
                del self._index[key]
        self.nbytes -= entry.nbytes

    def forget_variants(self) -> None:
        """Forget everything but what the model as it is has computed."""
        for entry in [e for e in self._entries.values() if e.variant is not None]:
            self.discard(entry)

    def forget(self, variant: Hashable | None) -> None:
        """Forget what one variant has computed."""
        for entry in [e for e in self._entries.values() if e.variant == variant]:
            self.discard(entry)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._index.clear()
        self.nbytes = 0


def _common(a: array[int], b: array[int], known: int) -> int:
    """Length of the common prefix; ``known`` tokens are said to agree by their hash and are verified."""
    if a[:known] != b[:known]:
        known = 0
    end = min(len(a), len(b))
    while known < end and a[known] == b[known]:
        known += 1
    return known
