"""Layouts: every parameter once, by logical name, and the same noise however a framework lays it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.directions import dense, factors, unit_of
from langgraph_amc.evolution.layout import LayoutMismatchError, layout, parameters_of
from langgraph_amc.evolution.members import Generation, Member
from tests.evolution import models

FACTORIES = {
    "llama": models.llama,
    "untied": lambda: models.llama(tied=False),
    "gpt2": models.gpt2,
    "phi3": models.phi3,
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_all_covers_every_weight_once(make):
    model = make()
    found = layout(model)
    assert not found.frozen
    assert found.numel == sum(p.numel() for p in model.parameters())
    parameters = parameters_of(model, found.entries)
    for parameter in parameters.values():
        parameter.data.zero_()
    for entry in found.entries:
        view = entry.view(parameters[entry.parameter])
        assert tuple(view.shape) == entry.shape
        view.add_(1)
    assert all(bool((p == 1).all()) for p in model.parameters())
    assert [e.name for e in found.entries] == sorted({e.name for e in found.entries})


def test_tied_head_is_the_embedding():
    tied = {e.name: e for e in layout(models.llama()).entries}
    assert tied["model.embed_tokens.weight"].tied_to == ("lm_head.weight",)
    assert tied["model.embed_tokens.weight"].kind == "embedding"
    assert "lm_head.weight" not in tied
    untied = {e.name: e for e in layout(models.llama(tied=False)).entries}
    assert untied["lm_head.weight"].kind == "linear"
    assert untied["model.embed_tokens.weight"].tied_to == ()


def test_fused_and_transposed_projections_have_logical_parts():
    model = models.gpt2()
    entries = {e.name: e for e in layout(model).entries}
    held = model.get_parameter("transformer.h.1.attn.c_attn.weight")
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        entry = entries[f"transformer.h.1.attn.{part}.weight"]
        assert entry.shape == (12, 12)
        torch.testing.assert_close(entry.view(held), held[:, 12 * i : 12 * i + 12].T)
        assert entries[f"transformer.h.1.attn.{part}.bias"].first == 12 * i
    assert entries["transformer.h.0.mlp.c_fc.weight"].shape == (48, 12)


def test_a_fused_model_shares_names_and_fingerprint_with_its_unfused_twin():
    """Phi-3 is a Llama with fused projections: noise of one is noise of the other."""
    config = models.phi3().config
    import transformers

    twin = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=config.num_key_value_heads,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    )
    assert layout(models.phi3()).fingerprint() == layout(twin).fingerprint()
    assert layout(models.phi3(), "linear").fingerprint() == layout(twin, "linear").fingerprint()


def test_fingerprint_knows_shapes_and_not_types():
    assert layout(models.llama(torch.bfloat16)).fingerprint() == layout(models.llama()).fingerprint()
    prints = [layout(m).fingerprint() for m in (models.llama(), models.llama(tied=False), models.gpt2())]
    assert len(set(prints)) == 3


def test_linear_leaves_embeddings_norms_and_a_tied_head_alone():
    for make in FACTORIES.values():
        found = layout(make(), "linear")
        assert {e.kind for e in found.entries} == {"linear"}
        assert not any("embed" in e.name or "wte" in e.name for e in found.entries)
        assert found.frozen
    assert any(e.name == "lm_head.weight" for e in layout(models.llama(tied=False), "linear").entries)


def test_lora_is_the_adapters_by_the_names_of_their_file(tmp_path):
    model = models.lora()
    found = layout(model, "lora")
    model.save_pretrained(tmp_path)
    from safetensors import safe_open

    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert [e.name for e in found.entries] == sorted(file.keys())
        for entry in found.entries:
            assert tuple(file.get_slice(entry.name).get_shape()) == entry.shape
    with pytest.raises(ConfigurationError, match="LoRA"):
        layout(model)
    with pytest.raises(ConfigurationError, match="nothing to tune"):
        layout(models.llama(), "lora")


def test_unknown_scope_and_foreign_layout():
    with pytest.raises(ConfigurationError, match="load it"):
        layout("models/llama")
    with pytest.raises(ConfigurationError, match="scope"):
        layout(models.llama(), "everything")
    with pytest.raises(LayoutMismatchError):
        parameters_of(models.gpt2(), layout(models.llama()).entries)


def test_parameters_of_no_known_form_are_named_as_frozen():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv1d(2, 2, 3)
            self.raw = torch.nn.Parameter(torch.ones(2, 3))
            self.whole = torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)

    found = layout(Odd())
    assert [e.name for e in found.entries] == ["conv.bias"]
    assert found.frozen == ("conv.weight", "raw")


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_directions_have_unit_variance_and_shards_agree(kind):
    entry = next(e for e in layout(models.llama()).entries if e.name == "model.embed_tokens.weight")
    entry = replace(entry, shape=(300, 200))
    generation = Generation(4, 7, 0.1, kind, 3, (Member(0, 1), Member(0, -1)))
    a, b = factors(generation, 0, entry)
    direction = (a.double() @ b.double().T) * unit_of(entry, kind, 3)
    assert abs(float(direction.pow(2).mean()) - 1) < 0.1
    part, same = factors(generation, 0, entry, rows=(120, 180))
    torch.testing.assert_close(part, a[120:180], rtol=0, atol=0)
    torch.testing.assert_close(same, b, rtol=0, atol=0)
    full = replace(generation, rank=None)
    values = dense(full, 0, entry)
    assert abs(float((values.double() * unit_of(entry, kind, None)).pow(2).mean()) - 1) < 0.03
    torch.testing.assert_close(dense(full, 0, entry, start=777, count=55), values[777:832], rtol=0, atol=0)
    with pytest.raises(ConfigurationError):
        factors(full, 0, entry)
    with pytest.raises(ConfigurationError):
        dense(generation, 0, entry)


def test_members_are_checked():
    with pytest.raises(ConfigurationError):
        Member(0, 0)
    with pytest.raises(ConfigurationError):
        Member(-1, 1)
