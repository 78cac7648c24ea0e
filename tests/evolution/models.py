"""Tiny models made on the spot: a Llama (tied or not), a GPT-2 (Conv1D, fused, tied), a Phi-3 (fused), a LoRA."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def _make(kind: type, config: Any, dtype: torch.dtype, seed: int) -> Any:
    torch.manual_seed(seed)
    model = kind(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of exactly one and biases of exactly zero would hide rounding
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def llama(dtype: torch.dtype = torch.float32, *, tied: bool = True, seed: int = 0) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    return _make(transformers.LlamaForCausalLM, config, dtype, seed)


def gpt2(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Any:
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=32, n_embd=12, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
    )
    return _make(transformers.GPT2LMHeadModel, config, dtype, seed)


def phi3(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Any:
    config = transformers.Phi3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    return _make(transformers.Phi3ForCausalLM, config, dtype, seed)


def lora(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Any:
    import peft

    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(llama(seed=seed), config).to(dtype).eval()
