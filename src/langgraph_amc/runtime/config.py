"""Settings in a file: what `amc tune` writes and ``wrap(config="amc.json")`` reads.

A small JSON object with a version. A key it does not know is an error, an argument given beside it counts more, the
folder of the value function is relative to the file, and it holds the fingerprint of the transcripts it was made for.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from langgraph_amc.checks import without_password
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.files import write_whole
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import Tempering, ess_target, fixed, tilt
from langgraph_amc.smc.tempering import EssTarget, Fixed, Tilt

VERSION = 1


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Arguments of `wrap` that fit into a file; ``None`` leaves one at its default.

    Attributes
    ----------
    tau: a number, or a tempering: ``fixed``, ``tilt`` or ``ess_target``.
    value: folder of a trained value function; ``None``: it has to be given to `wrap`.
    transcript: fingerprint of the transcripts that it was made for.
    tuned: where it comes from, for people; nothing reads it.
    """

    particles: int | None = None
    value: str | None = None
    boundary: str | tuple[str, ...] | None = None
    resample: str | None = None
    select: str | None = None
    objective: str | None = None
    beta: float | None = None
    tau: float | Tempering | None = None
    resampler: str | None = None
    transcript: str | None = None
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file; a folder ``value`` is written relative to it, an address without its user and password."""
        path = Path(path)
        written: dict[str, Any] = {"version": VERSION}
        for f in fields(self):
            given = getattr(self, f.name)
            if given is None or given == {}:
                continue
            written[f.name] = given
        if self.value is not None:
            written["value"] = (
                without_password(self.value)
                if "://" in self.value
                else os.path.relpath(Path(self.value).expanduser(), path.parent)
            )
        if self.tau is not None:
            written["tau"] = _tempering_out(self.tau)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(written, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Read and check a file; its ``value`` becomes a path that is good from anywhere.

        Raises ConfigurationError that names the file and what is wrong with it.
        """
        path = Path(path).expanduser()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"config={str(path)!r} cannot be read ({error}): give the JSON file that `amc tune --out` wrote"
            ) from error
        try:
            return cls._checked(found, path.parent)
        except ConfigurationError as error:
            raise ConfigurationError(f"config={str(path)!r}: {error}") from error

    @classmethod
    def _checked(cls, found: Any, folder: Path) -> RunConfig:
        if not isinstance(found, dict):
            raise ConfigurationError(f"it holds no JSON object but {type(found).__name__}")
        if found.get("version") != VERSION:
            raise ConfigurationError(
                f"it has version {found.get('version')!r}, this langgraph-amc reads {VERSION}: tune again"
            )
        given = {key: part for key, part in found.items() if key != "version"}
        known = [f.name for f in fields(cls)]
        if unknown := [key for key in given if key not in known]:
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f", did you mean {near[0]}?" if near else f"; it takes {', '.join(known)}"
            raise ConfigurationError(f"it has the unknown key(s) {', '.join(map(repr, unknown))}{hint}")
        for key, part in given.items():
            if not isinstance(part, _KINDS[key]) or isinstance(part, bool):
                raise ConfigurationError(f"{key} cannot be {part!r}")
        if "://" not in given.get("value", "://"):
            given["value"] = str((folder / Path(given["value"]).expanduser()).absolute())
        if isinstance(given.get("boundary"), list):
            given["boundary"] = tuple(given["boundary"])
        if "tau" in given:
            try:
                given["tau"] = _tempering_in(given["tau"])
            except TypeError as error:
                raise ConfigurationError(f"tau cannot be {given['tau']!r}: {error}") from error
        return cls(**given)

    def arguments(self, explicit: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for `read_settings`: those of the file, and the explicit ones in their place.

        An explicit ``beta``, ``tau`` or ``objective`` replaces all three, which belong together.

        Raises ConfigurationError where a value function is needed and given nowhere.
        """
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("transcript", "tuned")}
        target = ("objective", "beta", "tau")
        if any(name in explicit for name in target):
            found.update(dict.fromkeys(target))
        merged = {**{name: part for name, part in found.items() if part is not None}, **explicit}
        if isinstance(merged.get("boundary"), tuple):
            merged["boundary"] = list(merged["boundary"])
        if self.tuned and merged.get("value") is None and merged.get("resample") != "never()":
            raise ConfigurationError(
                "the configuration was tuned for a value function that is no folder: give it, value=…"
            )
        return merged

    def check(self, settings: Settings) -> None:
        """Raise ConfigurationError where the app's transcripts are not those that the file was made for."""
        transcript = settings.transcript
        if self.transcript is None or transcript is None or transcript.fingerprint == self.transcript:
            return
        raise ConfigurationError(
            f"the configuration was tuned on transcripts with the fingerprint {self.transcript}, this app's is "
            f"{transcript.fingerprint}: give the same transcript=Transcript(…) as when the runs were collected, or "
            "tune again"
        )


_KINDS: Mapping[str, Any] = {
    "particles": int,
    "value": str,
    "boundary": (str, list),
    "resample": str,
    "select": str,
    "objective": str,
    "beta": (int, float),
    "tau": (int, float, dict),
    "resampler": str,
    "transcript": str,
    "tuned": dict,
}


def read_config(given: str | Path | RunConfig) -> RunConfig:
    """A configuration from what ``wrap(config=…)`` takes; raises ConfigurationError for anything else."""
    if isinstance(given, RunConfig):
        return given
    if isinstance(given, str | os.PathLike):
        return RunConfig.load(given)
    raise ConfigurationError(f"config is the file that `amc tune` wrote, or a RunConfig, got {given!r}")


def _tempering_out(tau: float | Tempering) -> Any:
    if isinstance(tau, int | float):
        return tau
    if isinstance(tau, Fixed):
        return {"fixed": tau.tau}
    if isinstance(tau, Tilt):
        return {"tilt": tau.beta}
    if isinstance(tau, EssTarget):
        base, sharp = _tempering_out(tau.base), tau.max_sharpness
        return {"ess_target": tau.fraction, "base": base, "max_sharpness": sharp, "weighs": tau.weighs}
    raise ConfigurationError(f"a tempering of one's own, {type(tau).__name__}, cannot be written into a file")


def _tempering_in(given: Any) -> float | Tempering:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    if isinstance(given, dict):
        if list(given) == ["fixed"]:
            return fixed(given["fixed"])
        if list(given) == ["tilt"]:
            return tilt(given["tilt"])
        options = dict(given)
        fraction = options.pop("ess_target", None)
        if fraction is not None and options.keys() <= {"base", "max_sharpness", "weighs"}:
            base = _tempering_in(options.pop("base")) if "base" in options else None
            if isinstance(base, int | float):
                base = fixed(base)
            return ess_target(fraction, base, **options)
    raise ConfigurationError(
        f"tau is a number, {{'fixed': 1.0}}, {{'tilt': 0.1}} or {{'ess_target': 0.5, 'base': …, 'max_sharpness': …, "
        f"'weighs': …}}, got {given!r}"
    )
