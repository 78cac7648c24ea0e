"""What a study that can be stopped and called again keeps: JSON files, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langgraph_amc.files import write_whole


def read(path: Path) -> dict[str, Any] | None:
    """What is in a file, if it is there."""
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def write(path: Path, data: dict[str, Any]) -> None:
    """All of it, or nothing."""
    write_whole(path, json.dumps(data))


def same(folder: Path, sizes: dict[str, Any]) -> None:
    """Note what the folder's study is of; SystemExit where it is of something else."""
    path = folder / "study.json"
    known = read(path)
    if known is not None and known != sizes:
        raise SystemExit(f"{folder} holds a study of {known}, now {sizes}: give another --out, or the same options")
    write(path, sizes)
