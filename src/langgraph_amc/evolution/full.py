"""One member at a time, in place: W + s sigma E written over the model's weights (the ESOpt paper's way).

The paper's implementation takes the noise off again, which leaves rounding errors behind; here every member is
written from a pristine copy, and so is the model at the end, bit for bit. The copy costs what the perturbed weights
cost, once, in the host's memory; a member costs a pass of noise over all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.directions import dense, factors, is_low_rank, unit_of
from langgraph_amc.evolution.layout import Entry, Layout, parameters_of
from langgraph_amc.evolution.low_rank import check_generation
from langgraph_amc.evolution.members import Generation, Member

_CHUNK = 1 << 22
"""Elements that are worked on at a time: the copy in float32 is no larger than this."""


class Full:
    """A generation's members as variants that a `BatchEngine` serves in turn, one at a time.

    Parameters
    ----------
    layout: of the model that is served.
    generation: without a rank every weight has noise of its own; with one, the weights of the low-rank form.

    Raises
    ------
    ConfigurationError: no members, or a sigma that is not a finite positive number.
    """

    mixes = False

    def __init__(self, layout: Layout, generation: Generation) -> None:
        check_generation(generation)
        self.names: frozenset[Hashable] = frozenset(generation.members)
        self.layout = layout
        self.generation = generation
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._pristine: dict[str, torch.Tensor] = {}
        self._present: Hashable | None = None
        self._touched = False

    def attach(self, model: torch.nn.Module) -> None:
        """Copy the weights that are going to be overwritten."""
        self._parameters = parameters_of(model, self.layout.entries)
        self._pristine = {
            name: torch.empty(p.shape, dtype=p.dtype, device="cpu").copy_(p.detach())
            for name, p in self._parameters.items()
        }

    def detach(self, model: torch.nn.Module) -> None:
        """Put the weights back, bit for bit, whatever was interrupted."""
        self._reset()
        self._parameters, self._pristine = {}, {}

    def use(self, rows: Sequence[Hashable | None]) -> None:
        """Make the model this member, the same for all rows; ``None`` puts the weights back."""
        wanted = set(rows)
        if len(wanted) > 1:
            raise ConfigurationError(f"{len(wanted)} members in one batch: in place there is one at a time")
        member = next(iter(wanted), None)
        if member is None:
            self._reset()
        elif not isinstance(member, Member) or member not in self.names:
            raise ConfigurationError(f"{member} is not a member of generation {self.generation.number}")
        elif member != self._present:
            self._write(member)

    def _reset(self) -> None:
        if self._touched:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(self._pristine[name])
        self._present, self._touched = None, False

    def _write(self, member: Member) -> None:
        # Nobody until all is written: where this is broken off, the next one starts from the pristine copy again.
        self._present, self._touched = None, True
        with torch.no_grad():
            for entry in self.layout.entries:
                parameter = self._parameters[entry.parameter]
                perturb(
                    entry.view(parameter), entry.view(self._pristine[entry.parameter]), self.generation, member, entry
                )
        self._present = member


def perturb(target: torch.Tensor, source: torch.Tensor, generation: Generation, member: Member, entry: Entry) -> None:
    """Write a member's ``source + s sigma E`` into ``target``, both in the entry's logical shape.

    The sum is taken in float32 (float64 for float64) and rounded once.
    """
    scale = member.sign * generation.sigma * unit_of(entry, generation.kind, generation.rank)
    width = entry.numel // entry.shape[0]
    step = max(1, _CHUNK // width)
    for first in range(0, entry.shape[0], step):
        last = min(first + step, entry.shape[0])
        before = source[first:last].to(target.device)
        wide = torch.promote_types(before.dtype, torch.float32)
        change = _direction(generation, member.pair, entry, first, last, target.device).to(wide).mul_(scale)
        target[first:last] = (before.to(wide) + change).to(target.dtype)


def _direction(
    generation: Generation, pair: int, entry: Entry, first: int, last: int, device: torch.device
) -> torch.Tensor:
    """Rows ``first`` to ``last`` of a pair's integer direction, in the logical shape."""
    shape = (last - first, *entry.shape[1:])
    if is_low_rank(entry, generation.rank):
        a, b = factors(generation, pair, entry, rows=(first, last), device=device)
        return a.float() @ b.float().T
    width = entry.numel // entry.shape[0]
    return dense(generation, pair, entry, start=first * width, count=(last - first) * width, device=device).view(shape)
