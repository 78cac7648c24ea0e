"""Histories: torn ends, other runs, kills at any moment, and replay to the same hash by three different hands."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from langgraph_amc.evolution.asktell import ask, tell
from langgraph_amc.evolution.errors import HistoryError, WeightsError
from langgraph_amc.evolution.history import Header, History, Record, read
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.replay import load, replay, resume
from langgraph_amc.evolution.schedules import Automatic, Cosine
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.weights import Weights
from tests.evolution import models, numpy_update
from tests.evolution.runs import rewards_of, run

CASES = {
    "low-rank": Strategy(population=6, sigma=Cosine(0.02, 0.01, 4), rank=2, seed=11),
    "gaussian": Strategy(population=6, sigma=Automatic(0.01), rank=1, noise="gaussian", seed=12),
    "full": Strategy(population=4, sigma=0.01, rank=None, antithetic=False, shaping="ranks", seed=13),
    "decay": Strategy(population=4, sigma=0.01, rank=1, decay=0.03, trust_region=1e-3, shaping="none", seed=14),
}


@pytest.mark.parametrize("strategy", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", [models.llama, models.gpt2], ids=["llama", "gpt2"])
def test_replay_by_numpy_and_in_parts_gives_the_same_hashes(make, dtype, strategy, tmp_path):
    folder, file = tmp_path / "model", tmp_path / "history.jsonl"
    make(dtype).save_pretrained(folder)
    anchor = folder if strategy.decay else None
    run(folder, file, strategy, 2, anchor=anchor)
    tuned = run(folder, file, strategy, 4, anchor=anchor)  # goes on
    log = read(file)
    weights, hashes = numpy_update.replay(file, folder)
    assert hashes == [log.header.weights, *(r.weights for r in log.records)]
    assert len(set(hashes)) == 5
    assert hashes[-1] == tuned.hash()
    for entry in tuned.layout.entries:
        np.testing.assert_array_equal(tuned.master(entry).numpy(), weights[entry.name])
    again = replay(file, folder, verify="every")
    for ours, theirs in zip(again.model.parameters(), tuned.model.parameters(), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs)
    assert replay(file, folder, dtype=torch.float32).hash() == hashes[-1]


def test_replay_in_a_fresh_process(tmp_path):
    folder, file = tmp_path / "model", tmp_path / "history.jsonl"
    models.gpt2(torch.bfloat16).save_pretrained(folder)
    tuned = run(folder, file, CASES["decay"], 3, anchor="copy")
    script = (
        "import sys; from langgraph_amc.evolution.replay import replay\n"
        "print('hash', replay(sys.argv[1], sys.argv[2], verify='every').hash())"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file), str(folder)], capture_output=True, text=True)
    assert f"hash {tuned.hash()}" in done.stdout, done.stderr


def test_resume_after_kills_at_random_moments(tmp_path):
    """Real processes, killed with SIGKILL after a random while, until one comes through."""
    folder, file = tmp_path / "model", tmp_path / "history.jsonl"
    models.llama(torch.bfloat16).save_pretrained(folder)
    strategy, generations = CASES["gaussian"], 12
    whole = run(models.llama(torch.bfloat16), tmp_path / "whole.jsonl", strategy, generations)
    fork = multiprocessing.get_context("fork")
    rng, kills = random.Random(0), 0

    def length() -> int:
        return file.stat().st_size if file.exists() else 0

    for _ in range(4 * generations):
        before, patience = length(), time.monotonic() + 60
        process = fork.Process(target=run, args=(models.llama(torch.bfloat16), file, strategy, generations))
        process.start()
        while process.is_alive() and length() == before and time.monotonic() < patience:
            time.sleep(0.001)
        process.join(rng.choice([0, 0.001, 0.003, 0.01, 0.03]))  # anywhere in the next generations
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            continue
        assert process.exitcode == 0, "a run that goes on after a kill comes through"
        break
    assert kills >= 3
    assert read(file).weights == whole.hash()
    strip = [json.dumps(json.loads(line)) for line in file.read_text().splitlines()]
    assert strip == [json.dumps(json.loads(line)) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]


def _records(strategy: Strategy, count: int) -> list[Record]:
    from langgraph_amc.evolution.asktell import State

    state, found = State(), []
    for number in range(count):
        rewards = rewards_of(strategy, number)
        update, state = tell(strategy, state, ask(strategy, state), rewards)
        found.append(Record(update, rewards, state, f"hash {number}", {"seconds": 1.5}))
    return found


HEADER = Header(CASES["decay"], "all", "layout", "start", {"model": "m"})


def test_a_file_torn_at_any_byte_is_the_run_before(tmp_path):
    records = _records(CASES["decay"], 3)
    whole = tmp_path / "whole.jsonl"
    with History(whole, HEADER) as history:
        for record in records:
            history.append(record)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    torn = tmp_path / "torn.jsonl"
    for cut in sorted({*range(0, len(data), 29), *(e + d for e in ends for d in (-1, 0, 1))}):
        torn.write_bytes(data[:cut])
        lines = sum(end <= cut for end in ends)
        if lines:
            assert len(read(torn).records) == lines - 1
        else:
            with pytest.raises(HistoryError, match="empty"):
                read(torn)
        with History(torn, HEADER) as history:
            assert history.log.state.number == max(lines - 1, 0)
            for record in records[history.log.state.number :]:
                history.append(record)
        assert torn.read_bytes() == data


def test_a_page_that_never_reached_the_disk(tmp_path):
    file = tmp_path / "history.jsonl"
    with History(file, HEADER) as history:
        history.append(_records(CASES["decay"], 1)[0])
    for tail in (b"\0" * 100, b"\0" * 100 + b"\n", b'{"record":"gener\n'):
        data = file.read_bytes()
        file.write_bytes(data + tail)
        assert len(read(file).records) == 1
        with History(file, HEADER) as history:
            assert history.log.state.number == 1
        assert file.read_bytes() == data


def test_records_come_back_as_they_were(tmp_path):
    records = _records(CASES["low-rank"], 2)
    with History(tmp_path / "deep" / "history.jsonl", HEADER) as history:
        for record in records:
            history.append(record)
    log = read(history.path)
    assert log.header == HEADER
    for found, wanted in zip(log.records, records, strict=True):
        assert (found.update, found.state, found.weights, found.notes) == (
            wanted.update,
            wanted.state,
            wanted.weights,
            wanted.notes,
        )
        np.testing.assert_array_equal(found.rewards, wanted.rewards)


def test_damage_is_named_by_its_line(tmp_path):
    file = tmp_path / "history.jsonl"
    with History(file, HEADER) as history:
        for record in _records(CASES["decay"], 3):
            history.append(record)
    lines = file.read_bytes().splitlines(keepends=True)
    for broken, line in (
        ([*lines[:2], b"{}\n", *lines[3:]], 3),
        ([*lines[:2], *lines[3:]], 3),
        ([b'{"record":"start","format":99}\n', *lines[1:]], 1),
        ([lines[0], lines[1].replace(b'"scale"', b'"scales"'), *lines[2:]], 2),
    ):
        file.write_bytes(b"".join(broken))
        with pytest.raises(HistoryError, match=f"line {line}"):
            read(file)
        with pytest.raises(HistoryError, match=f"line {line}"):
            History(file, HEADER)
        assert file.read_bytes() == b"".join(broken), "a damaged history is left for its owner to look at"
    with pytest.raises(HistoryError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"strategy": CASES["full"]}, "strategy"),
        ({"scope": "linear"}, "scope"),
        ({"layout": "other"}, "parameters"),
        ({"weights": "other"}, "starting weights"),
    ],
)
def test_another_run_s_history(change, what, tmp_path):
    History(tmp_path / "h.jsonl", HEADER).close()
    with pytest.raises(HistoryError, match=what):
        History(tmp_path / "h.jsonl", replace(HEADER, **change))
    History(tmp_path / "h.jsonl", replace(HEADER, about={"moved": True})).close()


def test_one_writer_and_generations_in_order(tmp_path):
    records = _records(CASES["decay"], 2)
    with History(tmp_path / "h.jsonl", HEADER) as history:
        with pytest.raises(HistoryError, match="another process"):
            History(tmp_path / "h.jsonl", HEADER)
        with pytest.raises(HistoryError, match="next"):
            history.append(records[1])
        history.append(records[0])
        with pytest.raises(HistoryError, match="next"):
            history.append(records[0])
    History(tmp_path / "h.jsonl", HEADER).close()


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """A writer whose files may not grow: the line that does not fit is not there at all."""
    file = tmp_path / "h.jsonl"
    records = _records(CASES["decay"], 2)
    with History(file, HEADER) as history:
        history.append(records[0])
        whole = file.read_bytes()

        def write() -> None:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, len(whole) + 50))
            try:
                history.append(records[1])
            except OSError:
                os._exit(7)

        process = multiprocessing.get_context("fork").Process(target=write)
        process.start()
        process.join()
        assert process.exitcode == 7
        assert file.read_bytes() == whole


def test_the_wrong_weights_are_told(tmp_path):
    folder, file = tmp_path / "model", tmp_path / "history.jsonl"
    models.llama().save_pretrained(folder)
    run(folder, file, CASES["low-rank"], 2)
    log = read(file)

    def weights(model):
        return Weights(model, layout(model))

    with pytest.raises(HistoryError, match="started from"):
        resume(log, weights(models.llama(seed=1)))
    with pytest.raises(HistoryError, match="parameters"):
        resume(log, weights(models.gpt2()))
    with pytest.raises(HistoryError, match="started from"):
        replay(file, folder, dtype=torch.bfloat16)
    lines = file.read_text().splitlines()
    edited = json.loads(lines[1])
    edited["update"]["coefficients"][0] += 1
    file.write_text("\n".join([lines[0], json.dumps(edited), lines[2], ""]))
    with pytest.raises(WeightsError, match="generation 1"):
        replay(file, folder)
    with pytest.raises(WeightsError, match="generation 0"):
        replay(file, folder, verify="every")
    assert load(folder).training is False


def test_waiting_is_not_needed_for_an_uncontended_lock(tmp_path):
    """The lock goes with the process that held it, however it ended."""
    file = tmp_path / "h.jsonl"

    def hold() -> None:
        with History(file, HEADER):
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    while not file.exists() or not file.read_bytes().endswith(b"\n"):
        time.sleep(0.01)
    with pytest.raises(HistoryError, match="another process"):
        History(file, HEADER)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    History(file, HEADER).close()


@pytest.mark.parametrize("held", [b"my precious notes, one line\n", b"[1]\n", b'{"a": 1}'])
def test_a_file_that_is_no_history_is_left_alone(tmp_path, held):
    path = tmp_path / "history.jsonl"
    path.write_bytes(held)
    with pytest.raises(HistoryError):
        History(path, Header(Strategy(population=4), "all", "l", "w"))
    assert path.read_bytes() == held
