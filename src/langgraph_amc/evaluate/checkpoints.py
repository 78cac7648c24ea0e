"""LangGraph's own checkpoints as conversations: any checkpointer, or the SQLite file of one.

A thread's history is the line of checkpoints that leads to its newest one; each input opens an invocation. The states
are those before each super-step that brought an AI message, and the last one.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_amc.errors import MissingExtraError
from langgraph_amc.trajectories.importers import Conversation, ImportFileError, Unusable
from langgraph_amc.trajectories.importers.values import error_of, seconds
from langgraph_amc.trajectories.types import Status, Usage

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver

Messages = tuple[BaseMessage, ...]


@contextmanager
def open_sqlite(path: str | Path) -> Iterator[SqliteSaver]:
    """The checkpointer of a file that LangGraph's ``SqliteSaver`` wrote, opened for reading only.

    Only LangGraph's and LangChain's own types are restored from it. Raises `ImportFileError` for another file.
    """
    try:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ModuleNotFoundError as error:
        raise MissingExtraError("Reading a SQLite checkpointer", "sqlite") from error
    path = Path(path)
    if not path.is_file():
        raise ImportFileError(f"{path}: there is no such file")
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        try:
            connection.execute("SELECT 1 FROM checkpoints JOIN writes LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise ImportFileError(f"{path}: not a file of LangGraph's SqliteSaver: {error}") from error
        saver = SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        saver.is_setup = True  # or it would create tables
        yield saver


def read_checkpoints(
    saver: BaseCheckpointSaver[Any], threads: Iterable[str] | None = None, key: str = "messages"
) -> Iterator[Conversation | Unusable]:
    """The invocations of all threads, or of these; ``key`` names the messages in the state."""
    for thread, history in _histories(saver, threads).items():
        for number, invocation in enumerate(_invocations(history)):
            yield _read(f"{thread}:{number}", thread, invocation, key)


def _histories(saver: BaseCheckpointSaver[Any], threads: Iterable[str] | None) -> dict[str, dict[str, CheckpointTuple]]:
    """Checkpoints of the outermost graph by thread and id, newest first."""
    found: dict[str, dict[str, CheckpointTuple]] = defaultdict(dict)
    wanted: Iterable[Any] = [None] if threads is None else [{"configurable": {"thread_id": t}} for t in threads]
    for config in wanted:
        for saved in saver.list(config):
            where = saved.config["configurable"]
            if not where.get("checkpoint_ns"):
                found[str(where["thread_id"])][saved.checkpoint["id"]] = saved
    return found


def _invocations(history: dict[str, CheckpointTuple]) -> list[list[CheckpointTuple]]:
    line: list[CheckpointTuple] = []
    now: CheckpointTuple | None = history[max(history)]  # ids grow with time
    while now is not None:
        line.append(now)
        up = (now.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        now = history.get(up) if up is not None else None
    found: list[list[CheckpointTuple]] = []
    for saved in reversed(line):
        if saved.metadata.get("source") == "input" or not found:
            found.append([])
        elif _asks(found[-1][-1]):
            found.append(found[-1][-1:])  # somebody answered: a call of its own, from where it had stopped
        found[-1].append(saved)
    return found


def _asks(saved: CheckpointTuple) -> bool:
    return any(channel == "__interrupt__" for _, channel, _ in saved.pending_writes or ())


def _read(name: str, thread: str, invocation: Sequence[CheckpointTuple], key: str) -> Conversation | Unusable:
    steps = [s for s in invocation if s.metadata.get("source") != "input"]
    if not steps:
        return Unusable("still running" if _next(invocation[-1]) else "no messages", name)
    last = steps[-1]
    status, error = _ending(last)
    if status is None:
        return Unusable("still running", name)
    try:
        texts = [_messages(s, key) for s in steps]
    except LookupError:
        return Unusable("no messages", name)
    at = [i for i in range(len(steps) - 1) if _new(texts[i], texts[i + 1])]
    states = [texts[i] for i in at] or [texts[-1]]
    if at and at[-1] < len(steps) - 1:
        states.append(texts[-1])
    start = seconds(invocation[0].checkpoint.get("ts"))
    return Conversation(
        id=name,
        trace=name,
        session=thread,
        start=0.0 if start is None else start,
        states=tuple(states),
        status=status,
        error=error,
        usage=_usage(new := [m for i in at for m in _new(texts[i], texts[i + 1])]),
        spans=(name,),
        uncounted=sum(not m.usage_metadata for m in new),
    )


def _messages(saved: CheckpointTuple, key: str) -> Messages:
    found = saved.checkpoint["channel_values"][key]
    if not isinstance(found, list) or not all(isinstance(m, BaseMessage) for m in found):
        raise LookupError(key)
    return tuple(found)


def _new(before: Messages, after: Messages) -> list[AIMessage]:
    """AI messages that a super-step brought."""
    if after[: len(before)] == before:
        return [m for m in after[len(before) :] if isinstance(m, AIMessage)]
    known = {m.id for m in before}
    return [m for m in after if isinstance(m, AIMessage) and (m.id not in known if m.id else m not in before)]


def _next(saved: CheckpointTuple) -> bool:
    """Whether something was to run after this checkpoint."""
    values = saved.checkpoint["channel_values"]
    return bool(values.get("__pregel_tasks")) or any(n == "__start__" or n.startswith("branch:") for n in values)


def _ending(saved: CheckpointTuple) -> tuple[Status | None, str | None]:
    """How an invocation ended at its last checkpoint; ``None`` if it has not."""
    writes = {channel: value for _, channel, value in saved.pending_writes or ()}
    if "__error__" in writes:
        error = writes["__error__"]
        return "failed", f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error_of(str(error))
    if _asks(saved):
        return "interrupted", None
    return (None if _next(saved) else "finished"), None


def _usage(messages: Sequence[AIMessage]) -> Usage:
    used = [m.usage_metadata for m in messages if m.usage_metadata]
    into, out = sum(u["input_tokens"] for u in used), sum(u["output_tokens"] for u in used)
    return Usage(len(messages), into, out, None if messages else 0.0)
