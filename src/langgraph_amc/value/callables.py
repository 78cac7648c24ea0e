"""Anything a user may mean by a value function, as one: `as_value`."""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langgraph_amc.checks import without_password
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks.rewards import LARGEST
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.errors import ValueScoreError
from langgraph_amc.value.protocol import (
    FloatArray,
    ScoreCallable,
    SoftValueFunction,
    SupportsUncertainty,
    ValueFunction,
)
from langgraph_amc.value.serving.connection import is_url
from langgraph_amc.value.serving.remote import RemoteValue


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of trained value function that lives in a folder.

    Attributes
    ----------
    loader: name in `langgraph_amc.value` of the function ``(folder, transcript_fingerprint)`` that loads it, which
        may import what it needs.
    soft: whether what it loads has a ``soft_score``.
    """

    loader: str
    soft: bool


FOLDER_KINDS = {
    "amc_value.json": FolderKind("load_value", soft=True),
    "amc_features.json": FolderKind("load_features", soft=True),
}
"""By the manifest that marks such a folder: JSON, with the ``transcript_fingerprint`` of what it was trained on.

`as_value` only looks whether the file is there, so nothing heavy is imported early.
"""


def as_value(value: Any, transcript_fingerprint: str | None = None) -> ValueFunction:
    """Turn what the user gave into a `ValueFunction` whose results are checked.

    - a path: a folder of a trained value function (see `FOLDER_KINDS`), which must be there, loaded at its first use;
    - an ``http://`` or ``https://`` address: a `RemoteValue`, asked for the first time when it is first used;
    - a `ValueFunction`: itself, a `SoftValueFunction` stays one;
    - a function whose first parameter is annotated ``str``: called with the text of one state, returns a number;
    - any other callable: called with the list of transcripts (each a sequence of segments), returns as many numbers.

    ``None`` and NaN mean *missing*. Infinite values, text and wrong lengths raise `ValueScoreError`.

    Parameters
    ----------
    transcript_fingerprint: of the transcripts it will be given, compared with that of a folder or server.

    Raises
    ------
    ConfigurationError: the object is none of these, or there is no such folder.
    """
    if isinstance(value, str) and is_url(value):
        value = RemoteValue(value)
    if isinstance(value, RemoteValue):
        return CheckedSoftValue(value.reading(transcript_fingerprint))
    if isinstance(value, str | Path):
        manifest = _manifest(value)
        if FOLDER_KINDS[manifest.name].soft:
            return CheckedSoftValue(LazySoftValue(manifest, transcript_fingerprint))
        return CheckedValue(LazyValue(manifest, transcript_fingerprint))
    if isinstance(value, CheckedValue):
        return value
    if inspect.isclass(value):
        raise ConfigurationError(f"value={value.__name__} is a class: pass an instance")
    if isinstance(value, SoftValueFunction):
        return CheckedSoftValue(value)
    if isinstance(value, ValueFunction):
        return CheckedValue(value)
    if callable(value):
        if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
            raise ConfigurationError("a value function is called from a worker thread: pass a plain, not an async one")
        return CheckedValue(OneByOne(value) if _takes_text(value) else Batched(value))
    raise ConfigurationError(
        f"{type(value).__name__} is no value function: pass a checkpoint folder, an object with score(transcripts),"
        " or a callable"
    )


class Batched:
    """A function of all transcripts at once as a value function."""

    def __init__(self, function: ScoreCallable) -> None:
        self.function = function

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """What the function returns for the transcripts, unchecked."""
        returned: Any = self.function(transcripts)
        return returned


class OneByOne:
    """A function of one state's text as a value function."""

    def __init__(self, function: Callable[[str], float | None]) -> None:
        self.function = function

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """What the function returns for each text, unchecked."""
        returned: Any = [self.function("".join(segments)) for segments in transcripts]
        return returned


class LazyValue:
    """A folder of a trained value function that is loaded when it is first asked."""

    def __init__(self, manifest: Path, transcript_fingerprint: str | None) -> None:
        self.manifest = manifest
        self._fingerprint = transcript_fingerprint
        self._loaded: Any = None
        self._lock = threading.Lock()

    def load(self) -> Any:
        """The value function, loaded now if it was not before."""
        from langgraph_amc import value

        with self._lock:
            if self._loaded is None:
                load = getattr(value, FOLDER_KINDS[self.manifest.name].loader)
                self._loaded = load(self.manifest.parent, self._fingerprint)
            return self._loaded

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """What the value function in the folder gives."""
        found: FloatArray = self.load().score(transcripts)
        return found

    def uncertainty(self, step: int) -> float:
        """What the value function in the folder knows of its own error at a step; NaN if nothing."""
        loaded = self.load()
        return loaded.uncertainty(step) if isinstance(loaded, SupportsUncertainty) else math.nan


class LazySoftValue(LazyValue):
    """The same where the value function knows the soft value too."""

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """What the value function in the folder gives at this β."""
        found: FloatArray = self.load().soft_score(transcripts, beta)
        return found


class CheckedValue:
    """A value function whose results have been checked: one finite number, or NaN for missing, per transcript."""

    def __init__(self, inner: ValueFunction) -> None:
        self.inner = inner

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, float64 [n]; NaN marks missing."""
        return _checked(self.inner.score(transcripts), len(transcripts), self.inner)


class CheckedSoftValue(CheckedValue):
    """A `CheckedValue` that knows the soft value as well."""

    def __init__(self, inner: SoftValueFunction) -> None:
        super().__init__(inner)
        self._soft = inner

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n]; NaN marks missing."""
        return _checked(self._soft.soft_score(transcripts, beta), len(transcripts), self._soft)


def _manifest(given: str | Path) -> Path:
    """The file that says which kind of value function a folder holds; without a look into it."""
    folder, shown = Path(given).expanduser(), without_password(str(given))
    made = "the one that train_value(…, out=…) or `amc train-value --out` wrote"
    if not str(given).strip() or not folder.is_dir():
        raise ConfigurationError(
            f"value={shown!r}: there is no such folder; give {made}, the http:// address of a value server, or a "
            "function of the transcripts"
        )
    for name in FOLDER_KINDS:
        if (folder / name).is_file():
            return folder / name
    raise ConfigurationError(
        f"value={shown!r}: the folder holds no {' or '.join(FOLDER_KINDS)}, so it is no trained value function; "
        f"give {made}"
    )


def _name(source: object) -> str:
    """What the user knows a value function as."""
    if isinstance(source, Batched | OneByOne):
        function = inspect.unwrap(source.function)
        while isinstance(function, functools.partial):
            function = function.func
        if inspect.isroutine(function):
            return function.__qualname__.rpartition("<locals>.")[2]
        return type(function).__name__
    return type(source).__name__


def _takes_text(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature: they take the list
        return False
    return bool(parameters) and parameters[0].annotation in (str, "str")


def _checked(returned: Any, count: int, source: object) -> FloatArray:
    name = f"the value function {_name(source)}"
    if inspect.isawaitable(returned):
        raise ValueScoreError(f"{name} returned an awaitable: a value function is a plain function")
    items = list(returned) if isinstance(returned, Sequence | np.ndarray) and not isinstance(returned, str) else None
    if items is None or len(items) != count:
        got = type(returned).__name__ if items is None else f"{len(items)} of them"
        raise ValueScoreError(
            f"{name} must return one number per transcript, {count} here, and returned {got};"
            " annotate the parameter as str to be called with one text at a time"
        )
    if any(isinstance(item, str | bytes) for item in items):
        raise ValueScoreError(f"{name} returned text instead of numbers: parse it, and return None where that fails")
    try:
        scores = np.array([np.nan if item is None else float(item) for item in items], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueScoreError(f"{name} returned something that is no number: {error}") from error
    if np.isinf(scores).any():
        raise ValueScoreError(f"{name} returned an infinite value: return None where there is no value")
    if (large := np.abs(scores) > LARGEST).any():  # differences of such values are no numbers any more
        raise ValueScoreError(
            f"{name} returned {scores[large][0]:g}: a value is at most {LARGEST:g} in size, as rewards are: divide both"
        )
    return scores
