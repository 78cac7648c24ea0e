"""Toolformer's filter: the losses by hand, and on a model that has learnt to read one tool and not another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from langgraph_amc_trl import SFT, Example, LocalLoss, filter_calls, judge_calls, train_on_runs
from langgraph_amc_trl.rendering import calls_of, codec_of
from langgraph_amc_trl.tuning import load_model

from langgraph_amc.errors import ConfigurationError
from tests.support.tiny_models import save_tiny

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def said(role: str, content: str, *names: str) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    return {"role": role, "content": content, **({"tool_calls": calls} if calls else {})}


def example(letter: str, noise: str) -> Example:
    """Two calls: the answer is what the first one says, the second one says something else."""
    completion = (
        said("assistant", "", "see", "hum"),
        said("tool", letter),
        said("tool", noise),
        said("assistant", letter),
    )
    return Example("t", letter + noise, (said("user", "?"),), completion, 1.0)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that answers with what ``see`` said, or by chance where it does not know."""
    folder = tmp_path_factory.mktemp("reader")
    start = save_tiny(folder / "tiny", template=TEMPLATE, num_hidden_layers=1, initializer_range=0.1)
    rows = [example(letter, noise) for letter in "abc" for noise in "xyz"]
    tuned = train_on_runs(rows, model=start, out=folder / "out", method=SFT(learning_rate=1e-2, epochs=80, batch=9))
    assert tuned.steps[-1]["loss"] < 0.02
    return Path(tuned.model)


def test_a_call_is_kept_for_what_its_result_says(reader: Path) -> None:
    loss = LocalLoss(reader)
    seen, hummed = judge_calls(example("b", "y"), loss)
    assert (seen.tool, seen.at, seen.number) == ("see", 1, 0)
    assert seen.gain > 0.5 > hummed.gain
    kept, counts = filter_calls([example("b", "y"), example("c", "x")], loss, threshold=0.5)
    assert counts == {"kept": 2, "dropped": 2}
    assert kept[0].completion == (said("assistant", "", "see"), said("tool", "b"), said("assistant", "b"))
    only, counts = filter_calls([example("b", "y")], loss, threshold=0.5, only={"see"})
    assert (only, counts) == ((example("b", "y"),), {"kept": 1, "dropped": 0})


def test_the_three_losses_are_those_of_the_paper(reader: Path) -> None:
    codec, model = codec_of(reader), load_model(reader, "cpu")
    one = Example(
        "t",
        "r",
        (said("user", "?"),),
        (said("assistant", "", "see"), said("tool", "b"), said("assistant", "bcdabc")),
        1.0,
    )
    question, (call, result, answer) = one.prompt[0], one.completion

    def loss(*before: Any) -> float:
        [asked] = calls_of(codec, before, [answer])
        logits = model(torch.tensor([asked.prompt + asked.answer])).logits[0].log_softmax(-1)
        total = weight = 0.0
        for t, token in enumerate(asked.answer):
            w = max(0.0, 1.0 - 0.2 * t)
            total, weight = total - w * logits[len(asked.prompt) - 1 + t, token].item(), weight + w
        return total / weight

    [judged] = judge_calls(one, LocalLoss(reader, decay=0.2))
    assert judged.with_result == pytest.approx(loss(question, call, result), rel=1e-4)
    assert judged.without_call == pytest.approx(loss(question), rel=1e-4)
    assert judged.without_result == pytest.approx(loss(question, call, {**result, "content": ""}), rel=1e-4)
    assert judged.gain == min(judged.without_call, judged.without_result) - judged.with_result


def test_a_call_after_which_nothing_was_said_stays(reader: Path) -> None:
    last = Example("t", "r", (said("user", "?"),), (said("assistant", "", "see"), said("tool", "b")), 1.0)
    assert filter_calls([last], LocalLoss(reader)) == ((last,), {"kept": 0, "dropped": 0})


def test_settings_that_cannot_work_are_named(reader: Path) -> None:
    with pytest.raises(ConfigurationError, match="decay"):
        LocalLoss(reader, decay=2.0)
    with pytest.raises(ConfigurationError, match="threshold"):
        filter_calls([], LocalLoss(reader), threshold=float("nan"))
    for only in (["serach"], "see"):
        with pytest.raises(ConfigurationError, match=f"only=.*{only[0]}.*see"):
            filter_calls([Example("t", "r", (), (said("assistant", "", "see"),), 1.0)], LocalLoss(reader), only=only)
