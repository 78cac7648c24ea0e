"""Tiny random decoders with a ChatML byte tokenizer, built on the spot: real models, no downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML


def byte_tokenizer(template: str = CHATML) -> Any:
    """Byte-level BPE without merges: every text has a unique, reversible tokenisation."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    )


def tiny_model(kind: str = "llama", seed: int = 0, vocab: int = 259, **changes: Any) -> Any:
    """A random causal language model: ``llama`` (GQA), ``qwen2`` (tied), ``qwen3``, ``mistral`` or ``gpt2``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        # Large enough that a random model's choices are clear-cut, as a trained model's are.
        "initializer_range": 0.25,
    }
    if kind == "qwen2":
        common["tie_word_embeddings"] = True
    if kind == "qwen3":
        common["head_dim"] = 16
    if kind == "gpt2":
        common = {k: v for k, v in common.items() if k not in ("intermediate_size", "num_key_value_heads")}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(common | changes))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def save_tiny(path: Path, kind: str = "llama", template: str = CHATML, **changes: Any) -> Path:
    """Write a tiny model and its tokenizer as a Hugging Face directory."""
    tiny_model(kind, **changes).save_pretrained(path)
    byte_tokenizer(template).save_pretrained(path)
    return path
