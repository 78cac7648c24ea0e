"""AdamW on float32 master weights, whatever type the model serves (Micikevicius et al. 2018, section 3.1).

In bfloat16 a step of 1e-6 is below the distance to the next number for nearly every weight: without masters, nothing
is learned at usual rates. A float32 parameter is its own master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class MasterAdamW(torch.optim.AdamW):
    """AdamW whose state and steps are float32; the parameters get the nearest numbers of their own type.

    Parameters
    ----------
    parameters: of any floating type; those that need no gradient are left alone.
    options: of ``torch.optim.AdamW``.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **options: Any) -> None:
        served = [p for p in parameters if p.requires_grad]
        masters = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in served]
        super().__init__(masters, **options)
        self._apart = [(p, m) for p, m in zip(served, masters, strict=True) if p is not m]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step the masters by the parameters' gradients, and round them into the parameters."""
        for parameter, master in self._apart:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        loss = super().step(closure)
        for parameter, master in self._apart:
            parameter.copy_(master)
            master.grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of parameters and masters."""
        super().zero_grad(set_to_none)
        for parameter, _ in self._apart:
            parameter.grad = None
