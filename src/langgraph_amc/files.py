"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A draft beside the file, to be written inside; it takes the file's place at the end, and goes after an error.

    Readers, and whoever comes after a crash, find the old file or the new one, never a part. A link is followed, and
    the file that is replaced hands its permissions on. The folder is made.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.draft")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: str | Path, text: str) -> None:
    """Write a small file whole or not at all (`replacing`), in UTF-8 with ``\\n`` at the ends of lines."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")
