"""Loading: what is not a whole model, or not safetensors, is refused by name; adapters come with their base."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.replay import load
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.generation import GenerationRequest
from tests.support.tiny_models import byte_tokenizer, save_tiny, tiny_model

MESSAGES = [{"role": "user", "content": "hello"}]
Change = Callable[[Path], Any]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "base", num_hidden_layers=2)


@pytest.fixture
def adapter(base: Path) -> Path:
    """As peft saves it: without a tokenizer."""
    return save_adapter(base, base.with_name("adapter"))


@pytest.fixture
def serve() -> Iterator[Callable[..., BatchEngine]]:
    engines = []

    def make(path: Path, **options: Any) -> BatchEngine:
        engines.append(BatchEngine.from_path(path, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def save_adapter(base: Path, folder: Path, **changes: Any) -> Path:
    import peft
    from transformers import AutoModelForCausalLM

    given = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **changes}
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**given)).save_pretrained(folder)
    return folder


def configured(file: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        said = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(said | changes))

    return change


def written(file: str, content: bytes | Callable[[bytes], bytes]) -> Change:
    def change(folder: Path) -> None:
        data = content if isinstance(content, bytes) else content((folder / file).read_bytes())
        (folder / file).write_bytes(data)

    return change


def refused(path: Path, message: str) -> None:
    for way in (load, BatchEngine.from_path, get_engine):
        with pytest.raises(ConfigurationError, match=message):
            way(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            configured("config.json", num_hidden_layers=3),
            r"incomplete: 9 tensors .* \(model\.layers\.2\.input_layernorm",
        ),
        (
            configured("config.json", intermediate_size=64),
            r"6 tensors .*down_proj\.weight is \[32, 48\], not \[32, 64\]",
        ),
        (configured("config.json", hidden_size="wide"), "no causal language model can be loaded"),
        (written("config.json", b"[]"), "no causal language model can be loaded"),
        (written("model.safetensors", b"garbage" * 100), r"can be loaded from '.*broken' \(Error while deserializing"),
        (written("model.safetensors", lambda data: data[:50000]), r"from '.*broken' \(Error while deserializing"),
    ],
    ids=["a layer missing", "shapes", "a text for a number", "a list", "garbage", "cut"],
)
def test_what_is_not_all_of_a_model(base: Path, change: Change, message: str) -> None:
    broken = base.with_name("broken")
    shutil.copytree(base, broken)
    change(broken)
    refused(broken, message)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_tied_embeddings_are_not_missing(tmp_path: Path, kind: str) -> None:
    assert load(save_tiny(tmp_path / kind, kind)) is not None


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_a_garbled_tokenizer_is_named(base: Path, content: bytes) -> None:
    (base / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match="no tokenizer can be loaded from"):
        get_engine(base)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (written("adapter_model.safetensors", b"xx"), r"no adapter can be loaded from '.*adapter' \(Error while"),
        (written("adapter_config.json", b"{"), "no adapter can be loaded from"),
        (configured("adapter_config.json", target_modules=["q_proj", "v_proj", "k_proj"]), "missing adapter keys"),
        (configured("adapter_config.json", r=4), "no adapter can be loaded from"),
        (configured("adapter_config.json", task_type="SEQ_CLS"), "no causal language model as its base"),
        (configured("adapter_config.json", base_model_name_or_path=None), "no causal language model as its base"),
        (configured("adapter_config.json", base_model_name_or_path="/no/base"), "base model .* no folder '/no/base'"),
    ],
    ids=["garbage", "config", "a matrix missing", "shapes", "a classifier", "no base", "no such base"],
)
def test_what_is_not_all_of_an_adapter(adapter: Path, change: Change, message: str) -> None:
    change(adapter)
    refused(adapter, message)


class _Mine:
    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.touched,)


def test_a_base_that_is_no_safetensors_is_not_read(base: Path, adapter: Path, tmp_path: Path) -> None:
    state = tiny_model(num_hidden_layers=2).state_dict()
    (base / "model.safetensors").unlink()
    torch.save(state, base / "pytorch_model.bin")
    for path in (base, adapter):
        refused(path, "no file named model.safetensors")
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(_Mine(tmp_path / "touched")))
    refused(adapter, "base model of the adapter")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("changes", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_an_adapter_is_served_with_its_base_s_tokenizer(base: Path, changes: dict[str, Any], serve: Any) -> None:
    adapter = save_adapter(base, base.with_name("adapter"), **changes)
    assert not (adapter / "tokenizer_config.json").exists()
    request = GenerationRequest(messages=MESSAGES, max_tokens=20, temperature=0.0)
    [adapted], [plain] = serve(adapter).generate(request), serve(base).generate(request)
    assert adapted.prompt_tokens == plain.prompt_tokens
    assert adapted.text != plain.text
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(serve(adapter).model(ids).logits, load(adapter)(ids).logits)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_cpu_serves_float32(base: Path, adapter: Path, adapted: bool, serve: Any) -> None:
    tiny_model(num_hidden_layers=2).to(torch.bfloat16).save_pretrained(base)
    engine = serve(adapter if adapted else base, device="cpu")
    assert {p.dtype for p in engine.model.parameters()} == {torch.float32}


def test_an_adapter_is_loaded_without_warnings(adapter: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(adapter)


def test_a_folder_that_is_not_there_is_said_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(Path("models/smal"), r"^there is no folder 'models/smal': .* and as a hub id \(.*huggingface")
    for path in (tmp_path / "smal", Path("./models/very/smal"), Path("~/no-such-folder")):
        with pytest.raises(ConfigurationError, match=r"^there is no folder '[^']*': [^(]*: give a folder") as found:
            get_engine(path)
        assert "hub id (" not in str(found.value)


@pytest.mark.parametrize("changes", [{}, {"max_position_embeddings": 64}], ids=["no length", "no ragged mask"])
def test_a_decoder_that_takes_no_ragged_batch_is_refused(changes: dict[str, int]) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=259, hidden_size=32, n_layer=2, n_head=4, **changes))
    with pytest.raises(ConfigurationError, match=r"BloomForCausalLM .* the batch engine serves"):
        BatchEngine(model, byte_tokenizer())
