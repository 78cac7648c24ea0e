"""Checkouts that branch, and tests that run where they can harm nothing.

A worktree is a folder. A snapshot of it, and a worktree restored from one, are folders of hard links to the same files:
nothing is copied but what is written, and a write replaces the link. Tests never touch the folder: the sources go into
`langgraph_amc.heuristics.sandbox`, a process that can open no file, socket or process, and are imported from memory.
"""

import ast
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from weakref import finalize

from langgraph_amc.files import write_whole
from langgraph_amc.heuristics.errors import HeuristicFailure
from langgraph_amc.heuristics.sandbox import Limits, sandboxed

LIMITS = Limits(seconds=10.0, cpu_seconds=2, modules=("types", "importlib.machinery", "importlib.util"))
RUNNER = (Path(__file__).parent / "runner.py").read_text()


class Snapshot:
    """A frozen checkout; its folder goes with the object."""

    def __init__(self, source: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="amc-snapshot-")
        self.path = Path(self._folder.name) / "files"
        _link(source, self.path)


class Worktree:
    """One checkout. ``snapshot`` and ``restore`` are what `langgraph_amc.Session` branches it by."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="amc-worktree-"))
        self.root = folder / "files"
        self.root.mkdir()
        # also at the end of the process, for the one that a plain run uses and nobody closes
        self._remove = finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def checkout(self, files: Mapping[str, str]) -> None:
        """Have these files and no others."""
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, text in files.items():
            self.write(path, text)

    def files(self) -> dict[str, str]:
        """All files with their text, by path."""
        found = sorted(path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_text() for path in found}

    def write(self, path: str, text: str) -> None:
        """Have this text at a path inside the checkout; other checkouts that share the file keep theirs."""
        target = (self.root / path).resolve()
        if not target.is_relative_to(self.root.resolve()):
            raise ValueError(f"{path} is outside the repository")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)

    def snapshot(self) -> Snapshot:
        """The present state, which later writes do not change."""
        return Snapshot(self.root)

    def restore(self, token: Snapshot) -> None:
        """Return to a snapshot's state."""
        shutil.rmtree(self.root)
        _link(token.path, self.root)

    def close(self) -> None:
        """Remove the folder."""
        self._remove()


def run_tests(files: Mapping[str, str]) -> dict[str, str]:
    """What went wrong in each test of the files named ``test_*.py``; an empty text where it passed."""
    return dict(_run(tuple(sorted(files.items()))))


@lru_cache(maxsize=4096)
def _run(files: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The same for equal files is run once: a run depends on nothing else."""
    suites = {path: text for path, text in files if Path(path).name.startswith("test_")}
    names = {Path(path).stem: re.findall(r"^def (test_\w+)", text, re.M) for path, text in suites.items()}
    known = [f"{stem}::{name}" for stem, found in names.items() for name in found]
    try:
        with sandboxed(RUNNER, "run", LIMITS) as run:
            found = run.map([[{path: _parsed(path, text) for path, text in files}]])[0]
    except HeuristicFailure as failure:
        found = dict.fromkeys(known, str(failure))
    return tuple((name, str(found.get(name, "was not run"))) for name in known)


def _parsed(path: str, text: str) -> str:
    """The source, or code that says why it is none: to tell where, the interpreter in the sandbox would open a file."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return f"raise SyntaxError({f'{path}: {error}'!r})"
    return text


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link)
