"""Training: what moves, what is learnt, and the awkward data sets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value import TrainingDataError, TrainProgress, ValueModelError, load_value, train_value
from langgraph_amc.value.errors import TrainingError
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.model import new_model, pick_device
from langgraph_amc.value.tokens import Window
from langgraph_amc.value.training.dataset import build, collate, split_by_task, targets
from langgraph_amc.value.training.transformer import batch_loss

from .world import slippery_runs, tiny_config, word_tokenizer

CPU = pick_device("cpu")
HEAD = ReturnHead("bce", 0.0, 1.0, binary=True)


def tensors(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_adapter_gets_a_gradient_and_the_base_gets_none(any_base: Path, checkpointing: bool) -> None:
    torch.manual_seed(0)
    model = new_model(any_base, 1, tokenizer=None, lora=4, device=CPU)
    if checkpointing:
        model.enable_gradient_checkpointing()
    data = build(slippery_runs(tasks=2), model.tokenizer, 64)
    model.network.train()
    before = tensors(model.network)
    optimizer = torch.optim.SGD([p for p in model.network.parameters() if p.requires_grad], lr=1.0)
    for _ in range(3):  # the B matrices start at zero, so A moves from the second step on
        optimizer.zero_grad()
        weights = torch.from_numpy(data.states.weights).float()
        batch_loss(model, HEAD, collate(data.windows), targets(data.states, HEAD, True), weights).backward()
        optimizer.step()
    after = tensors(model.network)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    adapters = {name for name in before if "lora_" in name}
    trained_head = {name for name in before if "score.modules_to_save" in name}
    assert len(adapters) == 2 * 7 * 2
    assert moved == adapters | trained_head


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_changes_nothing_in_the_result(base: Path, tmp_path: Path, checkpointing: bool) -> None:
    runs = slippery_runs(tasks=4)
    plain = train_value(runs, base, out=tmp_path / "plain", lora=2, epochs=1)
    other = train_value(runs, base, out=tmp_path / "other", lora=2, epochs=1, gradient_checkpointing=checkpointing)
    assert other.epochs[0].train_loss == pytest.approx(plain.epochs[0].train_loss, abs=1e-6)
    assert other.quality.mse == pytest.approx(plain.quality.mse, abs=1e-6)


def test_missing_gradients_stop_the_training(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph_amc.value.model import ValueModel

    hidden = ValueModel.hidden
    monkeypatch.setattr(ValueModel, "hidden", lambda self, ids, **cache: hidden(self, ids, **cache).detach())
    with pytest.raises(TrainingError, match="gradient"):
        train_value(slippery_runs(tasks=2), base, out=tmp_path / "v", lora=2)


@pytest.mark.parametrize("lora", [False, 8])
def test_it_learns_to_rank_within_a_task(base: Path, tmp_path: Path, lora: bool | int) -> None:
    runs = slippery_runs(tasks=40, seed=1)
    report = train_value(runs, base, out=tmp_path / "v", lora=lora, epochs=10, lr=3e-3, patience=10)
    assert report.quality.ranking.value is not None
    assert report.quality.ranking.value > 0.8
    assert report.quality.ranking.low is not None
    assert report.quality.ranking.low > 0.6
    assert report.quality.mse < 0.8 * report.quality.baseline_mse
    assert report.weights == ("lora" if lora else "full")


def test_the_distributional_value_of_a_graded_return(base: Path, tmp_path: Path) -> None:
    runs = [
        replace(r, outcome=-1.0 + 4.0 * (r.outcome or 0.0) + 0.1 * (i % 4))
        for i, r in enumerate(slippery_runs(tasks=40))
    ]
    report = train_value(runs, base, out=tmp_path / "v", loss="hl_gauss", epochs=10, lr=3e-3)
    assert report.quality.ranking.metric == "kendall"
    assert report.quality.bce is None
    assert report.quality.mse < report.quality.baseline_mse
    value = load_value(tmp_path / "v")
    states = [r.segments for r in runs[:8]]
    mean, sharp = value.score(states), value.soft_score(states, 0.2)
    assert (sharp > mean).all()
    assert np.allclose(value.soft_score(states, 1e4), mean, atol=1e-2)


def test_regression_learns_returns_of_any_unit(base: Path, tmp_path: Path) -> None:
    runs = [replace(r, outcome=1000.0 * (r.outcome or 0.0) - 300.0) for r in slippery_runs(tasks=20)]
    report = train_value(runs, base, out=tmp_path / "v", loss="mse", epochs=8, lr=3e-3)
    assert report.quality.mse < 0.9 * report.quality.baseline_mse
    assert any("mean" in note for note in report.notes)


def test_one_pass_has_the_loss_of_one_prompt_per_state(any_base: Path) -> None:
    model = new_model(any_base, 1, tokenizer=None, lora=False, device=CPU)
    model.network.eval()
    data = build(slippery_runs(tasks=2, runs=3), model.tokenizer, 64)
    prompts = [
        Window(w.ids[: end + 1], np.array([end]), np.array([state]))
        for w in data.windows
        for end, state in zip(w.readouts, w.states, strict=True)
    ]
    target, weights = targets(data.states, HEAD, True), torch.from_numpy(data.states.weights).float()
    one_pass = batch_loss(model, HEAD, collate(data.windows), target, weights)
    each = batch_loss(model, HEAD, collate(prompts), target, weights)
    assert one_pass.item() == pytest.approx(each.item(), abs=1e-5)


def test_one_seed_one_result_and_the_global_generator_is_left_alone(base: Path, tmp_path: Path) -> None:
    runs = slippery_runs(tasks=4)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    results = [
        train_value(runs, base, out=tmp_path / str(i), lora=2, epochs=2, seed=s) for i, s in enumerate([1, 1, 2])
    ]
    assert torch.equal(torch.rand(3), expected)
    losses = [[(log.train_loss, log.validation_loss) for log in r.epochs] for r in results]
    assert losses[0] == losses[1] != losses[2]
    scores = [load_value(tmp_path / str(i)).score([r.segments for r in runs]) for i in range(3)]
    assert (scores[0] == scores[1]).all()
    assert (scores[0] != scores[2]).any()


@pytest.mark.parametrize("loss", ["bce", "mse", "two_hot", "hl_gauss"])
@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_data_with_one_outcome_trains_and_says_so(base: Path, tmp_path: Path, loss: str, outcome: float) -> None:
    runs = [r.with_outcome(outcome) for r in slippery_runs(tasks=3)]
    report = train_value(runs, base, out=tmp_path / "v", loss=loss, epochs=1)
    assert report.quality.ranking.value is None
    assert any("nothing to learn" in note for note in report.notes)
    assert np.abs(load_value(tmp_path / "v").score([runs[0].segments]) - outcome).max() < 0.35


def test_one_task_alone_trains_without_held_out_tasks_and_says_so(base: Path, tmp_path: Path) -> None:
    report = train_value(slippery_runs(tasks=1), base, out=tmp_path / "v", epochs=2)
    assert (report.train_tasks, report.validation_tasks, report.measured_on) == (1, 0, "training")
    assert [log.validation_loss for log in report.epochs] == [None, None]
    assert report.best_epoch == 2
    assert any("flatter" in note for note in report.notes)


def test_early_stopping_restores_the_best_epoch(base: Path, tmp_path: Path) -> None:
    noise = [r.with_outcome(float(i % 2)) for i, r in enumerate(slippery_runs(tasks=8))]
    report = train_value(noise, base, out=tmp_path / "v", epochs=30, lr=1e-2, patience=1)
    checked = [log.validation_loss for log in report.epochs]
    assert report.stopped_early
    assert report.best_epoch == int(np.argmin(checked)) + 1 == len(checked) - 1
    assert report.quality.bce == pytest.approx(min(checked), abs=1e-5)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_held_out_tasks_calibrate_the_checkpoint_and_the_report_is_cross_fitted(
    base: Path, tmp_path: Path, method: str
) -> None:
    runs = slippery_runs(tasks=40)
    options = {"epochs": 3, "lr": 3e-3, "validation": 0.3}
    plain = train_value(runs, base, out=tmp_path / "plain", calibrate="none", **options)
    report = train_value(runs, base, out=tmp_path / "v", calibrate=method, **options)
    assert (plain.calibrated, report.calibrated) == (None, method)
    assert report.raw_calibration_error == plain.quality.calibration_error == plain.raw_calibration_error
    assert report.uncertainty is not None
    held_out = split_by_task(runs, 0.3, 0)[1]
    states = [r.segments[: t + 1] for r in held_out for t in range(5)]
    steps = np.array([len(s) - 1 for s in states])
    raw, value = load_value(tmp_path / "plain").score(states), load_value(tmp_path / "v")
    assert value.spec.calibration is not None
    assert value.score(states) == pytest.approx(value.spec.calibration(raw, steps), abs=1e-5)
    returns = np.array([x for r in held_out for x in r.returns() or ()])
    own = np.square(value.score(states) - returns).mean()
    assert own < report.quality.mse  # on its own data a calibration looks better than it is
    assert "calibrated" in report.to_text()


def test_a_calibration_is_kept_only_where_it_helps_on_other_tasks(base: Path, tmp_path: Path) -> None:
    runs = slippery_runs(tasks=40)
    plain = train_value(runs, base, out=tmp_path / "p", epochs=1, lr=1e-5, validation=0.4, calibrate="none")
    report = train_value(runs, base, out=tmp_path / "v", epochs=1, lr=1e-5, validation=0.4)
    assert report.quality.mse <= plain.quality.mse
    assert (report.calibrated is None) == (report.quality.mse == plain.quality.mse)


def test_too_few_held_out_tasks_calibrate_nothing(base: Path, tmp_path: Path) -> None:
    report = train_value(slippery_runs(tasks=10), base, out=tmp_path / "v", epochs=1, calibrate="platt")
    assert report.calibrated is None
    assert load_value(tmp_path / "v").spec.calibration is None


def test_a_resampled_population_trains_with_its_weights(base: Path, tmp_path: Path) -> None:
    """Runs that slipped were kept one time in four: weights put back what resampling took away."""
    rng, kept = np.random.default_rng(0), []
    for i, run in enumerate(slippery_runs(tasks=40, runs=24, seed=2)):
        survival = 0.25 if run.outcome == 0 else 1.0
        drawn = [[4, float(np.log(survival))]]
        pruned = (
            {"status": "pruned", "outcome": None} if rng.random() > survival else {"metadata": {"resampled": drawn}}
        )
        kept.append(replace(run, run_id=f"r{i // 24}", particle=f"p{i % 24}", **pruned))
    blind = [replace(run, metadata={}) for run in kept if run.status != "pruned"]
    starts = [run.segments[:1] for run in kept[::24]]
    found = {}
    for name, runs in (("weighted", kept), ("blind", blind)):
        report = train_value(runs, base, out=tmp_path / name, epochs=4, lr=3e-3, calibrate="none")
        assert (report.effective_share < 0.8) == (name == "weighted")
        found[name] = load_value(tmp_path / name).score(starts).mean()
    assert found["weighted"] == pytest.approx(0.8**4, abs=0.08)
    assert found["blind"] > 0.65


def test_censored_runs_are_counted_in_the_report(base: Path, tmp_path: Path) -> None:
    runs = slippery_runs(tasks=3)
    runs += [replace(runs[0], status="pruned"), replace(runs[1], outcome=None)]
    report = train_value(runs, base, out=tmp_path / "v", epochs=1)
    assert report.left_out == {"pruned": 1, "missing outcome": 1}
    assert sum(report.used.values()) == 24
    assert report.used["failed"] > 0


def test_the_report_is_text_and_json(base: Path, tmp_path: Path) -> None:
    report = train_value(slippery_runs(tasks=6), base, out=tmp_path / "v", epochs=1)
    assert json.loads((tmp_path / "v" / "amc_value_report.json").read_text()) == report.to_dict()
    text = report.to_text()
    assert "ranking within a task (auc)" in text
    assert "step 2" in text
    assert report.tokens_per_second > 0


def test_progress_is_told_every_update_and_every_epoch(base: Path, tmp_path: Path) -> None:
    told: list[TrainProgress] = []
    train_value(slippery_runs(tasks=6), base, out=tmp_path / "v", epochs=2, batch_tokens=256, progress=told.append)
    closing = [event for event in told if event.validation_loss is not None]
    assert [event.epoch for event in closing] == [1, 2]
    assert [event.step for event in told if event.validation_loss is None] == list(range(1, closing[-1].step + 1))
    assert all(event.steps >= event.step for event in told)


def test_long_runs_train_in_windows(base: Path, tmp_path: Path) -> None:
    runs = slippery_runs(tasks=4, steps=20)
    report = train_value(runs, base, out=tmp_path / "v", epochs=1, max_length=24)
    assert report.train_states + report.validation_states == 4 * 8 * 21
    assert np.isfinite(load_value(tmp_path / "v").score([r.segments for r in runs])).all()


def test_a_config_made_on_the_spot(tmp_path: Path) -> None:
    report = train_value(
        slippery_runs(tasks=3), tiny_config(), out=tmp_path / "v", epochs=1, tokenizer=word_tokenizer()
    )
    assert report.weights == "full"
    load_value(tmp_path / "v")


def trajectory(outcome: float) -> Trajectory:
    return Trajectory(run_id="r", particle="p", segments=("go",), outcome=outcome)


@pytest.mark.parametrize(
    ("runs", "options", "error", "message"),
    [
        ([], {}, TrainingDataError, "no trajectory"),
        ([trajectory(1.5)], {}, TrainingDataError, "two_hot"),
        ([trajectory(1.0)], {"epochs": 0}, ConfigurationError, "epochs"),
        ([trajectory(1.0)], {"lr": -1.0}, ConfigurationError, "lr"),
        ([trajectory(1.0)], {"validation": 1.0}, ConfigurationError, "validation"),
        ([trajectory(1.0)], {"max_length": 257}, ConfigurationError, "256"),
        ([trajectory(1.0)], {"max_length": 3}, ConfigurationError, "at least 4"),
        ([trajectory(1.0)], {"loss": "huber"}, ConfigurationError, "huber"),
        ([trajectory(1.0)], {"calibrate": "beta"}, ConfigurationError, "platt"),
        ([trajectory(1.0)], {"td_lambda": 2.0}, ConfigurationError, "td_lambda"),
        ([trajectory(1.0)], {"td_lambda": 0.5, "loss": "two_hot"}, ConfigurationError, "distribution"),
    ],
)
def test_what_cannot_work_is_refused(
    base: Path, tmp_path: Path, runs: list[Trajectory], options: dict[str, object], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        train_value(runs, base, out=tmp_path / "v", **options)
    assert not list(tmp_path.iterdir())


def test_a_base_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    bert = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    with pytest.raises(ValueModelError, match="causal"):
        train_value([trajectory(1.0)], bert, out=tmp_path / "v", tokenizer=word_tokenizer())


def test_lora_needs_a_saved_base(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LoRA"):
        train_value([trajectory(1.0)], tiny_config(), out=tmp_path / "v", tokenizer=word_tokenizer(), lora=True)


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueModelError, match="nowhere"):
        train_value([trajectory(1.0)], tmp_path / "nowhere", out=tmp_path / "v")
