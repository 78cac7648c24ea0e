"""Training on pairs and runs: the papers' losses, on the policy's tokens alone, and a model that serves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from langgraph_amc_trl import DPO, KTO, SFT, DivergedError, Example, Pair, train_on_pairs, train_on_runs
from langgraph_amc_trl.offline import dpo_trainer, padded
from langgraph_amc_trl.rendering import codec_of, sequences
from langgraph_amc_trl.sequences import TokenSequence
from langgraph_amc_trl.tuning import LOG, NothingToTrainError, load_model

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.litellm_setup import load_litellm
from tests.support.tiny_models import CHATML, save_tiny


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PROMPT = (said("user", "go"),)
GOOD, BAD = (said("assistant", "good"),), (said("assistant", "bad"),)
LONG = (said("assistant", "ask"), said("tool", "a long result"), said("assistant", "good"))
PAIR = Pair("t", "r", 0, PROMPT, LONG, BAD, 1.0, 0.0)


def log_probability(model: Any, sequence: TokenSequence) -> torch.Tensor:
    """Sum over the sampled tokens, written out."""
    ids = torch.tensor([sequence.ids])
    logs = model(ids).logits[0, :-1].log_softmax(-1)
    picked = logs[torch.arange(len(sequence.ids) - 1), ids[0, 1:]]
    return (picked * torch.tensor(sequence.sampled[1:], dtype=torch.float32)).sum()


def test_a_sequence_marks_what_the_policy_said_with_its_end(folder: Path) -> None:
    codec = codec_of(folder)
    [sequence] = sequences(codec, PROMPT, LONG)
    marked = [token for token, own in zip(sequence.ids, sequence.sampled, strict=True) if own]
    end = codec.tokenizer.eos_token_id
    byte = codec.tokenizer.encode
    assert marked == [*byte("ask"), end, *byte("good"), end]
    turns = [("user", "go"), ("assistant", "ask"), ("tool", "a long result"), ("assistant", "good")]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    assert codec.tokenizer.decode(sequence.ids) == text[:-1]


def test_the_first_gradient_of_dpo_is_the_papers(folder: Path, tmp_path: Path) -> None:
    """Rafailov et al. 2023, section 4: at the reference, -beta/2 times the difference of the two gradients."""
    codec, model = codec_of(folder), load_model(folder, "cpu")
    [good], [bad] = (sequences(codec, PROMPT, part) for part in (PAIR.chosen, PAIR.rejected))
    (-0.5 * 0.3 * (log_probability(model, good) - log_probability(model, bad))).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    model.zero_grad()
    trainer = dpo_trainer(model, codec.tokenizer, [(good, bad)] * 2, DPO(beta=0.3, batch=2), str(tmp_path))
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert first["grad_norm"] == pytest.approx(wanted, rel=1e-3)


def test_the_likelihood_of_what_was_better_counts_beside_it(folder: Path, tmp_path: Path) -> None:
    [good] = sequences(codec_of(folder), PROMPT, PAIR.chosen)
    surprise = -log_probability(load_model(folder, "cpu"), good).item() / good.trained
    tuned = train_on_pairs([PAIR], model=folder, out=tmp_path / "out", method=DPO(sft=0.5))
    assert tuned.steps[0]["loss"] == pytest.approx(math.log(2) + 0.5 * surprise, rel=1e-4)


def test_dpo_prefers_what_was_better_and_serves(folder: Path, tmp_path: Path) -> None:
    original = (folder / "model.safetensors").read_bytes()
    pair = Pair("t", "r", 0, PROMPT, GOOD, BAD, 1.0, 0.0)
    method = DPO(learning_rate=1e-2, epochs=5, batch=1, beta=0.5)
    tuned = train_on_pairs([pair], model=f"amc-local/{folder}", out=tmp_path / "out", method=method)
    assert (tuned.used, tuned.left_out, tuned.trained) == (1, {}, 5 + 4)
    assert tuned.steps[-1]["rewards/margins"] > 1 > tuned.steps[0]["loss"]
    assert (folder / "model.safetensors").read_bytes() == original
    lines = [json.loads(line) for line in (tmp_path / "out" / LOG).read_text().splitlines()]
    assert lines[0]["method"]["name"] == "DPO"
    assert len(lines) == 1 + 5
    codec, before, after = codec_of(folder), load_model(folder, "cpu"), load_model(tuned.model, "cpu")

    @torch.no_grad()
    def preference(model: Any) -> float:
        [good], [bad] = (sequences(codec, PROMPT, part) for part in (GOOD, BAD))
        return float(log_probability(model, good) - log_probability(model, bad))

    assert preference(after) > preference(before) + 2


def test_the_tuned_model_answers_through_the_local_provider(folder: Path, tmp_path: Path) -> None:
    example = Example("t", "r", PROMPT, GOOD, 1.0)
    tuned = train_on_runs(
        [example], model=folder, out=tmp_path / "out", method=SFT(learning_rate=2e-2, epochs=16, batch=1)
    )
    litellm = load_litellm()
    answer = litellm.completion(f"amc-local/{tuned.model}", messages=list(PROMPT), temperature=0.0, max_tokens=8)
    assert answer.choices[0].message.content == "good"


def test_the_loss_of_sft_is_over_the_policys_tokens(folder: Path, tmp_path: Path) -> None:
    [sequence] = sequences(codec_of(folder), PROMPT, LONG)
    wanted = -log_probability(load_model(folder, "cpu"), sequence).item() / sequence.trained
    tuned = train_on_runs(
        [Example("t", "r", PROMPT, LONG, 1.0)], model=folder, out=tmp_path / "out", method=SFT(batch=1)
    )
    assert tuned.steps[0]["loss"] == pytest.approx(wanted, rel=1e-4)


def test_kto_raises_the_desirable_over_the_undesirable(folder: Path, tmp_path: Path) -> None:
    rows = [Example("t", str(i), PROMPT, GOOD if i == 0 else BAD, float(i == 0), i == 0) for i in range(4)]
    method = KTO(learning_rate=3e-3, epochs=6, batch=4)
    tuned = train_on_runs(rows, model=folder, out=tmp_path / "out", method=method)
    assert tuned.steps[-1]["rewards/chosen"] > tuned.steps[-1]["rewards/rejected"] + 0.1
    with pytest.raises(ConfigurationError, match="only one kind"):
        train_on_runs(rows[1:], model=folder, out=tmp_path / "two", method=method)


def test_padding_is_where_nobody_looks(folder: Path, tmp_path: Path) -> None:
    """Two sequences of different lengths, alone and together."""
    codec, model = codec_of(folder), load_model(folder, "cpu")
    one, other = (sequences(codec, PROMPT, part)[0] for part in (LONG, BAD))
    batch = padded([one, other])
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
    picked = logits.gather(-1, batch["input_ids"][:, 1:, None])[..., 0] * batch["completion_mask"][:, 1:]
    for row, sequence in enumerate((one, other)):
        assert picked[row].sum().item() == pytest.approx(log_probability(model, sequence).item(), rel=1e-5)


def test_what_cannot_be_trained_on_is_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    long = Pair("t", "r", 0, PROMPT, (said("assistant", "x" * 600),), BAD, 1.0, 0.0)
    with pytest.raises(NothingToTrainError, match="longer than the model's context"):
        train_on_pairs([long], model=folder, out=tmp_path / "a")
    forgets = CHATML.replace("m['content']", "m['content'] if loop.last or m['role'] != 'assistant' else ''")
    forgetful = save_tiny(tmp_path / "forgetful", template=forgets, num_hidden_layers=1)
    with pytest.raises(NothingToTrainError, match="not one sequence"):
        train_on_pairs([PAIR], model=forgetful, out=tmp_path / "b")
    example = Example("t", "r", PROMPT, LONG, 1.0)
    assert train_on_runs([example], model=forgetful, out=tmp_path / "c").used == 2


@pytest.mark.parametrize("method", [SFT, KTO])
def test_a_training_that_diverges_writes_no_model(folder: Path, tmp_path: Path, method: Any) -> None:
    rows = [Example("t", str(i), PROMPT, GOOD if i % 2 else BAD, 1.0, desirable=bool(i % 2)) for i in range(8)]
    with pytest.raises(DivergedError, match=r"learning rate 1e\+30.*lower"):
        train_on_runs(rows, model=folder, out=tmp_path / "out", method=method(learning_rate=1e30, batch=2))
    assert not (tmp_path / "out" / "model").exists()


def test_a_folder_that_is_there_and_a_model_that_is_not(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give another folder"):
        train_on_pairs([PAIR], model=folder, out=folder)
    with pytest.raises(ConfigurationError, match="there is no folder"):
        train_on_pairs([PAIR], model=tmp_path / "none", out=tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be made"):
        train_on_pairs([PAIR], model=folder, out=tmp_path / "file" / "out")
    with pytest.raises(ConfigurationError, match="method is DPO"):
        train_on_pairs([PAIR], model=folder, out=tmp_path / "out", method=SFT())  # type: ignore[arg-type]


BAD_SETTINGS: list[tuple[Any, dict[str, Any]]] = [
    (DPO, {"beta": 0}),
    (DPO, {"sft": -1}),
    (DPO, {"epochs": 0}),
    (SFT, {"learning_rate": math.nan}),
    (SFT, {"weight_decay": -1}),
    (SFT, {"batch": 3, "accumulation": 2}),
    (KTO, {"batch": 2, "accumulation": 2}),
]


@pytest.mark.parametrize(("kind", "setting"), BAD_SETTINGS)
def test_a_setting_that_cannot_work_is_named(kind: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        kind(**setting)
