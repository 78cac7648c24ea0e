"""The reward: an evaluator of the LangSmith/openevals form."""

from typing import Any


def correct(outputs: dict[str, Any], reference_outputs: int) -> bool:
    """Whether the last message is the right number."""
    return str(outputs["messages"][-1].content).strip() == str(reference_outputs)
