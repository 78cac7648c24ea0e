"""Saved tiny causal language models, shared by the tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from .world import saved_base, tiny_config


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def any_base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved causal language model: Llama, then Qwen2 with grouped queries."""
    return saved_base(tmp_path_factory.mktemp(request.param), tiny_config(request.param))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_base(tmp_path_factory.mktemp("base"), tiny_config())
