"""The update again, by another hand: NumPy and int64 only, from a model's safetensors file and a history's lines.

It shares nothing with the library but the NumPy form of the noise, and stands for "another framework".
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np

from langgraph_amc.evolution.noise import integers_numpy, noise_key


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Tensors as float32 (bfloat16 is the upper half of one)."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        raw = data[8 + size + first : 8 + size + last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            assert entry["dtype"] == "F32"
            values = np.frombuffer(raw, "<f4")
        found[name] = values.reshape(entry["shape"]).copy()
    return found


def logical(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Logical parameters [out, in] by name, for Llama and GPT-2 (whose matrices are transposed and partly fused)."""
    found = {}
    for name, values in tensors.items():
        if name.startswith("transformer.h.") and values.ndim == 2:
            values = values.T
        if ".c_attn." in name:
            for part, rows in zip("qkv", np.split(values, 3), strict=True):
                found[name.replace("c_attn", f"{part}_proj")] = np.ascontiguousarray(rows)
        else:
            found[name] = np.ascontiguousarray(values)
    return dict(sorted(found.items()))


def kind_of(name: str, values: np.ndarray) -> str:
    if values.ndim == 1:
        return "vector"
    return "embedding" if any(word in name for word in ("embed_tokens", "wte", "wpe")) else "linear"


def step(name: str, values: np.ndarray, update: dict) -> np.ndarray:
    unit = 1.0 if update["noise"] == "rademacher" else 1 / 256
    rank = update["rank"] if values.ndim == 2 else None
    total = np.zeros(values.shape, np.int64)
    for pair, q in enumerate(update["coefficients"]):

        def draw(stream: str, *shape: int, pair: int = pair) -> np.ndarray:
            key = noise_key(update["seed"], update["number"], pair, name, stream)
            return integers_numpy(update["noise"], key, math.prod(shape)).reshape(shape).astype(np.int64)

        if rank is None:
            total += q * draw("full", *values.shape)
        else:
            total += q * (draw("A", values.shape[0], rank) @ draw("B", values.shape[1], rank).T)
    scale = update["scale"] * (unit if rank is None else unit**2 / math.sqrt(rank))
    return (total.astype(np.float64) * scale).astype(np.float32)


def digest(weights: dict[str, np.ndarray]) -> str:
    lines = [f"{n} {kind_of(n, v)} {'x'.join(map(str, v.shape))}" for n, v in weights.items()]
    fingerprint = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
    whole = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    for name, values in weights.items():
        whole.update(hashlib.blake2b(name.encode() + values.astype("<f4").tobytes(), digest_size=16).digest())
    return whole.hexdigest()


def replay(history: Path, model: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The weights at the end, and their hash after each generation, the start being the first."""
    weights = logical(read_safetensors(model / "model.safetensors"))
    began = {name: values.copy() for name, values in weights.items()}
    hashes = [digest(weights)]
    for line in history.read_text().splitlines()[1:]:
        update = json.loads(line)["update"]
        for name, values in weights.items():
            change = step(name, values, update)
            if update["decay"]:
                change = change - (values - began[name]) * np.float32(update["decay"])
            weights[name] = values + change
        hashes.append(digest(weights))
    return weights, hashes
