"""Pairs and examples as files and data sets in TRL's conversational format, for a training script of one's own.

Columns are TRL's: ``prompt``, ``chosen`` and ``rejected``; ``prompt`` and ``completion``, for KTO with ``label``;
``tools`` as JSON text where tools are given. What TRL does not know (task, run, returns) it leaves alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.files import write_whole
from langgraph_amc_trl.conversations import Message, Tool
from langgraph_amc_trl.examples import Example
from langgraph_amc_trl.pairs import Pair

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")
Item = Pair | Example


def row_of(item: Item, tools: Sequence[Tool] = ()) -> dict[str, Any]:
    """One pair or example as plain data."""
    more = {"tools": json.dumps(list(tools))} if tools else {}
    if isinstance(item, Pair):
        return {
            "prompt": list(item.prompt),
            "chosen": list(item.chosen),
            "rejected": list(item.rejected),
            **more,
            "chosen_return": item.chosen_return,
            "rejected_return": item.rejected_return,
            "step": item.step,
            "task": item.task,
            "run": item.run,
        }
    label = {} if item.desirable is None else {"label": item.desirable}
    return {
        "prompt": list(item.prompt),
        "completion": list(item.completion),
        **label,
        **more,
        "return": item.returned,
        "task": item.task,
        "run": item.run,
    }


def to_dataset(items: Iterable[Item], tools: Sequence[Tool] = ()) -> Dataset:
    """A Hugging Face data set; arguments of tool calls keep their shapes, whatever the tools."""
    from datasets import Dataset

    return Dataset.from_list([row_of(item, tools) for item in items], on_mixed_types="use_json")


def write(path: str | Path, items: Iterable[Item], tools: Sequence[Tool] = ()) -> int:
    """One line of JSON for each; how many."""
    lines = [json.dumps(row_of(item, tools), ensure_ascii=False) + "\n" for item in items]
    try:
        write_whole(path, "".join(lines))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror}): give another file") from error
    return len(lines)


def read_pairs(path: str | Path) -> tuple[tuple[Pair, ...], tuple[Tool, ...]]:
    """Pairs and tools of a file that `write` has written, or of one in TRL's format."""

    def pair(row: dict[str, Any]) -> Pair:
        return Pair(
            task=str(row.get("task", "")),
            run=str(row.get("run", "")),
            step=int(row.get("step", 0)),
            prompt=_messages(row["prompt"]),
            chosen=_messages(row["chosen"]),
            rejected=_messages(row["rejected"]),
            chosen_return=float(row.get("chosen_return", 1.0)),
            rejected_return=float(row.get("rejected_return", 0.0)),
        )

    return _read(path, pair, "pairs")


def read_examples(path: str | Path) -> tuple[tuple[Example, ...], tuple[Tool, ...]]:
    """Examples and tools of a file that `write` has written, or of one in TRL's format."""

    def example(row: dict[str, Any]) -> Example:
        label = row.get("label")
        return Example(
            task=str(row.get("task", "")),
            run=str(row.get("run", "")),
            prompt=_messages(row["prompt"]),
            completion=_messages(row["completion"]),
            returned=float(row.get("return", 0.0)),
            desirable=None if label is None else bool(label),
        )

    return _read(path, example, "runs or labels")


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not all(isinstance(m, dict) and "role" in m for m in value):
        raise TypeError("no list of messages")
    return tuple(value)


def _read(path: str | Path, make: Callable[[dict[str, Any]], T], kind: str) -> tuple[tuple[T, ...], tuple[Tool, ...]]:
    items: list[T] = []
    tools: list[str] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): make it with {kind} first") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            items.append(make(row))
            tools.append(row.get("tools") or "[]")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"{path}, line {number} is not of the file that {kind} writes ({error!r:.80}): give that one"
            ) from error
    if len(set(tools)) > 1:
        raise ConfigurationError(f"{path} has lines with different tools: train on one kind")
    return tuple(items), tuple(json.loads(tools[0])) if tools else ()
