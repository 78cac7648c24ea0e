"""What is looked at before a study begins: its arguments, its folder, the app's tools. No torch."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langgraph_amc.checks import check_path, check_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.kept import HISTORY, RESULT, STORE, VALIDATIONS
from langgraph_amc.evaluate.execution.executor import LOCAL
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.usage import LOCAL_PROVIDER
from langgraph_amc.runtime.effects import read_effects
from langgraph_amc.runtime.wrap import check_arguments

_LOCAL_MODEL = f"{LOCAL_PROVIDER}/"


def in_a_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_call(concurrency: object, budget: object, executor: object, progress: object) -> None:
    """Raises ConfigurationError for what is no such thing at all."""
    check_whole("concurrency", concurrency, 1)
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigurationError(f"budget is a Budget, e.g. Budget(tokens=1_000_000), or None, got {budget!r}")
    if not isinstance(executor, str):
        raise ConfigurationError(f"executor is {LOCAL!r} or the name of an integration, got {executor!r}")
    if progress is not None and not callable(progress):
        raise ConfigurationError(f"progress is a function of a Standing, or None, got {progress!r}")


def made(folder: Path, model: str | None = None) -> Path:
    """The folder, there to be written to; ConfigurationError where it cannot be, or is in the model's."""
    if model is not None:
        check_apart(model, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
    for name in (HISTORY, STORE, VALIDATIONS, RESULT):
        if (folder / name).is_dir():
            raise ConfigurationError(f"{folder / name} is a folder, and a file of this name goes there: move it away")
    return folder


def model_path(model: str | Path) -> str:
    """The model as the app names it; a folder that is none is an error before anything is loaded."""
    named_so = (
        model.removeprefix(_LOCAL_MODEL) if isinstance(model, str) else model
    )  # first: a Path has no double slash
    path = os.fspath(check_path("model", named_so))
    local = Path(path).expanduser()
    named = path.startswith((".", "/", "~")) or local.exists()
    if named and not any((local / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ConfigurationError(f"{path} is no model's folder (it has no config.json): give a Hugging Face folder")
    return str(local) if named else path


def check_apart(model: str, folder: Path) -> None:
    """Raises ConfigurationError for a folder that is the model's own, or in it."""
    local = Path(model).expanduser()
    if local.is_dir() and folder.resolve().is_relative_to(local.resolve()):
        raise ConfigurationError(
            f"{folder} is in the model's folder {local}, which stays as it is: give a folder elsewhere for the run"
        )


def checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of `wrap` for a rollout; ConfigurationError for those that are not a plain run's."""
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"options are options of wrap by name, e.g. {{'effects': 'pure'}}, got {options!r}")
    if given := sorted({"particles", "value", "reward", "seed", "journal", "config"} & (options or {}).keys()):
        raise ConfigurationError(f"a rollout is one plain run: leave {', '.join(given)} out of the options")
    check_arguments(options or {})
    return dict(options or {})


def warn_of_tools(app: Any, effects: Any) -> None:
    """Say which tools are going to act once per rollout without anybody having said that they may."""
    rules = read_effects(effects, app)
    if rules is not None and (unknown := rules.unclassified()):
        known = f"options={{'effects': {{{unknown[0]!r}: 'pure'}}}}"
        warnings.warn(
            f"nothing is known of the side effects of {', '.join(unknown)}: they act in every rollout; say what they "
            f"do with {known}, on the command line --effects {unknown[0]}=pure (or stateful, deny)",
            stacklevel=3,
        )
