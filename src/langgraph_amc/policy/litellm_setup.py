"""The one place that imports LiteLLM: late, offline, quiet, and with the local provider registered."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Any

from langgraph_amc.policy.usage import LOCAL_PROVIDER


@functools.cache
def load_litellm() -> Any:
    """Import LiteLLM once (seconds) and return the module; ``amc-local/<path>`` is served from then on.

    Settings that the user has made in the environment or on the module stay as they are, but for two: LiteLLM
    prints no advertisement on errors, and puts no prompt into its exceptions.
    """
    # Otherwise the import fetches a price list from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Its typed dictionaries make pydantic warn about every one of them.
    warnings.filterwarnings("ignore", message=".*using the `ReadOnly` qualifier", category=UserWarning)
    import litellm

    litellm.suppress_debug_info = True
    litellm.redact_messages_in_exceptions = True
    if "LITELLM_LOG" not in os.environ:
        logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    from langgraph_amc.policy.local import LocalProvider

    if all(item["provider"] != LOCAL_PROVIDER for item in litellm.custom_provider_map):
        litellm.custom_provider_map.append({"provider": LOCAL_PROVIDER, "custom_handler": LocalProvider()})
        litellm.utils.custom_llm_setup()
    return litellm
