"""Settings that cannot work are refused with words that say what to do; what is counted is exact."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langgraph_amc_trl import GRPO

from langgraph_amc.errors import ConfigurationError

BAD: list[tuple[str, Any]] = [
    *((name, 0) for name in ("steps", "tasks", "epochs", "minibatches", "accumulation", "learning_rate", "clip")),
    *((name, "1") for name in ("steps", "group", "learning_rate", "beta", "seed")),
    *((name, math.nan) for name in ("learning_rate", "clip", "beta", "temperature", "max_grad_norm", "weight_decay")),
    *((name, -1) for name in ("warmup", "seed", "beta", "weight_decay", "max_grad_norm")),
    ("steps", True),
    ("steps", 1.5),
    ("group", 1),
    ("clip", 1.0),
    ("temperature", 0.0),
    ("temperature", math.inf),
    ("scale", "unit"),
    ("minibatches", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_setting_that_cannot_work_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        GRPO(**{name: value})


def test_what_a_run_takes() -> None:
    method = GRPO(steps=10, tasks=4, group=6, epochs=3, minibatches=2, accumulation=4)
    assert (method.batch, method.trajectories) == (24, 240)
    assert (method.passes, method.updates, method.on_policy) == (8, 6, False)
    assert GRPO(accumulation=4).on_policy
