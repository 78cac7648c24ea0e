"""Agentic Monte Carlo for LangGraph: an unmodified agent as N weighted particles.

>>> import langgraph_amc as amc
>>> better = amc.wrap(app, particles=8, value="value/")  # doctest: +SKIP

Everything here is imported on first use, so that ``import langgraph_amc`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from langgraph_amc.context import ParticleContext, current_particle
from langgraph_amc.errors import AMCError, ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from langgraph_amc import search
    from langgraph_amc.evaluate.evolving import Evolution, aevolve, evolve
    from langgraph_amc.evaluate.optimizing import Optimization, aoptimize, optimize
    from langgraph_amc.evolution.racing import Racing
    from langgraph_amc.evolution.strategy import Strategy
    from langgraph_amc.live import LiveView
    from langgraph_amc.policy.budget import Budget, BudgetExceededError, Price, UnknownPriceError
    from langgraph_amc.policy.chat import chat_model
    from langgraph_amc.policy.limiter import Limits
    from langgraph_amc.policy.retry import EmptyAnswerError, Retry, TruncatedAnswerError
    from langgraph_amc.report import write_report
    from langgraph_amc.runtime import watching
    from langgraph_amc.runtime.boundaries import Edge, before, before_model, every_step
    from langgraph_amc.runtime.choice import AllParticlesFailedError
    from langgraph_amc.runtime.commit import ConcurrentWriteError, SaverBusyError
    from langgraph_amc.runtime.config import RunConfig
    from langgraph_amc.runtime.effects import (
        DivergenceError,
        EffectChangedError,
        EffectDeniedError,
        EffectFailedError,
        EffectUnknownError,
        Session,
        SessionError,
        current_effect,
        effect,
        tools_of,
    )
    from langgraph_amc.runtime.journal import Journal, JournalError, RunInUseError, UnserialisableStateError
    from langgraph_amc.runtime.node import AMCNode
    from langgraph_amc.runtime.result import AMCOutput, AMCResult
    from langgraph_amc.runtime.resume import aresume, resume, settle
    from langgraph_amc.runtime.run import NestedInterruptError
    from langgraph_amc.runtime.wrap import amc, last_run, wrap
    from langgraph_amc.skills import (
        ExtractiveProposer,
        LLMProposer,
        Skill,
        SkillError,
        SkillLibrary,
        SkillsMiddleware,
        skills_text,
        using,
    )
    from langgraph_amc.smc import (
        AbstainedError,
        abstain,
        adaptive,
        agreement,
        at,
        backtrack,
        best_reward,
        best_value,
        ess_below,
        ess_target,
        every,
        final_text,
        fit_abstention,
        fixed,
        last_number,
        never,
        quorum,
        tilt,
        value_above,
        vote,
    )
    from langgraph_amc.tasks.rewards import FinishedRun
    from langgraph_amc.tasks.task import Task, TaskSet
    from langgraph_amc.telemetry import Telemetry
    from langgraph_amc.trajectories.store import TrajectoryStore
    from langgraph_amc.trajectories.transcript import Transcript
    from langgraph_amc.trajectories.types import Trajectory, Usage
    from langgraph_amc.value import RemoteValue, calibrated, ensemble, fit_calibration, foa_judge, judge, vote_judge
    from langgraph_amc.value.protocol import SoftValueFunction, SupportsUncertainty, ValueFunction

__version__ = "0.1.0"

_HOME = {
    "abstain": "smc",
    "AbstainedError": "smc",
    "adaptive": "smc",
    "agreement": "smc",
    "backtrack": "smc",
    "Evolution": "evaluate.evolving",
    "ExtractiveProposer": "skills",
    "LLMProposer": "skills",
    "Optimization": "evaluate.optimizing",
    "Skill": "skills",
    "SkillError": "skills",
    "SkillLibrary": "skills",
    "SkillsMiddleware": "skills",
    "aoptimize": "evaluate.optimizing",
    "optimize": "evaluate.optimizing",
    "skills_text": "skills",
    "using": "skills",
    "Racing": "evolution.racing",
    "Strategy": "evolution.strategy",
    "aevolve": "evaluate.evolving",
    "evolve": "evaluate.evolving",
    "ensemble": "value",
    "final_text": "smc",
    "fit_abstention": "smc",
    "foa_judge": "value",
    "judge": "value",
    "last_number": "smc",
    "quorum": "smc",
    "value_above": "smc",
    "best_reward": "smc",
    "best_value": "smc",
    "RemoteValue": "value",
    "RunConfig": "runtime.config",
    "SupportsUncertainty": "value.protocol",
    "calibrated": "value",
    "fit_calibration": "value",
    "AMCNode": "runtime.node",
    "AMCOutput": "runtime.result",
    "AMCResult": "runtime.result",
    "AllParticlesFailedError": "runtime.choice",
    "Budget": "policy.budget",
    "BudgetExceededError": "policy.budget",
    "ConcurrentWriteError": "runtime.commit",
    "DivergenceError": "runtime.effects",
    "Edge": "runtime.boundaries",
    "EffectChangedError": "runtime.effects",
    "EffectDeniedError": "runtime.effects",
    "EffectFailedError": "runtime.effects",
    "EffectUnknownError": "runtime.effects",
    "EmptyAnswerError": "policy.retry",
    "FinishedRun": "tasks.rewards",
    "Journal": "runtime.journal",
    "LiveView": "live",
    "JournalError": "runtime.journal",
    "Limits": "policy.limiter",
    "NestedInterruptError": "runtime.run",
    "Price": "policy.budget",
    "Retry": "policy.retry",
    "RunInUseError": "runtime.journal",
    "SaverBusyError": "runtime.commit",
    "Session": "runtime.effects",
    "SessionError": "runtime.effects",
    "SoftValueFunction": "value.protocol",
    "Task": "tasks.task",
    "TaskSet": "tasks.task",
    "Telemetry": "telemetry",
    "Trajectory": "trajectories.types",
    "TrajectoryStore": "trajectories.store",
    "Transcript": "trajectories.transcript",
    "TruncatedAnswerError": "policy.retry",
    "UnknownPriceError": "policy.budget",
    "UnserialisableStateError": "runtime.journal",
    "Usage": "trajectories.types",
    "ValueFunction": "value.protocol",
    "amc": "runtime.wrap",
    "aresume": "runtime.resume",
    "at": "smc",
    "before": "runtime.boundaries",
    "before_model": "runtime.boundaries",
    "chat_model": "policy.chat",
    "current_effect": "runtime.effects",
    "effect": "runtime.effects",
    "ess_below": "smc",
    "ess_target": "smc",
    "every": "smc",
    "every_step": "runtime.boundaries",
    "fixed": "smc",
    "last_run": "runtime.wrap",
    "never": "smc",
    "resume": "runtime.resume",
    "search": "runtime.run",
    "settle": "runtime.resume",
    "tilt": "smc",
    "tools_of": "runtime.effects",
    "vote": "smc",
    "vote_judge": "value",
    "watching": "runtime.listening",
    "wrap": "runtime.wrap",
    "write_report": "report",
}

__all__ = [
    "AMCError",
    "AMCNode",
    "AMCOutput",
    "AMCResult",
    "AbstainedError",
    "AllParticlesFailedError",
    "Budget",
    "BudgetExceededError",
    "ConcurrentWriteError",
    "ConfigurationError",
    "DivergenceError",
    "Edge",
    "EffectChangedError",
    "EffectDeniedError",
    "EffectFailedError",
    "EffectUnknownError",
    "EmptyAnswerError",
    "Evolution",
    "ExtractiveProposer",
    "FinishedRun",
    "Journal",
    "JournalError",
    "LLMProposer",
    "Limits",
    "LiveView",
    "MissingExtraError",
    "NestedInterruptError",
    "Optimization",
    "ParticleContext",
    "Price",
    "Racing",
    "RemoteValue",
    "Retry",
    "RunConfig",
    "RunInUseError",
    "SaverBusyError",
    "Session",
    "SessionError",
    "Skill",
    "SkillError",
    "SkillLibrary",
    "SkillsMiddleware",
    "SoftValueFunction",
    "Strategy",
    "SupportsUncertainty",
    "Task",
    "TaskSet",
    "Telemetry",
    "Trajectory",
    "TrajectoryStore",
    "Transcript",
    "TruncatedAnswerError",
    "UnknownPriceError",
    "UnserialisableStateError",
    "Usage",
    "ValueFunction",
    "abstain",
    "adaptive",
    "aevolve",
    "agreement",
    "amc",
    "aoptimize",
    "aresume",
    "at",
    "backtrack",
    "before",
    "before_model",
    "best_reward",
    "best_value",
    "calibrated",
    "chat_model",
    "current_effect",
    "current_particle",
    "effect",
    "ensemble",
    "ess_below",
    "ess_target",
    "every",
    "every_step",
    "evolve",
    "final_text",
    "fit_abstention",
    "fit_calibration",
    "fixed",
    "foa_judge",
    "judge",
    "last_number",
    "last_run",
    "never",
    "optimize",
    "quorum",
    "resume",
    "search",
    "settle",
    "skills_text",
    "tilt",
    "tools_of",
    "using",
    "value_above",
    "vote",
    "vote_judge",
    "watching",
    "wrap",
    "write_report",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
