"""Exports: what was tuned comes back from plain files, in the served type or as float32 masters; so do adapters."""

from __future__ import annotations

import pytest
import torch
import transformers

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.export import export
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.replay import load, replay
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.weights import Weights
from tests.evolution import models
from tests.evolution.runs import run

STRATEGY = Strategy(population=4, sigma=0.01, rank=2, seed=21)
TOKENS = torch.tensor([[3, 7, 9, 11]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "make",
    [models.llama, lambda d: models.llama(d, tied=False), models.gpt2, models.phi3],
    ids=["tied", "untied", "gpt2", "phi3"],
)
def test_a_plain_folder(make, dtype, tmp_path):
    folder, file, out = tmp_path / "model", tmp_path / "history.jsonl", tmp_path / "out" / "tuned"
    make(dtype).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    run(folder, file, STRATEGY, 3)
    tuned = replay(file, folder)
    assert export(tuned, out, source=folder) == out
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert sorted(p.name for p in out.parent.iterdir()) == ["tuned"]
    back = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto").eval()
    assert back.dtype == dtype
    for ours, theirs in zip(back.parameters(), tuned.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(back(TOKENS).logits, tuned.model(TOKENS).logits)
    assert not torch.equal(back(TOKENS).logits, load(folder)(TOKENS).logits)
    exact = export(tuned, tmp_path / "exact", dtype=torch.float32)
    whole = transformers.AutoModelForCausalLM.from_pretrained(exact, dtype="auto")
    assert whole.dtype == torch.float32
    assert Weights(whole, layout(whole)).hash() == tuned.hash()


def test_an_adapter(tmp_path):
    import peft

    base, adapter, file = tmp_path / "base", tmp_path / "adapter", tmp_path / "history.jsonl"
    models.llama().save_pretrained(base)
    model = models.lora()
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(adapter)
    tuned = run(adapter, file, STRATEGY, 3, scope="lora")
    assert replay(file, adapter).hash() == tuned.hash()
    out = export(tuned, tmp_path / "tuned", source=adapter)
    assert (out / "adapter_model.safetensors").is_file()
    assert not (out / "model.safetensors").exists()
    back = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), out).eval()
    assert torch.equal(back(TOKENS).logits, tuned.model(TOKENS).logits)
    assert not torch.equal(back(TOKENS).logits, load(adapter)(TOKENS).logits)
    with back.disable_adapter():
        assert torch.equal(back(TOKENS).logits, load(base)(TOKENS).logits)


def test_places_and_types_that_will_not_do(tmp_path):
    model = models.llama(torch.bfloat16)
    weights = Weights(model, layout(model))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="already"):
        export(weights, tmp_path / "full")
    with pytest.raises(ConfigurationError, match="float16"):
        export(weights, tmp_path / "new", dtype=torch.float16)
    with pytest.raises(ConfigurationError, match="source"):
        export(weights, tmp_path / "new", source=tmp_path / "nowhere")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]
    (tmp_path / "empty").mkdir()
    assert (export(weights, tmp_path / "empty") / "model.safetensors").is_file()
