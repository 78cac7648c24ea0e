"""Where the parameters of a model act: one small forward pass shows which modules use them, and on what input.

A module can be computed with other weights for every row only where the rows can still be told apart: its input must
have them as its first dimension. Whatever does not is refused here, with its name, rather than computed wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.layout import Entry, Layout

_ROWS, _TOKENS = 3, 2
_INSTEAD = "perturb it in place (rank=None), or choose a scope without it"


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer, with the logical matrices and biases it consists of and the site of its input."""

    path: str
    module: torch.nn.Module
    weights: tuple[Entry, ...]
    biases: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """An embedding."""

    path: str
    module: torch.nn.Embedding
    entry: Entry


@dataclass(frozen=True, slots=True)
class Gain:
    """A module that multiplies by, or adds, a vector, such as a norm; ``dims`` of its input."""

    path: str
    module: torch.nn.Module
    vectors: tuple[tuple[str, Entry], ...]
    dims: int


@dataclass(frozen=True, slots=True)
class Sites:
    """All places of a model at which entries of a layout act.

    ``together``: projections of one and the same input, in the order in which they are computed.
    """

    together: tuple[tuple[Projection, ...], ...]
    lookups: tuple[Lookup, ...]
    gains: tuple[Gain, ...]


def is_linear(module: torch.nn.Module) -> bool:
    """Whether it computes x W^T + b and nothing else (transformers' Conv1D is one, transposed)."""
    return type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D"


def find_sites(model: torch.nn.Module, layout: Layout) -> Sites:
    """Match a layout's entries with the modules that use them.

    Raises
    ------
    ConfigurationError: a parameter is not used in a forward pass over text, or in a way that knows no rows.
    """
    owners = _owners(model, layout.entries)
    seen = _probe(model, [module for module, _ in owners.values()])
    projections: list[Projection] = []
    lookups: list[Lookup] = []
    gains: list[Gain] = []
    for path, (module, held) in owners.items():
        if id(module) not in seen:
            raise ConfigurationError(
                f"{path} takes no part in the model's forward pass over text by a call of its own: {_INSTEAD}"
            )
        x = seen[id(module)]
        if x.shape[0] != _ROWS or (x.ndim < 3 and type(module) is not torch.nn.Embedding):
            raise ConfigurationError(f"{path} is given all tokens in one row, so that members cannot mix: {_INSTEAD}")
        weights, biases = ([e for leaf, e in held if leaf == name] for name in ("weight", "bias"))
        if is_linear(module):
            projections.append(Projection(path, module, tuple(weights), tuple(biases)))
        elif type(module) is torch.nn.Embedding:
            lookups.append(Lookup(path, module, weights[0]))
        elif all(entry.kind == "vector" for _, entry in held):
            gains.append(Gain(path, module, tuple(held), x.ndim))
            _check_gain(gains[-1], x)
        else:
            raise ConfigurationError(f"{path} is a {type(module).__name__}, which has a formula of its own: {_INSTEAD}")
    return Sites(_together(projections, seen), tuple(lookups), tuple(gains))


def _owners(
    model: torch.nn.Module, entries: Iterable[Entry]
) -> dict[str, tuple[torch.nn.Module, list[tuple[str, Entry]]]]:
    """Modules that hold entries, by path, each with the names it has for them."""
    owners: dict[str, tuple[torch.nn.Module, list[tuple[str, Entry]]]] = {}
    for entry in entries:
        for name in (entry.parameter, *entry.tied_to):
            path, _, leaf = name.rpartition(".")
            owners.setdefault(path, (model.get_submodule(path), []))[1].append((leaf, entry))
    return owners


def _probe(model: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> dict[int, torch.Tensor]:
    """The input of each module in a forward pass of a few tokens, by the module's id, in the order of the calls."""
    seen: dict[int, torch.Tensor] = {}

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault(id(module), (*args, *kwargs.values())[0])

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    device = next(model.parameters()).device
    ids = torch.arange(_ROWS * _TOKENS, device=device).view(_ROWS, _TOKENS)
    positions = torch.arange(_TOKENS, device=device).repeat(_ROWS, 1)
    try:
        with torch.inference_mode():
            model(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _together(projections: Sequence[Projection], seen: dict[int, torch.Tensor]) -> tuple[tuple[Projection, ...], ...]:
    by_input: dict[int, list[Projection]] = {}
    order = {module: number for number, module in enumerate(seen)}
    for projection in sorted(projections, key=lambda p: order[id(p.module)]):
        by_input.setdefault(id(seen[id(projection.module)]), []).append(projection)
    return tuple(map(tuple, by_input.values()))


def _check_gain(gain: Gain, x: torch.Tensor) -> None:
    """Compute with a vector per row, and with each row's vector for all: a norm gives the same."""
    if type(gain.module) is torch.nn.LayerNorm:
        return
    steps = torch.arange(_ROWS, device=x.device, dtype=x.dtype).view(_ROWS, *[1] * (x.ndim - 1))
    own = {leaf: entry.view(gain.module.get_parameter(leaf)) for leaf, entry in gain.vectors}
    with torch.inference_mode():
        try:
            mixed = _with(gain.module, {leaf: v * (1 + steps / 4) + steps / 8 for leaf, v in own.items()}, x)
            rows = [
                _with(gain.module, {leaf: v * (1 + row / 4) + row / 8 for leaf, v in own.items()}, x)[row]
                for row in range(_ROWS)
            ]
            good = torch.allclose(mixed.float(), torch.stack(rows).float(), rtol=0.02, atol=1e-3)
        except (RuntimeError, TypeError, ValueError):
            good = False
    if not good:
        raise ConfigurationError(
            f"{gain.path} ({type(gain.module).__name__}) does not use its vectors element by element: {_INSTEAD}"
        )


def _with(module: torch.nn.Module, values: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    """The module's output with other values for its parameters, which are not touched (see `vectors`)."""
    module.__dict__.update(values)
    try:
        return module(x)
    finally:
        for leaf in values:
            del module.__dict__[leaf]
