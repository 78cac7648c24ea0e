"""Anything as a value function, and nothing odd gets through."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import (
    FingerprintMismatch,
    SoftValueFunction,
    ValueFunction,
    ValueScoreError,
    as_value,
    load_value,
    train_value,
)
from langgraph_amc.value.callables import FOLDER_KINDS, FolderKind
from langgraph_amc.value.checkpoint import SPEC_FILE

from .world import FINGERPRINT, slippery_runs

STATES = [("go ", "act"), ("go ", "act", " fine")]


class Fixed:
    def __init__(self, scores: object) -> None:
        self.scores = scores

    def score(self, transcripts: Sequence[Sequence[str]]) -> object:
        return self.scores


class Soft(Fixed):
    def soft_score(self, transcripts: Sequence[Sequence[str]], beta: float) -> object:
        return [x + beta for x in self.scores]


class CallableScorer(Fixed):
    def __call__(self, text: str) -> float:
        raise AssertionError("score() comes first")


def length(text: str) -> float:
    return len(text)


class Length:
    def __call__(self, text: str) -> float:
        return len(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda transcripts: [len(segments) for segments in transcripts], [2, 3]),
        (lambda transcripts: np.array([0.5, 1.5], dtype=np.float32), [0.5, 1.5]),
        (length, [6, 11]),
        (Length(), [6, 11]),
        (Fixed((0.25, True)), [0.25, 1.0]),
        (Fixed([0.25, None]), [0.25, np.nan]),
        (CallableScorer([1, 2]), [1, 2]),
    ],
)
def test_what_counts_as_a_value_function(given: object, expected: list[float]) -> None:
    value = as_value(given)
    assert isinstance(value, ValueFunction)
    scores = value.score(STATES)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, expected)
    assert as_value(value) is value


def test_a_soft_value_function_stays_one_and_a_plain_one_does_not_become_one() -> None:
    value = as_value(Soft([1.0, 2.0]))
    assert isinstance(value, SoftValueFunction)
    np.testing.assert_allclose(value.soft_score(STATES, 0.5), [1.5, 2.5])
    assert not isinstance(as_value(Fixed([1.0, 2.0])), SoftValueFunction)
    with pytest.raises(ValueScoreError):
        as_value(Soft([1.0, float("inf")])).soft_score(STATES, 0.5)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "1 of them"),
        (0.5, "float"),
        ("01", "str"),
        (["0.5", "0.5"], "text"),
        ([1.0, float("inf")], "infinite"),
        ([1.0, -1e308], r"returned -1e\+308: a value is at most 1e\+100 in size"),
        ([1.0, [2.0]], "no number"),
        (np.zeros((2, 2)), "no number"),
        (None, "NoneType"),
    ],
)
def test_results_that_are_not_one_number_each_are_refused(returned: object, message: str) -> None:
    with pytest.raises(ValueScoreError, match=message):
        as_value(Fixed(returned)).score(STATES)


async def from_afar(transcripts: object) -> list[float]:
    return [0.0]


@pytest.mark.parametrize("given", [3, None, from_afar, Fixed])
def test_other_objects_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError):
        as_value(given)


def judge(transcripts: object) -> float:
    return 0.5


def nothing(text: str) -> float | None:
    return "0.5"  # type: ignore[return-value]


class Judge:
    def __call__(self, transcripts: object) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (judge, "judge"),
        (nothing, "nothing"),
        (partial(judge), "judge"),
        (Judge(), "Judge"),
        (Judge().__call__, r"Judge\.__call__"),
        (lambda transcripts: 0.5, "<lambda>"),
        (Fixed(0.5), "Fixed"),
    ],
)
def test_errors_name_what_the_user_wrote(given: object, name: str) -> None:
    with pytest.raises(ValueScoreError, match=f"^the value function {name} (must return|returned)"):
        as_value(given).score(STATES)


def test_a_checkpoint_has_to_be_there_at_once(tmp_path: Path) -> None:
    for missing in ("nofolder", "", tmp_path / "v"):
        with pytest.raises(ConfigurationError, match=r"no such folder.*amc train-value"):
            as_value(missing)
    with pytest.raises(ConfigurationError, match=SPEC_FILE):
        as_value(tmp_path)


def test_a_path_is_loaded_at_first_use(base: Path, tmp_path: Path) -> None:
    train_value(slippery_runs(tasks=2), base, out=tmp_path / "v", epochs=1)
    value = as_value(str(tmp_path / "v"), FINGERPRINT)
    np.testing.assert_array_equal(value.score(STATES), load_value(tmp_path / "v").score(STATES))
    assert isinstance(value, SoftValueFunction)
    assert (value.soft_score(STATES, 0.1) > value.score(STATES)).all()
    with pytest.raises(FingerprintMismatch):
        as_value(tmp_path / "v", "sha256:other").score(STATES)


@pytest.mark.parametrize("soft", [False, True])
def test_other_kinds_of_folders_say_who_loads_them(soft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, str | None]] = []

    def load(folder: Path, transcript_fingerprint: str | None) -> Soft:
        asked.append((folder, transcript_fingerprint))
        return Soft([1.0, 2.0])

    monkeypatch.setitem(FOLDER_KINDS, "mine.json", FolderKind("load_mine", soft=soft))
    monkeypatch.setattr("langgraph_amc.value.load_mine", load, raising=False)
    (tmp_path / "mine.json").write_text("{}")
    value = as_value(tmp_path, FINGERPRINT)
    assert isinstance(value, SoftValueFunction) == soft
    assert not asked  # not before it is used
    np.testing.assert_array_equal(value.score(STATES), [1.0, 2.0])
    value.score(STATES)
    assert np.isnan(value.inner.uncertainty(3))
    monkeypatch.setattr(Soft, "uncertainty", lambda self, step: step / 10, raising=False)
    assert value.inner.uncertainty(3) == 0.3
    assert asked == [(tmp_path, FINGERPRINT)]


def test_an_address_is_asked_when_it_is_used() -> None:
    value = as_value("http://127.0.0.1:1", FINGERPRINT)
    assert isinstance(value, SoftValueFunction)
    assert isinstance(as_value("HTTPS://value.example"), SoftValueFunction)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import langgraph_amc.value, sys; print('torch' in sys.modules)", "False"),
        (
            "from langgraph_amc.value import as_value; import sys\n"
            "open('amc_value.json', 'w').close()\n"
            "as_value('.'), as_value('http://127.0.0.1:1')\n"
            "print({'torch', 'httpx', 'litellm'} & set(sys.modules))",
            "set()",
        ),
        (
            "import sys; sys.modules['torch'] = None\n"
            "from langgraph_amc.errors import MissingExtraError\n"
            "from langgraph_amc.value import as_value\n"
            "open('amc_value.json', 'w').close()\n"
            "try: as_value('.').score([('go',)])\n"
            "except MissingExtraError as error: print(error)",
            "langgraph-amc[local]",
        ),
    ],
)
def test_torch_is_needed_for_transformers_only(code: str, message: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert message in done.stdout
