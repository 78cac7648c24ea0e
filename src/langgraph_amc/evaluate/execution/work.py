"""The same work in another process: an app, a reward and settings by their names, as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.runner import Job, without_saver
from langgraph_amc.runtime.settings import Settings, read_settings
from langgraph_amc.runtime.wrap import check_graph
from langgraph_amc.tasks.loading import load_app, load_object, load_reward
from langgraph_amc.tasks.rewards import RewardFunction


@dataclass(frozen=True, slots=True)
class Work:
    """What a process needs to run jobs.

    Attributes
    ----------
    app, reward: ``./agent.py:graph``; where the other process runs on another machine, the files are there too.
    options: arguments of `wrap` that the jobs' settings come from; a value function by its folder, URL or name.
    """

    app: str
    reward: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in (("app", self.app), ("reward", self.reward)):
            if not isinstance(given, str):
                raise ConfigurationError(
                    f"other processes load the {name} by its name, like './agent.py:graph', not {type(given).__name__}"
                )

    def load(self) -> LoadedWork:
        """Make everything in this process."""
        app = load_served_app(self.app)
        options = dict(self.options)
        if isinstance(value := options.get("value"), str):
            options["value"] = load_value_by_name(value)
        return LoadedWork(without_saver(app), load_reward(self.reward), read_settings(app, **options))


@dataclass(frozen=True, slots=True)
class LoadedWork:
    """The app without a saver, the reward and the settings of the jobs."""

    app: Any
    reward: RewardFunction
    settings: Settings


def settings_changes(given: Settings, base: Settings) -> dict[str, Any]:
    """What of a job's settings another process cannot know: the fields that are not those of ``base``."""
    now = {f.name: getattr(given, f.name) for f in fields(Settings)}
    return {name: value for name, value in now.items() if value is not getattr(base, name)}


def with_changes(job: Job, changes: Mapping[str, Any], base: Settings) -> Job:
    """The job with its settings made anew from this process's own."""
    return replace(job, settings=replace(base, **changes))


def app_of(app: Any) -> Any:
    """An app, or the one that a name stands for; ConfigurationError where it is no compiled graph."""
    if isinstance(app, str):
        return load_served_app(app)
    check_graph(app)
    return app


def load_served_app(name: str) -> Any:
    """The app; where it uses LiteLLM, its models may be ours (``amc-local/<path>``)."""
    loaded = load_app(name)
    if "litellm" in sys.modules:
        from langgraph_amc.policy.litellm_setup import load_litellm

        load_litellm()
    return loaded


def load_value_by_name(name: str) -> Any:
    """A value function's folder or URL as it is; the object that ``file.py:function`` names."""
    return name if Path(name).is_dir() or ":" not in name or "://" in name else load_object(name)
