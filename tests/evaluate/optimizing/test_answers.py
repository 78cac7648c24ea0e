"""Answers on the disk: whose they are, in which order they are given out, and what never goes there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.tools import tool

import langgraph_amc as amc
from langgraph_amc.evaluate.optimizing.answers import asking_as, paid_answers
from langgraph_amc.skills import Skill, SkillLibrary, using
from tests.support.openai_server import OpenAIServer

LIBRARY = SkillLibrary((Skill("desk", "How to quote.", "Weigh first."),))


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def model(server: OpenAIServer, **options: Any) -> Any:
    return amc.chat_model("openai/test-model", api_base=server.base_url, api_key="test", **options)


def test_answers_are_given_out_again_to_whom_they_were_given_in_their_order(
    server: OpenAIServer, tmp_path: Path
) -> None:
    def asked() -> list[str]:
        chat = model(server)
        said = []
        with asking_as("a"):
            said += [chat.invoke("Hello").text, chat.invoke("Hello").text, chat.invoke("Bye").text]
        with asking_as("b"):
            said.append(chat.invoke("Hello").text)
        with asking_as("a"), using(LIBRARY):
            said.append(chat.invoke("Hello").text)
        return said

    with paid_answers(tmp_path / "answers.sqlite") as answers:
        first = asked()
        assert answers.given == 0
    assert first == [f"answer {n}" for n in range(5)]
    with paid_answers(tmp_path / "answers.sqlite") as answers:
        assert asked() == first
        assert answers.given == 5
    assert len(server.requests) == 5
    assert get_llm_cache() is None


def test_tool_calls_come_back_whole_and_cost_nothing(server: OpenAIServer, tmp_path: Path) -> None:
    call = {"name": "weigh", "arguments": '{"kg": 2}'}
    server.reply = lambda body, number: {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
    }

    @tool
    def weigh(kg: int) -> str:
        """Weigh."""
        return ""

    chat = model(server, max_tokens=50).bind_tools([weigh])
    said = []
    for _ in range(2):
        with paid_answers(tmp_path / "answers.sqlite"), asking_as("a"), amc.Budget(tokens=10**6).open() as account:
            said.append(chat.invoke("Hello"))
            spent = account.spent.tokens
    assert said[0].tool_calls == said[1].tool_calls
    assert said[1].tool_calls[0]["args"] == {"kg": 2}
    assert spent == 0
    assert len(server.requests) == 1


def test_calls_outside_and_local_models_are_left_alone(server: OpenAIServer, tmp_path: Path) -> None:
    from langchain_litellm import ChatLiteLLM

    from tests.support.tiny_models import save_tiny

    save_tiny(tmp_path / "model", num_hidden_layers=1)
    local = ChatLiteLLM(model=f"amc-local/{tmp_path / 'model'}", max_tokens=1)
    cache = InMemoryCache()
    set_llm_cache(cache)
    try:
        with paid_answers(tmp_path / "answers.sqlite") as answers:
            assert [model(server).invoke("Hello").text for _ in range(2)] == ["answer 0", "answer 0"]  # the user's
            with asking_as("a"):
                local.invoke("Hello")
                model(server, cache=False).invoke("Hello")
            assert answers.given == 0
        assert get_llm_cache() is cache
    finally:
        set_llm_cache(None)
    with paid_answers(tmp_path / "answers.sqlite") as answers, asking_as("a"):
        local.invoke("Hello")
        model(server, cache=False).invoke("Hello")
        assert answers.given == 0
    assert len(server.requests) == 3


def test_a_file_that_is_none_of_ours_is_said(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").write_text("notes " * 1000)
    with pytest.raises(amc.ConfigurationError, match="cannot keep answers"), paid_answers(tmp_path / "answers.sqlite"):
        pass
