"""Asking a chat model for a score: with a schema where the model takes one, and what its failures mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.retry import AnswerError
from langgraph_amc.value.judges.reading import Reading, Scale, read_fields, read_text

ANSWER_TOKENS = 1024
"""``max_tokens`` of a judge that is given by its name: budgets reckon with it."""
_REFUSES_SCHEMA = frozenset({400, 404, 415, 422, 501})
_FATAL = frozenset({401, 402, 403, 404})
"""A bad key, an empty purse, no access, no such model: no later call will fare better."""
_STOPPED_SHORT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "content_filter", "safety"})


def open_model(model: BaseChatModel | str) -> BaseChatModel:
    """A chat model as it is, or the one with this LiteLLM name, for example ``"openai/gpt-5.1-mini"``."""
    if isinstance(model, str):
        return chat_model(model, max_tokens=ANSWER_TOKENS)
    if not isinstance(model, BaseChatModel):
        raise ConfigurationError(
            f"a judge is a LangChain chat model or the name of one, such as 'openai/gpt-5.1', got {model!r}"
        )
    return model


class Asker:
    """One chat model, asked by schema (its provider's JSON output or a tool call) until it turns out to refuse them."""

    def __init__(self, model: BaseChatModel, schema: Mapping[str, Any]) -> None:
        self._model = model
        self._by_schema = _by_schema(model, schema)

    def ask(self, messages: Callable[[bool], list[BaseMessage]]) -> AIMessage:
        """The model's answer to ``messages(as_json)``; its errors are raised."""
        by_schema = self._by_schema
        if by_schema is None:
            return self._in_words(messages)
        try:
            found: AIMessage = by_schema.invoke(messages(True))["raw"]
            return found
        except Exception as error:
            if _status(error) not in _REFUSES_SCHEMA:
                raise
            answer = self._in_words(messages)  # if the fault lies elsewhere, this fails as well
            self._by_schema = None
            return answer

    def _in_words(self, messages: Callable[[bool], list[BaseMessage]]) -> AIMessage:
        return self._model.invoke(messages(False))


def read_message(message: AIMessage, scale: Scale) -> Reading:
    """The score in a model's message: in its one tool call, or in its text."""
    metadata = message.response_metadata
    reasons = {str(metadata.get(key)).lower() for key in ("finish_reason", "stop_reason")}
    if reasons & _STOPPED_SHORT:
        return Reading(None, "it was cut off")
    if message.invalid_tool_calls or len(message.tool_calls) > 1:
        return Reading(None, "its tool call cannot be read")
    if message.tool_calls:
        return read_fields(message.tool_calls[0]["args"], scale)
    return read_text(str(message.text), scale)


def is_fatal(error: Exception) -> bool:
    """Whether a failed call is about more than one answer: a budget, a key, a model that does not exist.

    Any other failure, after the model's own retries, leaves the one state without a score.
    """
    if isinstance(error, AMCError):
        return not isinstance(error, AnswerError)
    unknown = "LLM Provider NOT provided" in str(error)  # LiteLLM: a bad request like any other
    return unknown or _status(error) in _FATAL or isinstance(error, NotImplementedError | ImportError)


def _by_schema(model: BaseChatModel, schema: Mapping[str, Any]) -> Runnable[Any, Any] | None:
    try:
        return model.with_structured_output(dict(schema), include_raw=True)
    except (NotImplementedError, ValueError, TypeError, ImportError):  # each integration has its own way to say no
        return None


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)  # of the HTTP answer, on the errors of LiteLLM and of the SDKs
    return status if isinstance(status, int) else None
