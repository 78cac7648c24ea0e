"""``chat_model``: any model LiteLLM knows as a LangChain chat model that asks once for all clones."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError


def chat_model(model: str, **options: Any) -> BaseChatModel:
    """A chat model through LiteLLM whose identical concurrent calls from clones become one request.

    Parameters
    ----------
    model: LiteLLM's name, for example ``"openai/gpt-5.1"`` or ``"amc-local/path/to/model"``.
    options: of ``ChatLiteLLM`` and `CoalescingChatLiteLLM` (``limits``, ``retry``, ``accept_truncated``,
        ``coalesce_window``, ``vary_seed``); whatever they do not know (``seed``, ``reasoning_effort``, ...) goes
        with each request.
    """
    if "max_retries" in options:
        raise ConfigurationError("retries are set in one place: chat_model(…, retry=Retry(attempts=…))")
    from langgraph_amc.policy.litellm_chat import CoalescingChatLiteLLM

    fields = CoalescingChatLiteLLM.model_fields.keys() | {"base_url"}
    own = {name: value for name, value in options.items() if name in fields}
    request = {name: value for name, value in options.items() if name not in fields}
    if request:
        own["model_kwargs"] = {**own.get("model_kwargs", {}), **request}
    return CoalescingChatLiteLLM(model=model, **own)
