"""Counter-based noise in integers: element i is a pure function of (key, i), with the same bits everywhere.

The key is a hash of (run seed, generation, pair, logical parameter name, stream). A word is SplitMix64 with a
key-dependent increment (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): 64 signs
(Rademacher) or four 16-bit uniforms that index a table of normal quantiles (Gaussian). There are only integer
operations modulo 2**64, so CPU, GPU, NumPy, and any chunk or shard of a tensor agree bit for bit.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError, ConfigurationError

NoiseKind = Literal["rademacher", "gaussian"]
UNIT: Mapping[NoiseKind, float] = MappingProxyType({"rademacher": 1.0, "gaussian": 1 / 256})
"""What one unit of the integers stands for, so that integer times unit has variance 1 (Gaussian: 1 - 2e-5)."""
PEAK: Mapping[NoiseKind, int] = MappingProxyType({"rademacher": 1, "gaussian": 1107})
"""The largest absolute integer of each kind."""

_PER_WORD: Mapping[NoiseKind, int] = MappingProxyType({"rademacher": 64, "gaussian": 4})
_MASK = (1 << 64) - 1
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_CPU_BLOCK, _GPU_BLOCK = 1 << 18, 1 << 24  # what is worked on stays in the processor's cache
_TABLE_DIGEST = "9a97d667c9352db6"


class NoiseTableError(AMCError):
    """This platform's arithmetic gives another table of normal quantiles, so its noise would be another one."""


def noise_key(seed: int, generation: int, pair: int, name: str, stream: str) -> int:
    """64-bit key of one stream of noise.

    Parameters
    ----------
    name: logical Hugging Face name of the parameter (``layout.Entry.name``).
    stream: ``"A"`` or ``"B"`` for the factors of a low-rank perturbation, ``"full"`` for elementwise noise.
    """
    text = "\x1f".join(("noise", str(seed), str(generation), str(pair), name, stream))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def integers(
    kind: NoiseKind, key: int, count: int, *, start: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Elements ``start`` to ``start + count`` of a stream: int16, shape (count,), in units of ``UNIT[kind]``."""
    if sys.byteorder != "little":
        raise ConfigurationError("noise in torch needs a little-endian machine: use integers_numpy")
    on = torch.device("cpu" if device is None else device)
    block = _CPU_BLOCK if on.type == "cpu" else _GPU_BLOCK
    if count <= block:
        return _block(kind, key, count, start, on)
    found = torch.empty(count, dtype=torch.int16, device=on)
    for first in range(0, count, block):
        size = min(block, count - first)
        found[first : first + size] = _block(kind, key, size, start + first, on)
    return found


def _block(kind: NoiseKind, key: int, count: int, start: int, device: torch.device) -> torch.Tensor:
    first, words, skip = _words(kind, count, start)
    origin, step = _origin(key)
    z = torch.arange(first, first + words, dtype=torch.int64, device=device)
    z.mul_(_signed(step)).add_(_signed(origin))
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << 64 - shift) - 1)).mul_(_signed(factor))
    z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))
    if kind == "gaussian":
        index = z.view(torch.int16).to(torch.int32).add_(32768)
        return _table_on(str(z.device)).index_select(0, index[skip : skip + count])
    bits = torch.arange(8, dtype=torch.uint8, device=device)
    signs = (z.view(torch.uint8).unsqueeze(1) >> bits).bitwise_and_(1).flatten()[skip : skip + count]
    return signs.to(torch.int16).mul_(2).sub_(1)


def integers_numpy(kind: NoiseKind, key: int, count: int, *, start: int = 0) -> NDArray[np.int16]:
    """The same elements without torch: for other frameworks, and as a check of the bits."""
    first, words, skip = _words(kind, count, start)
    origin, step = _origin(key)
    z = np.arange(first, first + words, dtype=np.uint64) * np.uint64(step) + np.uint64(origin)
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z = z ^ (z >> np.uint64(31))
    if kind == "gaussian":
        lanes = z.astype("<u8").view("<i2").astype(np.int32) + 32768
        return _table()[lanes[skip : skip + count]]
    signs = np.unpackbits(z.astype("<u8").view(np.uint8), bitorder="little")[skip : skip + count]
    return signs.astype(np.int16) * np.int16(2) - np.int16(1)


def _words(kind: NoiseKind, count: int, start: int) -> tuple[int, int, int]:
    """Index of the first word, number of words, and elements to skip in the first."""
    if kind not in UNIT:
        raise ConfigurationError(f"noise is 'rademacher' or 'gaussian', not {kind!r}")
    if count < 0 or start < 0:
        raise ConfigurationError(f"start and count of noise cannot be negative, got {start} and {count}")
    first, skip = divmod(start, _PER_WORD[kind])
    return first, -(-(skip + count) // _PER_WORD[kind]), skip


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * _MIX1 & _MASK
    z = (z ^ z >> 27) * _MIX2 & _MASK
    return z ^ z >> 31


def _origin(key: int) -> tuple[int, int]:
    """Where a key's words begin on the ring modulo 2**64, and the odd step between them.

    With one step for all keys the streams would be windows of one sequence, and some would overlap. A step whose
    bits hardly change from one to the next mixes badly; such a one is flipped (section 5 of the paper above).
    """
    step = _mix(key ^ _GOLDEN) | 1
    if (step ^ step >> 1).bit_count() < 24:
        step ^= 0xAAAAAAAAAAAAAAAA
    return _mix((key + _GOLDEN) & _MASK), step


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@cache
def _table() -> NDArray[np.int16]:
    """Normal quantiles at the midpoints of 65,536 equal parts, in units of 1/256."""
    inverse = NormalDist().inv_cdf
    upper = np.array([round(inverse((i + 0.5) / 65536) * 256) for i in range(32768, 65536)], np.int16)
    table = np.concatenate([-upper[::-1], upper])
    digest = hashlib.blake2b(table.astype("<i2").tobytes(), digest_size=8).hexdigest()
    if digest != _TABLE_DIGEST:
        raise NoiseTableError(
            f"the table of normal quantiles has checksum {digest} on this platform instead of {_TABLE_DIGEST}; "
            "Gaussian noise would differ from that of other machines: use noise='rademacher'"
        )
    table.setflags(write=False)
    return table


@cache
def _table_on(device: str) -> torch.Tensor:
    return torch.from_numpy(_table().copy()).to(device)
