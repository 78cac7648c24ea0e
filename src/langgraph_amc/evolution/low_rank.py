"""All members of a generation in one batch: low-rank perturbations per row, without touching a weight.

y = x W^T + s (sigma / sqrt r) (x B) A^T for matrices and embeddings (EGGROLL, arXiv 2511.16652, equation of the
perturbed forward pass); vectors, which are small, get a number per element. What a member costs in memory is its
factors, r (m + n) numbers for a matrix [m, n] and pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.layout import Layout
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.perturbation.matrices import (
    WIDE,
    Factors,
    Form,
    Grouped,
    Live,
    Part,
    Wide,
    perturbed_lookup,
    perturbed_projection,
)
from langgraph_amc.evolution.perturbation.rows import Rows
from langgraph_amc.evolution.perturbation.sites import Gain, Projection, Sites, find_sites
from langgraph_amc.evolution.perturbation.vectors import GainRows, Vectors, perturbed_bias, perturbed_gain


class LowRank:
    """A generation's members as variants that a `BatchEngine` serves side by side.

    Parameters
    ----------
    layout: of the model that is served.
    generation: with a rank.

    Raises
    ------
    ConfigurationError: no rank, no members, or a sigma that is not a finite positive number.
    """

    mixes = True

    def __init__(self, layout: Layout, generation: Generation) -> None:
        if generation.rank is None or generation.rank < 1:
            raise ConfigurationError(f"low-rank perturbations need a rank of at least 1, got {generation.rank}")
        check_generation(generation)
        self.names: frozenset[Hashable] = frozenset(generation.members)
        self.layout = layout
        self.generation = generation
        self._rank = generation.rank
        self._live = Live()
        self._restore: list[Callable[[], None]] = []
        self._gains: list[GainRows] = []
        self._vectors: Vectors | None = None
        self._values: torch.Tensor | None = None
        self._rows: tuple[Hashable | None, ...] = ()
        self._device = torch.device("cpu")

    def attach(self, model: torch.nn.Module) -> None:
        """Find where the parameters act and make the factors; the model's parameters and buffers stay as they are.

        Raises
        ------
        ConfigurationError: a parameter acts in a way that cannot be perturbed per row; the message names it.
        """
        sites = find_sites(model, self.layout)
        self._device = next(model.parameters()).device
        try:
            self._attach_vectors(sites)
            self._attach_matrices(sites)
        except BaseException:
            self.detach(model)
            raise

    def detach(self, model: torch.nn.Module) -> None:
        """Take everything away again."""
        for gain in self._gains:
            gain.clear()
        for restore in reversed(self._restore):
            restore()
        self._restore.clear()
        self._gains.clear()
        self._vectors = self._values = None
        self._rows = ()
        self._live.rows = None
        self._live.release()

    def use(self, rows: Sequence[Hashable | None]) -> None:
        """Compute each row of the passes to come as its member; ``None`` as the model is."""
        wanted = tuple(rows)
        if wanted == self._rows:
            return
        members = [self._member(row) for row in wanted]
        self._live.release()
        if all(member is None for member in members):
            self._live.rows = self._values = None
            for gain in self._gains:
                gain.clear()
        else:
            scale = self.generation.sigma / math.sqrt(self._rank)
            live = self._live.rows = Rows(members, self.generation.pairs, self._rank, scale, self._device)
            if self._vectors is not None:
                values = self._values = self._vectors.of(live)
                for gain in self._gains:
                    gain.put(values)
        self._rows = wanted

    def _member(self, row: Hashable | None) -> Member | None:
        if row is None or (isinstance(row, Member) and row in self.names):
            return row
        raise ConfigurationError(f"{row} is not a member of generation {self.generation.number}")

    def _attach_vectors(self, sites: Sites) -> None:
        projections = [p for group in sites.together for p in group]
        held: list[tuple[Any, torch.Tensor | None]] = [
            (entry, entry.view(gain.module.get_parameter(leaf))) for gain in sites.gains for leaf, entry in gain.vectors
        ]
        held += [(entry, None) for p in projections for entry in p.biases]
        if not held:
            return
        vectors = self._vectors = Vectors(self.generation, held, self._device)
        for gain in sites.gains:
            self._attach_gain(gain, vectors)
        for projection in projections:
            if projection.biases:
                places = [(entry.first, vectors.places[entry.name]) for entry in projection.biases]
                original = projection.module.forward
                self._replace(projection.module, perturbed_bias(original, lambda: self._values, places))

    def _attach_gain(self, gain: Gain, vectors: Vectors) -> None:
        self._gains.append(GainRows(gain, vectors))
        forward = perturbed_gain(gain, gain.module.forward)
        if forward is not None:
            self._replace(gain.module, forward)

    def _attach_matrices(self, sites: Sites) -> None:
        made = Factors(self.generation, self._device)
        for group in sites.together:
            self._attach_group([p for p in group if p.weights], made)
        for lookup in sites.lookups:
            a, b = made.of(lookup.entry, lookup.module.weight.dtype)
            self._replace(lookup.module, perturbed_lookup(lookup.module.forward, self._live, a, b))

    def _attach_group(self, group: list[Projection], made: Factors) -> None:
        """Projections of one input: their B side by side, so that they share the first product."""
        parts: list[list[Part]] = []
        b: list[torch.Tensor] = []
        for projection in group:
            dtype = projection.module.get_parameter("weight").dtype
            own = []
            for entry in projection.weights:
                one, other = made.of(entry, dtype)
                own.append(Part(one, len(b), entry.first))
                b.append(other)
            parts.append(own)
        if not b:
            return
        form: Form = Wide(b) if self.generation.pairs * self._rank <= WIDE else Grouped(b)
        for number, (projection, own) in enumerate(zip(group, parts, strict=True), start=1):
            original = projection.module.forward
            last = number == len(group)
            self._replace(projection.module, perturbed_projection(original, self._live, form, own, last=last))

    def _replace(self, module: torch.nn.Module, forward: Callable[..., Any]) -> None:
        """Let a module run this forward function; whatever it had of its own comes back on `detach`."""
        own = module.__dict__
        before = own.get("forward")
        own["forward"] = forward

        def restore() -> None:
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before

        self._restore.append(restore)


def check_generation(generation: Generation) -> None:
    """Raise ConfigurationError for a generation that perturbs nothing, or by a number that is none."""
    if not generation.members:
        raise ConfigurationError("a generation needs at least one member")
    if not 0 < generation.sigma < math.inf:
        raise ConfigurationError(f"sigma must be a finite positive number, got {generation.sigma}")
