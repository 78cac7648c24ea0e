"""``chat_model``: any model LiteLLM knows as a LangChain chat model that asks once for all clones."""

from __future__ import annotations

import difflib
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError


def chat_model(model: str, **options: Any) -> BaseChatModel:
    """A chat model through LiteLLM whose identical concurrent calls from clones become one request.

    The first call of this function imports LiteLLM, which takes seconds.

    Parameters
    ----------
    model: LiteLLM's name, for example ``"openai/gpt-5.1"`` or ``"amc-local/path/to/model"``.
    options: of ``ChatLiteLLM`` and `CoalescingChatLiteLLM` (``limits``, ``retry``, ``accept_truncated``,
        ``coalesce_window``, ``vary_seed``, and ``instructions``, the text of a skill library); what else LiteLLM
        knows (``seed``, ``reasoning_effort``, ...) goes with each request. What only the provider knows belongs in
        ``model_kwargs={…}``.

    Raises ConfigurationError for an argument that nobody knows.
    """
    if "max_retries" in options:
        raise ConfigurationError("retries are set in one place: chat_model(…, retry=Retry(attempts=…))")
    from langgraph_amc.policy.litellm_chat import CoalescingChatLiteLLM, request_parameters

    fields = CoalescingChatLiteLLM.model_fields.keys() | {"base_url"}
    own = {name: value for name, value in options.items() if name in fields}
    request = {name: value for name, value in options.items() if name not in fields}
    if request:
        _check(request, fields, request_parameters(model, options.get("custom_llm_provider")))
        own["model_kwargs"] = {**own.get("model_kwargs", {}), **request}
    return CoalescingChatLiteLLM(model=model, **own)


def _check(request: dict[str, Any], fields: set[str], known: frozenset[str]) -> None:
    for name in request:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(fields | known), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigurationError(
                f"chat_model has no argument {name!r}: {hint}What only the provider knows goes into "
                f"model_kwargs={{{name!r}: …}}"
            )
