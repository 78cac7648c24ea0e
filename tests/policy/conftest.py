"""Fixtures of the policy tests: a real HTTP server and real, tiny, random models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.openai_server import OpenAIServer
from tests.support.tiny_models import CHATML_TOOLS, byte_tokenizer, save_tiny, tiny_model


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def tool_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tools", template=CHATML_TOOLS)


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Any]]:
    from langgraph_amc.policy.engine import BatchEngine

    engines = []

    def make(kind: str = "llama", changes: dict[str, Any] | None = None, **options: Any) -> Any:
        engine = BatchEngine(tiny_model(kind, **(changes or {})), byte_tokenizer(), **options)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
