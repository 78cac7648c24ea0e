"""What of a model is perturbed: its parameters by logical Hugging Face name, in an order of their own.

Noise belongs to logical matrices [out, in]. A fused projection is several of them, Conv1D holds one transposed, and a
tied head is the embedding it is tied to; so two frameworks that lay the same model out differently share its noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.members import SCOPES as SCOPES
from langgraph_amc.evolution.members import Scope as Scope

EntryKind = Literal["linear", "embedding", "vector"]


class LayoutMismatchError(ConfigurationError):
    """Two models, or a model and a history, do not have the same parameters."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One logical parameter.

    Attributes
    ----------
    name: logical name, as in Llama-like checkpoints. shape: logical: [out, in] of a matrix, [vocabulary, width] of an
    embedding, [size] of a vector. tied_to: parameters of the model that are this same tensor.
    parameter: the model's parameter that holds it. first: its first row (out feature) in there.
    transposed: the parameter holds [in, out] (transformers' Conv1D).
    """

    name: str
    kind: EntryKind
    shape: tuple[int, ...]
    tied_to: tuple[str, ...] = ()
    parameter: str = ""
    first: int = 0
    transposed: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def view(self, parameter: torch.Tensor) -> torch.Tensor:
        """The entry's own logical part of the tensor that holds it (a view: writing to it changes the model)."""
        logical = parameter.detach()
        logical = logical.T if self.transposed else logical
        return logical[self.first : self.first + self.shape[0]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries sorted by name, and the floating-point parameters that are left as they are."""

    scope: Scope
    entries: tuple[Entry, ...]
    frozen: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """Number of perturbed weights."""
        return sum(entry.numel for entry in self.entries)

    def fingerprint(self) -> str:
        """Hex digest of names, kinds and logical shapes: equal for every framework and type of number."""
        text = "\n".join(f"{e.name} {e.kind} {'x'.join(map(str, e.shape))}" for e in self.entries)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def layout(model: torch.nn.Module, scope: Scope = "all") -> Layout:
    """Find what is perturbed of a model.

    Parameters
    ----------
    scope: ``"all"``: matrices, embeddings, norms and biases; ``"linear"``: the matrices of linear layers, without
        embeddings and a head tied to one; ``"vectors"``: norm gains and biases, so few that a small population's
        signal is not lost among them; ``"lora"``: the adapters of a peft model.

    Raises
    ------
    ConfigurationError: unknown scope; nothing to perturb; a peft model with another scope than ``"lora"``.
    """
    if scope not in SCOPES:
        raise ConfigurationError(f"scope is one of {', '.join(SCOPES)}, not {scope!r}")
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"a layout is of a loaded torch model, not of {type(model).__name__}: load it first")
    owners = _owners(model)
    adapted = any("lora_" in name for names in owners.values() for name in names)
    if adapted and scope != "lora":
        raise ConfigurationError(
            f"the model carries LoRA adapters: merge them first, or use scope='lora', not {scope!r}"
        )
    modules = dict(model.named_modules())
    config: Any = model.config if "config" in model.__dict__ else None
    entries: list[Entry] = []
    frozen: list[str] = []
    for names in owners.values():
        found = _entries(modules, names, scope, config)
        entries.extend(found)
        frozen.extend(() if found else names[:1])
    if not entries:
        raise ConfigurationError(f"the model has no floating-point parameter in scope {scope!r}: nothing to tune")
    return Layout(scope, tuple(sorted(entries, key=lambda e: e.name)), tuple(sorted(frozen)))


def parameters_of(model: torch.nn.Module, entries: Iterable[Entry]) -> dict[str, torch.nn.Parameter]:
    """The model's parameters that hold these entries, by name.

    Raises LayoutMismatchError if one is missing.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    missing = sorted({e.parameter for e in entries} - named.keys())
    if missing:
        raise LayoutMismatchError(f"the model has no parameter {missing[0]!r}: use the layout of this very model")
    return {e.parameter: named[e.parameter] for e in entries}


def _owners(model: torch.nn.Module) -> dict[int, list[str]]:
    """Names of each floating-point parameter, by identity: more than one where it is tied."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point():
            owners.setdefault(id(parameter), []).append(name)
    return owners


def _entries(modules: Mapping[str, torch.nn.Module], names: list[str], scope: Scope, config: Any) -> list[Entry]:
    """The logical parameters that one tensor holds; none if it is out of scope or of a form we cannot perturb."""
    held = {name: modules[name.rpartition(".")[0]] for name in names}
    name = next((n for n, module in held.items() if isinstance(module, torch.nn.Embedding)), names[0])
    module = held[name]
    weight = module.get_parameter(name.rpartition(".")[2])
    kind = _kind(module, weight)
    if (
        kind is None
        or (scope == "linear" and kind != "linear")
        or (scope == "vectors" and kind != "vector")
        or (scope == "lora" and ("lora_" not in name or not weight.requires_grad))
    ):
        return []
    transposed = kind == "linear" and type(module).__name__ == "Conv1D"
    shape = tuple(reversed(weight.shape)) if transposed else tuple(weight.shape)
    tied = tuple(n for n in names if n != name)
    parts = _parts(_logical(name), shape[0], config)
    entries, first = [], 0
    for part, rows in parts:
        entries.append(Entry(part, kind, (rows, *shape[1:]), tied, name, first, transposed))
        first += rows
    return entries


def _kind(module: torch.nn.Module, weight: torch.nn.Parameter) -> EntryKind | None:
    if not weight.numel():
        return None
    if weight.ndim == 1:
        return "vector"
    if weight.ndim != 2:
        return None
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "linear" if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D" else None


def _logical(name: str) -> str:
    """A parameter's name as files have it: peft leaves the name of the adapter out."""
    parts = name.split(".")
    return ".".join(p for i, p in enumerate(parts) if not (i and parts[i - 1].startswith("lora_") and p != "weight"))


def _parts(name: str, rows: int, config: Any) -> list[tuple[str, int]]:
    """Logical parts, with their rows, of a projection that is known to be fused (GPT-2, Phi-3 and their kin)."""
    path, _, leaf = name.rpartition(".")
    stem, _, fused = path.rpartition(".")
    try:
        sizes = _split(fused, rows, config)
    except AttributeError:  # a configuration that does not say how its heads are grouped
        sizes = {}
    if sum(sizes.values()) != rows:
        return [(name, rows)]
    return [(f"{stem}.{part}.{leaf}", size) for part, size in sizes.items()]


def _split(fused: str, rows: int, config: Any) -> dict[str, int]:
    """Rows of each part of a fused projection, by the last part of its module's name; none if it is not known."""
    if fused == "c_attn":
        return dict.fromkeys(("q_proj", "k_proj", "v_proj"), int(config.hidden_size))
    if fused == "gate_up_proj":
        return dict.fromkeys(("gate_proj", "up_proj"), rows // 2)
    if fused == "qkv_proj":
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        width = rows // (heads + 2 * groups)
        return {"q_proj": heads * width, "k_proj": groups * width, "v_proj": groups * width}
    return {}
