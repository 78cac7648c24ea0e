"""Savers with something in them, and processes that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from langgraph_amc.runtime.journal import Journal, ParticleRecord, Restored, RunJournal
from langgraph_amc.runtime.saver import ParticleSaver

THREAD: Any = {"configurable": {"thread_id": "t"}}
ROOT = Path(__file__).parents[2]


def config(checkpoint_id: str | None = None, ns: str = "") -> Any:
    configurable: dict[str, Any] = {"thread_id": "t", "checkpoint_ns": ns}
    if checkpoint_id:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def put(saver: ParticleSaver, version: int, ns: str = "", **values: Any) -> str:
    """One more checkpoint after the head of a namespace; values that are not given stay."""
    head = saver.head("t", ns)
    parent = None if head is None else head.id
    before = {} if head is None else dict(head.checkpoint["channel_versions"])
    checkpoint = empty_checkpoint()
    checkpoint["id"] = f"{version:06d}"
    checkpoint["channel_values"] = dict(values)
    new = dict.fromkeys(values, version)
    checkpoint["channel_versions"] = {**before, **new}
    saver.put(config(parent, ns), checkpoint, {"source": "loop", "step": version, "parents": {}}, new)
    return checkpoint["id"]


def contents(saver: ParticleSaver) -> list[CheckpointTuple]:
    return [listed(found) for found in saver.list(THREAD)]


def listed(value: Any) -> Any:
    """The same with lists for tuples, which serialisers do not tell apart."""
    if isinstance(value, CheckpointTuple):
        return CheckpointTuple(*(listed(part) for part in value))
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return [listed(part) for part in value]
    if isinstance(value, dict):
        return {key: listed(part) for key, part in value.items()}
    return value


def fresh(journal: Journal, key: str = "k", **about: Any) -> RunJournal:
    run = journal.open(key, seed=1, about=about)
    assert not run.taken_over
    return run


def reopened(journal: Journal, run: RunJournal, base: Any = None) -> tuple[RunJournal, Restored]:
    """The run as a process finds it that goes on with it."""
    run.release()
    again = journal.open(run.key, seed=0, about={})
    assert (again.id, again.taken_over) == (run.id, True)
    restored = again.restore(base)
    assert restored is not None
    return again, restored


def savers(restored: Restored) -> dict[str, ParticleSaver]:
    return {name: saver for name, (_, saver) in restored.particles.items() if saver is not None}


def stand(name: str, **fields: Any) -> ParticleRecord:
    return ParticleRecord(name, **fields)


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs ``code``; it says ``ready`` when it is where it shall be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def kill(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said = process.stdout.readline()
    if said != "ready\n":
        _, errors = process.communicate(timeout=20)
        raise AssertionError(f"{said}{errors}")
    process.kill()
    process.communicate(timeout=20)
