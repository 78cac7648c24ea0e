"""The tuned model's folder: what was measured is what is written, and nothing that cuts the writing loses a model."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.exporting import MARK, export_best
from langgraph_amc.evaluate.evolving.opening import check_apart
from langgraph_amc.evolution import export as exporting
from langgraph_amc.evolution.history import read
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.replay import load
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.generation import GenerationRequest
from tests.evaluate.evolve_world import run
from tests.support.tiny_models import tiny_model

SMALL = amc.Strategy(population=4, sigma=0.002, alpha=2e-5, seed=5)
"""Its steps are less than half of what bfloat16 can tell apart in most weights."""


def app_of(world: Path, model: Path, folder: Path) -> str:
    """The world's app around another model."""
    text = (world / "agent.py").read_text().replace("HERE / 'model'", f"Path({str(model)!r})")
    folder.mkdir()
    (folder / "agent.py").write_text(text)
    return f"{folder}/agent.py:graph"


def exported(folder: Path, scope: Any = "all") -> str:
    """Hash of the files, as they are in float32."""
    model = load(folder, dtype=torch.float32)
    return Weights(model, layout(model, scope)).hash()


def served(folder: Path) -> str:
    engine = get_engine(folder)
    try:
        request = GenerationRequest(messages=[{"role": "user", "content": "hi"}], max_tokens=8, temperature=0.0)
        return engine.generate(request)[0].text
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_on_a_cpu_what_was_measured_in_float32_is_written(world: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    half, out = tmp_path / "half", tmp_path / "out"
    shutil.copytree(world / "model", half)
    tiny_model(num_hidden_layers=2).to(dtype).save_pretrained(half)
    given = {"app": app_of(world, half, tmp_path / "app"), "model": half, "strategy": SMALL}
    found = run(world, out, **given)
    assert found.moved
    assert exported(out / "model") == found.weights == json.loads((out / "model" / MARK).read_text())["weights"]
    assert json.loads((out / "model" / "config.json").read_text())["dtype"] == "float32"
    assert {p.dtype for p in load(out / "model").parameters()} == {torch.float32}

    again = run(world, out, **given)
    assert (again.rollouts, again.weights, exported(out / "model")) == (0, found.weights, found.weights)
    given = {"app": app_of(world, out / "model", tmp_path / "next"), "model": out / "model", "strategy": SMALL}
    onward = run(world, tmp_path / "onward", **given)
    assert read(tmp_path / "onward" / "history.jsonl").header.weights == found.weights
    assert exported(tmp_path / "onward" / "model") == onward.weights != found.weights


def test_an_adapter_without_a_tokenizer_is_tuned_written_and_served(world: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    base, adapter, out = tmp_path / "base", tmp_path / "adapter", tmp_path / "out"
    shutil.copytree(world / "model", base)
    tiny_model(num_hidden_layers=2).to(torch.bfloat16).save_pretrained(base)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).to(torch.bfloat16)
    model.save_pretrained(adapter)
    app = app_of(world, adapter, tmp_path / "app")
    found = run(world, out, app=app, model=adapter, scope="lora", strategy=amc.Strategy(4, 0.1, alpha=0.05, seed=5))
    assert found.moved
    assert exported(out / "model", "lora") == found.weights
    assert not (out / "model" / "tokenizer_config.json").exists()
    assert len({served(folder) for folder in (base, adapter, out / "model")}) == 3
    app = app_of(world, out / "model", tmp_path / "next")
    onward = run(world, tmp_path / "onward", app=app, model=out / "model", scope="lora")
    assert exported(tmp_path / "onward" / "model", "lora") == onward.weights


class _Killed:
    """In a process of its own: ends it at the n-th step of those that an export takes on the disk."""

    def __init__(self, step: int, *, within: bool) -> None:
        self.left, self.within = step, within

    def install(self) -> None:
        rename, rmtree = Path.rename, shutil.rmtree

        def renamed(path: Path, target: Path) -> Path:
            self.count()
            return rename(path, target)

        def removed(folder: Path, ignore_errors: bool = False) -> None:
            if not Path(folder).exists():
                return
            if self.within:
                next(p for p in sorted(Path(folder).iterdir()) if p.is_file()).unlink()
            self.count()
            rmtree(folder, ignore_errors=ignore_errors)

        Path.rename = renamed  # type: ignore[method-assign, assignment]
        shutil.rmtree = removed  # type: ignore[assignment]
        copy_rest = exporting._copy_rest

        def copied(*folders: Path) -> None:
            self.count()
            copy_rest(*folders)

        exporting._copy_rest = copied

    def count(self) -> None:
        self.left -= 1
        if not self.left:
            os._exit(9)


@pytest.mark.parametrize("within", [False, True], ids=["before", "within"])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_kill_at_any_step_of_replacing_a_model_leaves_one(
    world: Path, whole: Path, tmp_path: Path, step: int, within: bool
) -> None:
    log, model, folder = read(whole / "history.jsonl"), str(world / "model"), tmp_path / "out" / "model"
    export_best(log, 0, model, folder)

    def write() -> None:
        _Killed(step, within=within).install()
        export_best(log, 1, model, folder)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode == 9
    left = [path for path in folder.parent.iterdir() if (path / MARK).exists() and (path / "config.json").exists()]
    assert left, "a whole model is there, whatever its name"
    for best in (0, 1):
        export_best(log, best, model, folder)
        assert json.loads((folder / MARK).read_text())["generations"] == best
        assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert exported(folder) == log.weights


def test_a_full_disk_leaves_the_former_model(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model, folder = read(whole / "history.jsonl"), str(world / "model"), tmp_path / "out" / "model"
    export_best(log, 0, model, folder)
    rename = Path.rename

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    def stuck(path: Path, target: Path) -> Path:
        return full() if path.name.endswith(".partial") else rename(path, target)  # type: ignore[return-value]

    for place, name, broken in ((exporting, "_copy_rest", full), (Path, "rename", stuck)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, broken)
            with pytest.raises(OSError, match="No space"):
                export_best(log, 1, model, folder)
        assert exported(folder) == log.header.weights
        assert [path.name for path in folder.parent.iterdir()] == ["model"]


def _write(log: Any, model: str, folder: Path) -> None:
    export_best(log, 1, model, folder)


def test_two_processes_may_export_at_once(world: Path, whole: Path, tmp_path: Path) -> None:
    log, model, folder = read(whole / "history.jsonl"), str(world / "model"), tmp_path / "out" / "model"
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=_write, args=(log, model, folder)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert exported(folder) == log.weights


def test_only_what_is_the_model_s_own_is_copied(world: Path, whole: Path, tmp_path: Path) -> None:
    source, log = tmp_path / "source", read(whole / "history.jsonl")
    shutil.copytree(world / "model", source)
    ours = ("LICENSE", "merges.txt", "modeling_own.py")
    others = ("history.jsonl", "trajectories.sqlite", "trajectories.sqlite-wal", "result.json", MARK, ".env")
    for name in (*ours, *others):
        (source / name).write_text("{}")
    before = {path.name for path in export_best(log, 1, str(world / "model"), tmp_path / "plain").iterdir()}
    after = {path.name for path in export_best(log, 1, str(source), tmp_path / "model").iterdir()}
    assert after == before | set(ours)
    assert json.loads((tmp_path / "model" / MARK).read_text())["weights"] == log.weights


def test_a_run_s_folder_is_apart_from_the_model_s(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = world / "model"
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(world)
    for given, folder in (
        (str(model), model),
        (str(model), model / "runs" / "first"),
        (str(model), tmp_path / "link" / "out"),
        (str(tmp_path / "link"), model),
        ("model", Path("model/../model/out")),
        (".", Path("out")),
    ):
        with pytest.raises(ConfigurationError, match="give a folder elsewhere"):
            check_apart(given, folder)
    for given, folder in ((str(model), world), (str(model), world / "model-2"), ("org/name", Path("org/name/out"))):
        check_apart(given, folder)
