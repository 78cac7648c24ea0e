"""Checkpoints: the same scores after loading, by us and by the stock classes, and every misfit is an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForTokenClassification, GPT2Config, OlmoConfig, PreTrainedTokenizerFast

from langgraph_amc.value import (
    FingerprintMismatch,
    TransformerValue,
    ValueModelError,
    load_value,
    train_value,
)
from langgraph_amc.value.calibration import Calibration, Knots, Odds
from langgraph_amc.value.checkpoint import ValueSpec, save
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.model import new_model, pick_device
from langgraph_amc.value.tokens import encode
from langgraph_amc.value.uncertainty import Uncertainty

from .world import FINGERPRINT, saved_base, slippery_runs, tiny_config, word_tokenizer

STATES = [r.segments[: t + 1] for r in slippery_runs(tasks=2, runs=2) for t in range(5)]
HEAD = ReturnHead("two_hot", 0.0, 1.0, binary=True, bins=11)


def shaken(base: Path | object, lora: bool, tokenizer: object = None) -> TransformerValue:
    """A model with every trainable weight away from its start, adapters that begin at zero included."""
    model = new_model(base, HEAD.size, tokenizer=tokenizer, lora=lora, device=pick_device("cpu"))
    torch.manual_seed(1)
    with torch.no_grad():
        for group in model.trained():
            for _, parameter in group:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.network.eval()
    return TransformerValue(model, ValueSpec.of(model, HEAD, 64, FINGERPRINT))


@pytest.mark.parametrize("lora", [False, True])
def test_saving_and_loading_keeps_the_scores(any_base: Path, tmp_path: Path, lora: bool) -> None:
    value = shaken(any_base, lora)
    save(tmp_path / "v", value._model, value.spec, {})
    loaded = load_value(tmp_path / "v", FINGERPRINT)
    assert loaded.spec == value.spec
    assert np.abs(loaded.score(STATES) - value.score(STATES)).max() < 1e-6
    assert np.abs(loaded.soft_score(STATES, 0.1) - value.soft_score(STATES, 0.1)).max() < 1e-6
    assert np.ptp(value.score(STATES)) > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=128),
        OlmoConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2),
    ],
    ids=["absolute positions", "sequence classification only"],
)
@pytest.mark.parametrize("lora", [False, True])
def test_other_families(tmp_path: Path, config: object, lora: bool) -> None:
    base = saved_base(tmp_path / "base", config)
    value = shaken(base, lora)
    save(tmp_path / "v", value._model, value.spec, {})
    assert np.abs(load_value(tmp_path / "v").score(STATES) - value.score(STATES)).max() < 1e-6
    alone = np.array([value.score([state])[0] for state in STATES])
    assert np.abs(value.score(STATES) - alone).max() < 1e-5


@pytest.mark.parametrize("lora", [False, True])
def test_the_stock_classes_load_it_and_agree(any_base: Path, tmp_path: Path, lora: bool) -> None:
    value = shaken(any_base, lora)
    save(tmp_path / "v", value._model, value.spec, {})
    if lora:
        plain = AutoModelForTokenClassification.from_pretrained(any_base, num_labels=HEAD.size)
        network = PeftModel.from_pretrained(plain, tmp_path / "v")
    else:
        network = AutoModelForTokenClassification.from_pretrained(tmp_path / "v")
    network.eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "v")
    for state in STATES:
        ids = torch.from_numpy(encode(tokenizer, [state])[0].ids)[None]
        with torch.no_grad():
            logits = network(input_ids=ids).logits[0, -1]
        assert torch.allclose(logits, value.logits([state])[0], atol=1e-5)


def test_what_training_reports_is_what_the_checkpoint_gives(base: Path, tmp_path: Path) -> None:
    for lora in (False, 4):
        runs = slippery_runs(tasks=1)
        report = train_value(runs, base, out=tmp_path / "v", lora=lora, epochs=3)
        states = [r.segments[: t + 1] for r in runs for t in range(5)]
        returns = np.array([x for r in runs for x in (r.returns() or ())])
        error = np.square(load_value(tmp_path / "v").score(states) - returns).mean()
        assert error == pytest.approx(report.quality.mse, abs=1e-6)


def test_another_transcript_is_refused_unless_allowed(base: Path, tmp_path: Path) -> None:
    train_value(slippery_runs(tasks=2), base, out=tmp_path / "v", epochs=1)
    with pytest.raises(FingerprintMismatch, match=FINGERPRINT):
        load_value(tmp_path / "v", "sha256:other")
    allowed = load_value(tmp_path / "v", "sha256:other", allow_fingerprint_mismatch=True)
    assert allowed.spec.transcript_fingerprint == FINGERPRINT


CURVES = [Odds(0.5, -1.0), Knots((0.1, 0.9), (0.3, 0.6))]


@pytest.mark.parametrize("curve", CURVES)
def test_the_calibration_in_a_checkpoint_is_applied_at_each_states_own_step(
    base: Path, tmp_path: Path, curve: Odds | Knots
) -> None:
    value = shaken(base, lora=False)
    plain, soft = value.score(STATES), value.soft_score(STATES, 0.1)
    calibration = Calibration("platt", 0.0, 1.0, True, curve, {2: Odds(1.0, 3.0)})
    spec = replace(value.spec, calibration=calibration, uncertainty=Uncertainty(0.2, {1: 0.1}))
    save(tmp_path / "v", value._model, spec, {})
    loaded = load_value(tmp_path / "v")
    assert loaded.spec == spec
    steps = np.array([len(state) - 1 for state in STATES])
    expected = calibration(plain, steps)
    assert loaded.score(STATES) == pytest.approx(expected, abs=1e-5)
    assert (loaded.score(STATES) > plain)[steps == 2].all()
    assert loaded.soft_score(STATES, 1e6) == pytest.approx(expected, abs=1e-4)
    assert np.abs(loaded.soft_score(STATES, 0.1) - soft).max() > 1e-3
    assert (loaded.uncertainty(1), loaded.uncertainty(7)) == (0.1, 0.2)


def test_a_checkpoint_from_before_calibration_loads(folder: Path) -> None:
    raw = json.loads((folder / "amc_value.json").read_text())
    del raw["calibration"], raw["uncertainty"]
    (folder / "amc_value.json").write_text(json.dumps(raw))
    loaded = load_value(folder)
    assert loaded.spec.calibration is None
    assert np.isnan(loaded.uncertainty(0))
    assert np.isfinite(loaded.score(STATES)).all()


@pytest.mark.parametrize("wrong", [{"pooled": {}}, [1], {"method": "platt"}])
def test_a_damaged_calibration_is_refused(folder: Path, wrong: object) -> None:
    edit_spec(folder, calibration=wrong)
    with pytest.raises(ValueModelError, match=r"amc_value\.json"):
        load_value(folder)


def edit_tensors(file: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_spec(folder: Path, **changes: object) -> None:
    raw = json.loads((folder / "amc_value.json").read_text())
    (folder / "amc_value.json").write_text(json.dumps({**raw, **changes}))


@pytest.fixture(scope="module", params=["full", "lora"])
def saved(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    value = shaken(base, request.param == "lora")
    folder = tmp_path_factory.mktemp("saved") / "v"
    save(folder, value._model, value.spec, {})
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(saved, tmp_path / "copy")


def weights_file(folder: Path) -> Path:
    return next(iter(folder.glob("*model.safetensors")))


def head_name(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if name.endswith("score.weight"))


def other_name(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if "q_proj" in name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.pop(head_name(t)), "no head"),
        (lambda t: t.pop(head_name(t).replace("weight", "bias")), "score.bias"),
        (lambda t: t.update({head_name(t): torch.zeros(2, 32)}), "2 outputs"),
        (lambda t: t.update({head_name(t): torch.zeros(HEAD.size, 16)}), "score.weight|size"),
        (lambda t: t.pop(other_name(t)), "q_proj"),
        (lambda t: t.update({"classifier.weight": t.pop(head_name(t))}), "no head"),
    ],
    ids=["no head", "no bias", "outputs", "width", "body", "renamed"],
)
def test_a_damaged_checkpoint_is_refused(
    folder: Path, damage: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    edit_tensors(weights_file(folder), damage)
    with pytest.raises(ValueModelError, match=message):
        load_value(folder)


@pytest.mark.parametrize("left", [0, 7, 3000])
def test_a_file_that_was_cut_off_is_refused(folder: Path, left: int) -> None:
    with weights_file(folder).open("r+b") as file:
        file.truncate(left)
    with pytest.raises(ValueModelError, match="damaged"):
        load_value(folder)


def test_a_head_of_another_kind_in_the_description_is_refused(folder: Path) -> None:
    raw = json.loads((folder / "amc_value.json").read_text())
    edit_spec(folder, head={**raw["head"], "loss": "bce"})
    with pytest.raises(ValueModelError, match="11 outputs"):
        load_value(folder)


def test_only_safetensors_are_read(folder: Path) -> None:
    weights_file(folder).rename(weights_file(folder).with_suffix(".bin"))
    with pytest.raises(ValueModelError, match="safetensors"):
        load_value(folder)


@pytest.mark.parametrize("change", [{"format": 2}, {"surplus": 1}])
def test_a_description_of_another_kind_is_refused(folder: Path, change: dict[str, object]) -> None:
    edit_spec(folder, **change)
    with pytest.raises(ValueModelError, match=r"amc_value\.json"):
        load_value(folder)


def test_a_folder_without_a_description_is_no_checkpoint(base: Path) -> None:
    with pytest.raises(ValueModelError, match="no value function"):
        load_value(base)


def test_an_adapter_finds_its_base_where_it_is_told_and_takes_no_other(base: Path, tmp_path: Path) -> None:
    value = shaken(base, lora=True)
    save(tmp_path / "v", value._model, value.spec, {})
    moved = shutil.copytree(base, tmp_path / "moved")
    assert (load_value(tmp_path / "v", base=moved).score(STATES) == value.score(STATES)).all()
    for other in (tiny_config(), tiny_config(num_hidden_layers=1), tiny_config(rms_norm_eps=1e-4)):
        wrong = saved_base(tmp_path / "wrong", other, seed=9)
        with pytest.raises(ValueModelError, match="not the base"):
            load_value(tmp_path / "v", base=wrong)


def test_a_base_that_lacks_weights_is_refused(base: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(base, tmp_path / "broken")
    edit_tensors(broken / "model.safetensors", lambda t: t.pop(other_name(t)))
    with pytest.raises(ValueModelError, match="q_proj"):
        train_value(slippery_runs(tasks=1), broken, out=tmp_path / "v")


def test_training_replaces_a_checkpoint_and_nothing_else(base: Path, tmp_path: Path) -> None:
    runs = slippery_runs(tasks=2)
    train_value(runs, base, out=tmp_path / "v", epochs=1, lora=2)
    train_value(runs, base, out=tmp_path / "v", epochs=1, lora=False)
    assert not (tmp_path / "v" / "adapter_model.safetensors").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(ValueModelError, match="choose another"):
        train_value(runs, base, out=tmp_path / "mine", epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "v"]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_config_of_ones_own_loads_without_its_maker(tmp_path: Path, family: str) -> None:
    value = shaken(tiny_config(family), lora=False, tokenizer=word_tokenizer())
    save(tmp_path / "v", value._model, value.spec, {})
    assert np.abs(load_value(tmp_path / "v").score(STATES) - value.score(STATES)).max() < 1e-6
