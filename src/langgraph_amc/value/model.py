"""The value model: a causal transformer from any Hugging Face path, LoRA or all weights, and a float32 head.

It is a stock ``AutoModelForTokenClassification`` (or ``…SequenceClassification`` where a family has only that),
so checkpoints load without this library. The backbone is called directly: no vocabulary logits, no pooling.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from langgraph_amc.errors import ConfigurationError, needing_local
from langgraph_amc.value.errors import ValueModelError

Lora = Literal["auto"] | bool | int
AutoClass = Literal["AutoModelForTokenClassification", "AutoModelForSequenceClassification"]
_GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
FULL_BELOW = 20_000_000  # parameters: smaller backbones train all weights unless told otherwise


@dataclass(slots=True)
class ValueModel:
    """A transformer with a head.

    ``network`` is the Hugging Face model or, once ``lora_rank`` is set, the PEFT model around it; ``lora`` says
    that it is meant to have adapters.
    """

    network: Any
    head_name: str
    tokenizer: PreTrainedTokenizerBase
    auto_class: AutoClass
    lora: bool
    base: str | None
    base_config_sha: str
    base_weights_sha: str
    lora_rank: int = 0

    @property
    def classifier(self) -> Any:
        """The Hugging Face model itself, without the PEFT wrapper."""
        return self.network.get_base_model() if self.lora_rank else self.network

    @property
    def backbone(self) -> nn.Module:
        """The transformer without a head."""
        backbone: nn.Module = self.classifier.base_model
        return backbone

    @property
    def head(self) -> nn.Linear:
        """The linear head that is trained and saved."""
        head = getattr(self.classifier, self.head_name)
        return head.modules_to_save["default"] if self.lora_rank else head

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def hidden(self, input_ids: Tensor, **cache: Any) -> Tensor:
        """Last hidden states, [batch, tokens, width].

        Padding goes on the right. No mask is needed for it: a causal model does not look ahead, and the
        positions of padding are never read.
        """
        hidden: Tensor = self.backbone(input_ids=input_ids, use_cache=bool(cache), **cache).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Head outputs at the readouts only, float32 [readouts, head size]."""
        flat = hidden.reshape(-1, hidden.shape[-1]).index_select(0, rows * hidden.shape[1] + columns)
        logits: Tensor = self.head(flat.float())
        return logits

    def trained(self) -> tuple[list[tuple[str, nn.Parameter]], list[tuple[str, nn.Parameter]]]:
        """Named parameters that learn: (backbone or adapters, head)."""
        head = {id(parameter) for parameter in self.head.parameters()}
        named = [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]
        return [x for x in named if id(x[1]) not in head], [x for x in named if id(x[1]) in head]

    def enable_gradient_checkpointing(self) -> None:
        """Trade time for memory.

        Non-reentrant, and with gradients switched on at the embeddings: reentrant checkpointing behind frozen
        embeddings passes no gradient to adapters at all.
        """
        self.classifier.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.classifier.enable_input_require_grads()


def new_model(
    base: str | Path | PretrainedConfig,
    size: int,
    *,
    tokenizer: str | Path | PreTrainedTokenizerBase | None,
    lora: Lora,
    device: torch.device,
) -> ValueModel:
    """Build a value model with a fresh head of ``size`` outputs.

    Raises
    ------
    ConfigurationError: options that do not fit together.
    ValueModelError: the base cannot be loaded, cannot carry a head, or is not causal.
    """
    model = bare_model(base, size, tokenizer=tokenizer, use_lora=None if lora == "auto" else bool(lora), device=device)
    if model.lora:
        model = with_adapters(model, rank=8 if lora == "auto" or lora is True else int(lora))
    check_causal(model)
    return model


def bare_model(
    base: str | Path | PretrainedConfig,
    size: int,
    *,
    tokenizer: str | Path | PreTrainedTokenizerBase | None,
    use_lora: bool | None,
    device: torch.device,
    with_head: bool = False,
) -> ValueModel:
    """The stock classification model of a base, its adapters (where ``use_lora``) still to be added.

    ``with_head``: the base is a complete value checkpoint and must hold the head as well.
    """
    with quiet_transformers():
        config = copy.deepcopy(base) if isinstance(base, PretrainedConfig) else _load_config(base)
        auto_class = _auto_class(config)
        config_sha = _config_sha(config if isinstance(base, PretrainedConfig) else _raw_config(base))
        config.num_labels = size
        config.classifier_dropout = 0.0
        if isinstance(base, PretrainedConfig):
            if use_lora:
                raise ConfigurationError("LoRA needs a saved base model; pass its folder instead of a config")
            if tokenizer is None:
                raise ConfigurationError("a base given as a config needs tokenizer= (a folder or a tokenizer)")
            network = getattr(transformers, auto_class).from_config(config, dtype=torch.float32)
            use_lora = False
        else:
            network = _load_network(base, config, auto_class, with_head)
        if use_lora is None:
            use_lora = sum(p.numel() for p in network.base_model.parameters()) >= FULL_BELOW
        weights_sha = _weights_sha(network.base_model)
        # Frozen weights may be halved on a GPU; on a CPU without native bfloat16 that is several times slower.
        half = use_lora and device.type == "cuda"
        return ValueModel(
            network=network.to(device, torch.bfloat16 if half else torch.float32),
            head_name=_head_name(network, size),
            tokenizer=_load_tokenizer(base if tokenizer is None else tokenizer),
            auto_class=auto_class,
            lora=use_lora,
            base=None if isinstance(base, PretrainedConfig) else _stable_path(base),
            base_config_sha=config_sha,
            base_weights_sha=weights_sha,
        )


def _load_network(base: str | Path, config: Any, auto_class: AutoClass, with_head: bool) -> Any:
    try:
        network, info = getattr(transformers, auto_class).from_pretrained(
            str(base), config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueModelError(f"cannot load {base} (safetensors only): {error}") from error
    head = "" if with_head else f"{_head_name(network, config.num_labels)}."
    missing = sorted(name for name in info["missing_keys"] if not (head and name.startswith(head)))
    if missing:
        raise ValueModelError(f"{base} lacks {len(missing)} weights, the first is {missing[0]!r}: it is incomplete")
    return network


def with_adapters(model: ValueModel, rank: int) -> ValueModel:
    """Freeze the backbone, add LoRA to all of its linear layers, and make the head part of the adapter."""
    with needing_local("LoRA"):
        from peft import LoraConfig, get_peft_model
    if rank < 1:
        raise ConfigurationError(f"the LoRA rank must be at least 1, got {rank}")
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    targets = {n.rpartition(".")[2] for n, m in model.backbone.named_modules() if isinstance(m, kinds)}
    config = LoraConfig(
        task_type="TOKEN_CLS" if model.auto_class == "AutoModelForTokenClassification" else "SEQ_CLS",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=sorted(targets),
        modules_to_save=[model.head_name],
    )
    model.network = get_peft_model(model.network, config)
    model.lora_rank = rank
    model.network.peft_config["default"].base_model_name_or_path = model.base
    model.head.float()
    return model


@torch.no_grad()
def check_causal(model: ValueModel) -> None:
    """Refuse a backbone in which a state's value would depend on what came later.

    Raises
    ------
    ValueModelError: the model looks ahead.
    """
    was_training = model.network.training
    model.network.eval()
    ids = torch.arange(8, device=model.device)[None] % model.classifier.config.get_text_config().vocab_size
    changed = ids.clone()
    changed[0, -1] = 0
    moved = (model.hidden(ids) - model.hidden(changed))[0, :-1].abs().max()
    model.network.train(was_training)
    if not float(moved) < 1e-3:
        raise ValueModelError(
            f"{model.classifier.config.model_type} attends to later tokens: a value function needs a causal"
            " (decoder-only) base model, because all states of a trajectory are read in one pass"
        )


def pick_device(device: str) -> torch.device:
    """``auto``: CUDA, else Apple's MPS, else the CPU; otherwise what is named."""
    if device != "auto":
        try:
            return torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigurationError(f"device is 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps', got {device!r}") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence load reports and progress bars (a fresh head is 'missing' in every base), then restore."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _auto_class(config: PretrainedConfig) -> AutoClass:
    if type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        return "AutoModelForTokenClassification"
    if type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return "AutoModelForSequenceClassification"
    raise ValueModelError(f"transformers has no classification model for {config.model_type!r}: take another base")


def _head_name(network: Any, size: int) -> str:
    names = [
        name
        for name, module in network.named_children()
        if name != network.base_model_prefix and isinstance(module, nn.Linear) and module.out_features == size
    ]
    if len(names) != 1:
        raise ValueModelError(f"{type(network).__name__} has no single linear head to read values from")
    return names[0]


def _load_config(base: str | Path) -> PretrainedConfig:
    try:
        return transformers.AutoConfig.from_pretrained(str(base))
    except (OSError, ValueError) as error:
        raise ValueModelError(f"no model configuration at {base}: {error}") from error


def _raw_config(base: str | Path) -> dict[str, Any]:
    return PretrainedConfig.get_config_dict(str(base))[0]


def _load_tokenizer(
    source: str | Path | PretrainedConfig | PreTrainedTokenizerBase,
) -> PreTrainedTokenizerBase:
    """A tokenizer as its own files describe it.

    For some model types ``AutoTokenizer`` overrules a folder that declares a generic tokenizer with the family's
    own class, which reads another language than the folder's ``tokenizer.json``.
    """
    if isinstance(source, PreTrainedTokenizerBase):
        return source
    try:
        generic = get_tokenizer_config(str(source)).get("tokenizer_class") in _GENERIC_TOKENIZERS
        loader = transformers.PreTrainedTokenizerFast if generic else transformers.AutoTokenizer
        return loader.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        raise ValueModelError(f"no tokenizer at {source}; pass tokenizer=: {error}") from error


def _stable_path(base: str | Path) -> str:
    """A local folder as an absolute path, a Hub name as it is."""
    return str(Path(base).resolve()) if Path(base).exists() else str(base)


def _config_sha(config: PretrainedConfig | dict[str, Any]) -> str:
    """Hash of a configuration as saved, without what another version of transformers would write differently."""
    raw = dict(config) if isinstance(config, dict) else config.to_diff_dict()
    volatile = (
        "transformers_version",
        "_name_or_path",
        "_commit_hash",
        "dtype",
        "torch_dtype",
        "architectures",
    )
    kept = {key: value for key, value in raw.items() if key not in volatile}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def _weights_sha(backbone: nn.Module) -> str:
    """Hash of 16 numbers of each weight, as bfloat16 so that the precision of loading does not matter.

    Cheap at any size, and a base with the same configuration but other weights (another fine-tune) is told
    apart, whose values would be wrong without any other sign.
    """
    digest = hashlib.sha256()
    for parameter in backbone.parameters():
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 16)][:16].to("cpu", torch.bfloat16)
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
