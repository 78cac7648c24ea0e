"""Saving and loading a value model in the ecosystem's own format, and refusing anything that does not fit.

LoRA: a PEFT adapter with the head in it. All weights: a plain Hugging Face folder. Beside it ``amc_value.json``
says how to read the head. Loading compares every tensor's name and shape first: a head is never random.
Safetensors only.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from torch import Tensor

from langgraph_amc.value.calibration import Calibration, FloatArray
from langgraph_amc.value.errors import ValueModelError
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.manifest import (
    FORMAT,
    REPORT_FILE,
    check_replaceable,
    check_transcripts,
    read_manifest,
    write_json,
)
from langgraph_amc.value.model import AutoClass, ValueModel, bare_model, quiet_transformers, with_adapters
from langgraph_amc.value.uncertainty import Uncertainty

SPEC_FILE = "amc_value.json"


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """``amc_value.json``: all that is needed to read a value checkpoint, and to notice when it does not fit.

    Attributes
    ----------
    head: how to read the logits.
    head_name: name of the head's module in the Hugging Face model.
    auto_class: which ``AutoModelFor…`` loads it; use ``num_labels=head.size``.
    lora, lora_rank: a PEFT adapter of that rank on ``base``; otherwise the folder is a complete model.
    max_length: longest state in tokens; longer ones are truncated on the left.
    transcript_fingerprint: of the options that wrote the transcripts it was trained on.
    base, base_config_sha, base_weights_sha: where the base was and what it was.
    library_version, format: who wrote it.
    calibration, uncertainty: as measured on held-out tasks; ``None`` where there were too few, or in older checkpoints.
    """

    head: ReturnHead
    head_name: str
    auto_class: AutoClass
    lora: bool
    lora_rank: int
    max_length: int
    transcript_fingerprint: str
    base: str | None
    base_config_sha: str
    base_weights_sha: str
    library_version: str
    format: int = FORMAT
    calibration: Calibration | None = None
    uncertainty: Uncertainty | None = None

    def mean(self, logits: Tensor, steps: ArrayLike) -> FloatArray:
        """Calibrated expected return, float64 [n], of logits [n, head size] at steps [n] (segments − 1)."""
        plain: FloatArray = self.head.mean(logits).cpu().numpy()
        return plain if self.calibration is None else self.calibration(plain, steps)

    def soft_value(self, logits: Tensor, steps: ArrayLike, beta: float) -> FloatArray:
        """β·log E[exp(R/β)], float64 [n], of the distribution with the calibrated mean; see `ReturnHead.soft_value`."""
        mean = None if self.calibration is None else self.mean(logits, steps)
        found: FloatArray = self.head.soft_value(logits, beta, mean).numpy()
        return found

    @classmethod
    def of(
        cls,
        model: ValueModel,
        head: ReturnHead,
        max_length: int,
        fingerprint: str,
        calibration: Calibration | None = None,
        uncertainty: Uncertainty | None = None,
    ) -> ValueSpec:
        """Describe a trained model."""
        return cls(
            head=head,
            head_name=model.head_name,
            auto_class=model.auto_class,
            lora=model.lora,
            lora_rank=model.lora_rank,
            max_length=max_length,
            transcript_fingerprint=fingerprint,
            base=model.base,
            base_config_sha=model.base_config_sha,
            base_weights_sha=model.base_weights_sha,
            library_version=version("langgraph-amc"),
            calibration=calibration,
            uncertainty=uncertainty,
        )

    @classmethod
    def read(cls, folder: Path) -> ValueSpec:
        """Read ``amc_value.json``.

        Raises
        ------
        ValueModelError: the file is missing, not JSON, or of another format.
        """

        def make(raw: dict[str, Any]) -> ValueSpec:
            found: dict[str, Any] = {**raw, "head": ReturnHead(**raw["head"])}
            for name, read in (("calibration", Calibration.from_json), ("uncertainty", Uncertainty.from_json)):
                found[name] = None if raw.get(name) is None else read(raw[name])
            return cls(**found)

        return read_manifest(folder / SPEC_FILE, make, "train one first")


def save(out: Path, model: ValueModel, spec: ValueSpec, report: dict[str, Any]) -> None:
    """Write a checkpoint: complete in a neighbouring folder first, then moved into place."""
    check_replaceable(out, SPEC_FILE)
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        with quiet_transformers():
            if model.lora:
                # "auto" would look the base's vocabulary up on the Hub; embeddings are never trained here.
                model.network.save_pretrained(staging, safe_serialization=True, save_embedding_layers=False)
            else:
                model.network.save_pretrained(staging)
            model.tokenizer.save_pretrained(staging)
        write_json(staging / SPEC_FILE, asdict(spec))
        write_json(staging / REPORT_FILE, report)
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def load(
    folder: Path,
    transcript_fingerprint: str | None,
    *,
    allow_fingerprint_mismatch: bool,
    base: str | Path | None,
    device: torch.device,
) -> tuple[ValueModel, ValueSpec]:
    """Load a checkpoint for scoring.

    Raises
    ------
    FingerprintMismatch: it was trained on transcripts written with other options.
    ValueModelError: something is missing or does not match its description.
    """
    spec = ValueSpec.read(folder)
    check_transcripts(folder, spec.transcript_fingerprint, transcript_fingerprint, any_other=allow_fingerprint_mismatch)
    model = _load_adapter(folder, spec, base, device) if spec.lora else _load_full(folder, spec, device)
    model.network.eval().requires_grad_(False)
    return model, spec


def _load_full(folder: Path, spec: ValueSpec, device: torch.device) -> ValueModel:
    stored = _stored_shapes(folder, "model.safetensors")
    _check_head(folder, spec, stored, {name: name for name in stored})
    return bare_model(folder, spec.head.size, tokenizer=None, use_lora=False, device=device, with_head=True)


def _load_adapter(folder: Path, spec: ValueSpec, base: str | Path | None, device: torch.device) -> ValueModel:
    stored = _stored_shapes(folder, "adapter_model.safetensors")
    _check_head(folder, spec, stored, {name.removeprefix("base_model.model."): name for name in stored})
    source = base if base is not None else spec.base
    if source is None:
        raise ValueModelError(f"{folder} is an adapter and does not say on which base: pass base=")
    model = bare_model(source, spec.head.size, tokenizer=folder, use_lora=True, device=device)
    if (model.base_config_sha, model.base_weights_sha) != (spec.base_config_sha, spec.base_weights_sha):
        raise ValueModelError(f"{source} is not the base that {folder} was trained on: pass the right one as base=")
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    model = with_adapters(model, spec.lora_rank)
    expected = {name: tuple(tensor.shape) for name, tensor in get_peft_model_state_dict(model.network).items()}
    _check_same(folder, stored, expected)
    set_peft_model_state_dict(model.network, load_peft_weights(str(folder), device=str(device)))
    return model


def _stored_shapes(folder: Path, file: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in a safetensors file, or in the shards its index names."""
    index = folder / f"{file}.index.json"
    if (folder / file).is_file():
        files = [folder / file]
    elif index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / Path(name).name for name in sorted(names)]
    else:
        raise ValueModelError(f"{folder} has no {file}: only safetensors are read; restore it or train again")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as tensors:
                names = tensors.keys()
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as error:
            raise ValueModelError(f"{path} is damaged ({error}): restore it or train again") from error
    return shapes


def _check_head(folder: Path, spec: ValueSpec, stored: dict[str, tuple[int, ...]], plain_names: dict[str, str]) -> None:
    name = f"{spec.head_name}.weight"
    if name not in plain_names:
        raise ValueModelError(f"{folder} holds no head {name!r}: it would be random; restore it or train again")
    rows = stored[plain_names[name]][0]
    if rows != spec.head.size:
        raise ValueModelError(
            f"the head in {folder} has {rows} outputs and {SPEC_FILE} says {spec.head.size} ({spec.head.loss}):"
            " the two files do not belong together; restore them or train again"
        )


def _check_same(folder: Path, stored: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    wrong = {name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name)}
    if wrong:
        raise ValueModelError(
            f"{folder} does not hold the weights it should: {len(wrong)} tensors are missing, surplus or of another"
            f" shape, the first is {min(wrong)!r}; restore the folder or train again"
        )
