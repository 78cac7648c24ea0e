"""Sharing out one request's choices and usage among the clones that made it together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_amc.policy.coalesce import share
from langgraph_amc.policy.retry import AnswerError, no_answer, problem
from langgraph_amc.policy.usage import price
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Rejected:
    """A choice that is no answer; its caller asks again."""

    error: AnswerError


Portion = ChatResult | Rejected | None
"""What a caller gets of a shared request; ``None``: ask alone."""


def split(result: ChatResult, choices: Sequence[ChatGeneration], model: str) -> list[ChatResult]:
    """A result for each choice with its share of the usage; the first one carries the prompt."""
    first = choices[0].message
    usage = first.usage_metadata if isinstance(first, AIMessage) else None
    outputs = inputs = [0] * len(choices)
    if usage is not None:
        inputs = [usage["input_tokens"]] + [0] * (len(choices) - 1)
        outputs = share(usage["output_tokens"], [_length(choice) for choice in choices])
    costs = _split_cost(first.response_metadata.get("response_cost"), inputs, outputs, model)
    results = []
    for i, choice in enumerate(choices):
        metadata = {k: v for k, v in choice.message.response_metadata.items() if k != "response_cost"}
        if costs is not None:
            metadata["response_cost"] = costs[i]
        update: dict[str, Any] = {"response_metadata": metadata}
        counts = {"input_tokens": inputs[i], "output_tokens": outputs[i]}
        counts["total_tokens"] = inputs[i] + outputs[i]
        if usage is not None:
            details = {k: v for k, v in usage.items() if k.endswith("_details")} if i == 0 else {}
            update["usage_metadata"] = {**details, **counts}
        message = choice.message.model_copy(update=update)
        token_usage = {
            "prompt_tokens": inputs[i],
            "completion_tokens": outputs[i],
            "total_tokens": inputs[i] + outputs[i],
        }
        results.append(
            ChatResult(
                generations=[ChatGeneration(message=message, generation_info=choice.generation_info)],
                llm_output={**(result.llm_output or {}), "token_usage": token_usage},
            )
        )
    return results


def _length(choice: ChatGeneration) -> int:
    """How much a choice wrote, in characters, tool calls included."""
    message = choice.message
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return len(str(message.content)) + sum(len(c["name"]) + len(json.dumps(c["args"])) for c in calls) + 1


def _split_cost(cost: float | None, inputs: list[int], outputs: list[int], model: str) -> list[float] | None:
    """Shares of one request's price that add up to it, by list price where known, else by tokens."""
    if cost is None:
        return None
    listed = [price(model, i, o) for i, o in zip(inputs, outputs, strict=True)]
    known = [p for p in listed if p is not None]
    weights: Sequence[float] = (
        known if len(known) == len(listed) and sum(known) > 0 else [i + o for i, o in zip(inputs, outputs, strict=True)]
    )
    mass = sum(weights) or 1
    costs = [cost * w / mass for w in weights[:-1]]
    return [*costs, cost - sum(costs)]


def judged(result: ChatResult, accept_truncated: bool) -> ChatResult | Rejected:
    """One caller's result, or why it is no answer."""
    [choice] = result.generations
    message = choice.message
    fields = {"content": message.content, **message.additional_kwargs}
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        fields["tool_calls"] = True
    kind = problem(fields, (choice.generation_info or {}).get("finish_reason"), accept_truncated)
    return result if kind is None else Rejected(no_answer(kind, usage_in(message)))


def divided(error: AnswerError, count: int) -> list[AnswerError]:
    """The same error for each caller; the first one carries what the request took, where that is known."""
    if error.usage is None:
        return [error] * count
    usages = [replace(error.usage, calls=1), *[Usage(1)] * (count - 1)]
    return [type(error)(str(error), usage) for usage in usages]


def usage_in(message: Any) -> Usage | None:
    """What a message says it took."""
    counts = message.usage_metadata if isinstance(message, AIMessage) else None
    if counts is None:
        return None
    return Usage(1, counts["input_tokens"], counts["output_tokens"], message.response_metadata.get("response_cost"))
