"""Token sampling whose outcome depends on a row's own seed only, never on who shares the batch.

Each row has its own counter-based random stream (Philox keyed by seed and sample number) that yields one
uniform number per token; the token is the inverse of the row's distribution function at that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_MASK = (1 << 64) - 1


def stream(seed: int, sample: int) -> np.random.Generator:
    """The random stream of sample number ``sample`` of a request seeded with ``seed``."""
    return np.random.Generator(np.random.Philox(key=np.array([seed & _MASK, sample], dtype=np.uint64)))


class Sampler:
    """Temperature and top-p of the rows of one batch, as tensors; rebuilt when the batch changes."""

    def __init__(self, temperature: Sequence[float], top_p: Sequence[float], device: torch.device) -> None:
        self.greedy = [t == 0 for t in temperature]
        self.all_greedy = all(self.greedy)
        self.any_greedy = any(self.greedy)
        self.device = device
        self._greedy = torch.tensor(self.greedy, device=device)
        self._temperature = torch.tensor([t or 1.0 for t in temperature], dtype=torch.float32, device=device).unsqueeze(
            1
        )
        self._plain = all(t in (0.0, 1.0) for t in temperature)
        self._top_p = None
        if any(p < 1 for p in top_p):
            self._top_p = torch.tensor(top_p, dtype=torch.float32, device=device).unsqueeze(1)

    def __call__(self, logits: torch.Tensor, uniform: Sequence[float]) -> list[int]:
        """Draw one token per row.

        Parameters
        ----------
        logits: shape ``(rows, vocabulary)``, float32, finite.
        uniform: one number in [0, 1) per row; greedy rows ignore theirs.
        """
        if self.all_greedy:
            return logits.argmax(-1).tolist()
        probs = torch.softmax(logits if self._plain else logits / self._temperature, -1)
        if self._top_p is not None:
            probs = _nucleus(probs, self._top_p)
        cdf = probs.cumsum(-1)
        total = cdf[:, -1:]
        u = torch.tensor(uniform, dtype=torch.float32, device=self.device).unsqueeze(1) * total
        # Rounding may lift u to the total, beyond which only impossible tokens are left.
        u = torch.minimum(u, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(cdf, u, right=True).squeeze(1)
        if self.any_greedy:
            tokens = torch.where(self._greedy, logits.argmax(-1), tokens)
        return tokens.tolist()


def _nucleus(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the smallest set of tokens whose mass reaches ``top_p``; the first one always stays."""
    ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    keep = (before < top_p) | (top_p >= 1)
    keep[:, 0] = True
    return torch.zeros_like(probs).scatter_(-1, order, torch.where(keep, ordered, 0.0))
