"""Toolformer's filter (Schick et al. 2023, section 2): a tool call is kept if its result helps to say what follows.

For a call c with result r, before the text x that the model goes on with, three losses are compared:

    L+ = L(x | c, r)        L- = min( L(x | no call), L(x | c, without r) )        keep if  L- - L+ >= threshold

L is the mean negative log-probability of what the policy said next, its first tokens counting most: token t has a
weight proportional to max(0, 1 - decay * t), with decay = 0.2 in the paper. So only the first 1/decay tokens count at
all; agents say more than that before a result shows, hence a smaller default.

Unlike in the paper, calls stand in a conversation and are judged where they stand: messages after the result are the
same in all three. What is judged is the information in a result, so the filter is for tools that read. A call that
changes a world (buys, writes, moves) may be right without helping to predict anything: name the tools that read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from langgraph_amc.checks import check_items, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc_trl.conversations import ASSISTANT, Message, Tool
from langgraph_amc_trl.examples import Example
from langgraph_amc_trl.rendering import calls_of, codec_of
from langgraph_amc_trl.sequences import Call

THRESHOLD, DECAY = 1.0, 0.05


class Loss(Protocol):
    """How surprising what was said next is, after these messages."""

    def __call__(self, before: Sequence[Message], said: Message, tools: Sequence[Tool]) -> float: ...


@dataclass(frozen=True, slots=True)
class CallLoss:
    """One tool call of an example.

    Attributes
    ----------
    at: place of the message that makes it, in prompt and completion together. number: of the call in that message.
    with_result, without_call, without_result: the three losses.
    """

    at: int
    number: int
    tool: str
    with_result: float
    without_call: float
    without_result: float

    @property
    def gain(self) -> float:
        """By how much call and result together lower the loss, at least."""
        return min(self.without_call, self.without_result) - self.with_result


class LocalLoss:
    """The loss of a local model, in nats per token.

    Parameters
    ----------
    model: its folder. decay: how fast later tokens count less; 0 counts all alike. device: as for `BatchEngine`.
    """

    def __init__(self, model: str | Path, *, decay: float = DECAY, device: str | None = None) -> None:
        from langgraph_amc_trl.tuning import load_model

        if not is_number(decay) or not 0 <= decay <= 1:
            raise ConfigurationError(f"decay lies in [0, 1], got {decay!r}: the paper's is 0.2")
        self._codec = codec_of(model)
        self._model = load_model(model, device).eval()
        self._decay = decay

    def __call__(self, before: Sequence[Message], said: Message, tools: Sequence[Tool]) -> float:
        """Weighted mean of −log p over the tokens of ``said``."""
        [call] = calls_of(self._codec, before, [said], tools)
        return self._loss(call)

    def _loss(self, call: Call) -> float:
        import torch

        ids = torch.tensor([call.prompt + call.answer], device=self._model.device)
        with torch.inference_mode():
            logits = self._model(ids).logits[0, len(call.prompt) - 1 : -1].float()
        surprise = -logits.log_softmax(-1).gather(-1, ids[0, len(call.prompt) :, None])[:, 0]
        weights = (1.0 - self._decay * torch.arange(len(surprise), device=surprise.device)).clamp(min=0.0)
        return float((weights * surprise).sum() / weights.sum())


def judge_calls(
    example: Example, loss: Loss, *, tools: Sequence[Tool] = (), only: Collection[str] | None = None
) -> tuple[CallLoss, ...]:
    """The losses around each tool call of an example after whose result the policy went on.

    Parameters
    ----------
    loss: e.g. a `LocalLoss` of the model that is to be trained.
    only: names of the tools to judge; by default all.
    """
    messages = (*example.prompt, *example.completion)
    found: list[CallLoss] = []
    for at in range(len(example.prompt), len(messages)):
        for number, call in enumerate(_calls(messages[at])):
            name = call["function"]["name"]
            result = _result(messages, at, number)
            follows = None if result is None else _next_answer(messages, result)
            if follows is None or (only is not None and name not in only):
                continue
            assert result is not None
            before, said = messages[:follows], messages[follows]
            emptied = (*before[:result], {**before[result], "content": ""}, *before[result + 1 :])
            found.append(
                CallLoss(
                    at,
                    number,
                    name,
                    with_result=loss(before, said, tools),
                    without_call=loss(_without(before, {(at, number)}), said, tools),
                    without_result=loss(emptied, said, tools),
                )
            )
    return tuple(found)


def filter_calls(
    examples: Iterable[Example],
    loss: Loss,
    *,
    threshold: float = THRESHOLD,
    tools: Sequence[Tool] = (),
    only: Collection[str] | None = None,
) -> tuple[tuple[Example, ...], Mapping[str, int]]:
    """The examples without the calls that did not help, with their results; and how many calls were kept and dropped.

    Each call is judged in the conversation as it was, as in the paper; those that cannot be judged (nothing was said
    after them) stay.

    Parameters
    ----------
    threshold: least gain in nats per token. The others are as in `judge_calls`.

    Raises
    ------
    ConfigurationError: no example calls, and ``tools`` has not, a tool of ``only``.
    """
    if not is_number(threshold):
        raise ConfigurationError(f"threshold is a number, got {threshold!r}")
    given = check_items("examples", examples, Example)
    if only is not None:
        _check_tools(only, given, tools)
    kept, counts = [], {"kept": 0, "dropped": 0}
    for example in given:
        judged = judge_calls(example, loss, tools=tools, only=only)
        dropped = {(call.at, call.number) for call in judged if call.gain < threshold}
        counts["kept"] += len(judged) - len(dropped)
        counts["dropped"] += len(dropped)
        messages = _without((*example.prompt, *example.completion), dropped)
        completion = messages[len(example.prompt) :]
        kept.append(replace(example, completion=completion) if dropped else example)
    return tuple(kept), counts


def _check_tools(only: Collection[str], examples: Sequence[Example], tools: Sequence[Tool]) -> None:
    known = {tool["function"]["name"] for tool in tools}
    known |= {call["function"]["name"] for e in examples for m in e.completion for call in _calls(m)}
    if isinstance(only, str) or (unknown := sorted(set(only) - known)):
        wrong = repr(only) if isinstance(only, str) else ", ".join(unknown)
        raise ConfigurationError(
            f"only={wrong}: name tools of these runs: {', '.join(sorted(known)) or 'there are none'}"
        )


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    return calls if message["role"] == ASSISTANT else ()


def _result(messages: Sequence[Message], at: int, number: int) -> int | None:
    """Where the result of a call is: results follow their calls in order."""
    place = at + 1 + number
    there = place < len(messages) and all(m["role"] == "tool" for m in messages[at + 1 : place + 1])
    return place if there else None


def _next_answer(messages: Sequence[Message], after: int) -> int | None:
    return next((i for i in range(after + 1, len(messages)) if messages[i]["role"] == ASSISTANT), None)


def _without(messages: Sequence[Message], dropped: Collection[tuple[int, int]]) -> tuple[Message, ...]:
    """The messages without some calls and their results; one that made no other call goes whole."""
    found: list[Message] = []
    gone = {result for at, number in dropped if (result := _result(messages, at, number)) is not None}
    for place, message in enumerate(messages):
        calls = _calls(message)
        left = [call for number, call in enumerate(calls) if (place, number) not in dropped]
        if place in gone or (calls and not left):
            continue
        found.append(message if len(left) == len(calls) else {**message, "tool_calls": left})
    return tuple(found)
