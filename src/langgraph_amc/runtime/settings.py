"""The arguments of `wrap`, read and checked once."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.boundaries import Boundary
from langgraph_amc.runtime.effects import EffectRules, Policy, read_effects
from langgraph_amc.runtime.searching import read_search
from langgraph_amc.runtime.subgraphs import Points, read_boundary
from langgraph_amc.runtime.watching import Callback
from langgraph_amc.search import Preset, TreeSearch
from langgraph_amc.smc import (
    RESAMPLERS,
    SELECTORS,
    Abstain,
    Adaptive,
    Backtrack,
    Quorum,
    Resampler,
    Schedule,
    Selector,
    Tempering,
    argmax,
    best_reward,
    best_value,
    ess_below,
    ess_target,
    every,
    fixed,
    never,
    parse_schedule,
    sample,
    tilt,
)
from langgraph_amc.tasks.rewards import RewardFunction, as_reward
from langgraph_amc.telemetry import Telemetry
from langgraph_amc.trajectories.transcript import Transcript
from langgraph_amc.value.callables import CheckedValue, as_value
from langgraph_amc.value.protocol import SoftValueFunction, SupportsUncertainty, ValueFunction

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import Journal

Objective = Literal["optimise", "sample"]
Streaming = Literal["settled", "best"]
EVERYTHING = Telemetry()
"""Where somebody traces, all of a run is traced."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How an app is run as particles; made by `read_settings`."""

    particles: int
    """How many there may be at once; with ``adaptive``, at most."""
    value: ValueFunction | None
    reward: RewardFunction | None
    boundary: Boundary
    resample: Schedule
    select: Selector
    objective: Objective
    tempering: Tempering
    resampler: Resampler
    seed: int | None
    transcript: Transcript | None
    needs_text: bool
    """Whether somebody reads the transcript, so that a state that cannot be written as text is an error."""
    effects: EffectRules | None
    budget: Budget | None
    journal: Journal | None
    stream: Streaming
    soft_beta: float | None
    """β handed to a value function that knows its exact soft value, else ``None``."""
    points: Points | None = None
    """Where particles are held inside subgraphs."""
    adaptive: Adaptive | None = None
    """How the number of particles grows; ``None`` where it is fixed."""
    best_possible: float | None = None
    quorum: Quorum | None = None
    backtrack: Backtrack | None = None
    search: TreeSearch | None = None
    """Who goes on where, instead of the filter."""
    uncertainty: Callable[[int], float] | None = None
    """V's own error at a boundary, where the value function knows it."""
    callbacks: tuple[Callback, ...] = ()
    """Who is told what happens (`watching`)."""
    telemetry: Telemetry = EVERYTHING

    @property
    def unopposed(self) -> bool:
        """Whether there is one particle, and it answers whatever it does."""
        return self.particles == 1 and not isinstance(self.select, Abstain)


def read_settings(
    app: Any,
    *,
    particles: int | Adaptive | None = None,
    value: ValueFunction | Callable[..., Any] | str | Path | None = None,
    reward: Callable[..., Any] | None = None,
    boundary: str | Sequence[str] | Boundary | None = None,
    resample: Schedule | str | None = None,
    select: Selector | str | None = None,
    objective: Objective = "optimise",
    beta: float | None = None,
    tau: float | Tempering | None = None,
    resampler: Resampler | str = "systematic",
    seed: int | None = None,
    transcript: Transcript | None = None,
    effects: Mapping[str, Policy] | Policy | None = None,
    budget: Budget | None = None,
    journal: Journal | str | Path | None = None,
    stream: Streaming = "settled",
    best_possible: float | None = None,
    quorum: float | Quorum | None = None,
    backtrack: Backtrack | None = None,
    search: TreeSearch | Preset | None = None,
    callbacks: Sequence[Callback] = (),
    telemetry: Telemetry | None = None,
) -> Settings:
    """Check every argument of `wrap` against the app; raises ConfigurationError that says what to do."""
    if search is not None:
        given: dict[str, Any] = {"particles": particles, "resample": resample, "resampler": resampler, "tau": tau}
        given |= {"beta": beta, "backtrack": backtrack, "quorum": quorum, "objective": objective}
        search, given = read_search(search, given, valued=value is not None, rewarded=reward is not None)
        particles, resample, resampler, tau, backtrack = (given[name] for name in _BY_SEARCH)
    strategy = None if isinstance(search, Preset) else search
    particles = 8 if particles is None else particles
    policy = particles if isinstance(particles, Adaptive) else None
    if isinstance(particles, Adaptive):
        particles = particles.most
    if isinstance(particles, bool) or not isinstance(particles, int) or particles < 1:
        raise ConfigurationError(
            f"particles is a whole number of at least 1, or adaptive(start=…, most=…), got {particles!r}"
        )
    if objective not in ("optimise", "sample"):
        raise ConfigurationError(f"objective is 'optimise' or 'sample', got {objective!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ConfigurationError(f"seed is a whole number of at least 0, or None for a fresh one, got {seed!r}")
    if stream not in ("settled", "best"):
        raise ConfigurationError(f"stream is 'settled' or 'best', got {stream!r}")
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigurationError(f"budget is a Budget, e.g. Budget(usd=0.5), got {budget!r}")
    if transcript is not None and not isinstance(transcript, Transcript):
        raise ConfigurationError(f"transcript is a Transcript, got {transcript!r}")
    needs_text = transcript is not None or value is not None
    transcript = transcript if transcript is not None else _default_transcript(app)
    scorer = None if value is None else _value(value, transcript)
    soft = beta if beta is not None and isinstance(scorer, SoftValueFunction) else None
    observed = None if reward is None else as_reward(reward)
    edges, points = read_boundary(boundary, app)
    selector = _selector(select, objective, observed, scorer)
    if objective == "sample":
        _keeps_a_sample(policy, best_possible, backtrack)
    return Settings(
        particles,
        scorer,
        observed,
        edges,
        _schedule(resample, objective, guided=scorer is not None),
        selector,
        objective,
        _tempering(objective, beta, tau, soft, guided=scorer is not None),
        _resampler(resampler),
        seed,
        transcript,
        needs_text,
        _effects(effects, app, particles),
        budget,
        _journal(journal),
        stream,
        soft,
        points,
        policy,
        _best_possible(best_possible, selector),
        _quorum(quorum),
        _backtrack(backtrack, scorer),
        strategy,
        None if soft is not None or scorer is None else _uncertainty(scorer),
        _callbacks(callbacks),
        _telemetry(telemetry),
    )


_BY_SEARCH = ("particles", "resample", "resampler", "tau", "backtrack")
"""What a search decides."""


def _callbacks(callbacks: Any) -> tuple[Callback, ...]:
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise ConfigurationError(
            f"callbacks is a list of functions of one event (docs/watching.md), got {callbacks!r}; LangChain's own "
            "handlers go into the call's config: invoke(…, {'callbacks': […]})"
        )
    for callback in callbacks:
        if iscoroutinefunction(callback) or iscoroutinefunction(type(callback).__call__):
            raise ConfigurationError(f"a callback is a plain function, which returns at once, got async {callback!r}")
    return tuple(callbacks)


def _telemetry(telemetry: Telemetry | None) -> Telemetry:
    if telemetry is not None and not isinstance(telemetry, Telemetry):
        raise ConfigurationError(f"telemetry is Telemetry(detail='generation'), say, or None, got {telemetry!r}")
    return telemetry or EVERYTHING


def _keeps_a_sample(adaptive: Adaptive | None, best_possible: float | None, backtrack: Backtrack | None) -> None:
    """Refuse what would leave no sample of the target."""
    for given, what in (
        (adaptive, "particles=adaptive(…), whose number depends on the answers: give a number"),
        (best_possible, "best_possible=…, which ends runs because of how others ended: leave it out"),
        (backtrack, "backtrack=…, which weighs the same states again and again: leave it out"),
    ):
        if given is not None:
            raise ConfigurationError(
                f"objective='sample' draws from the target distribution, and cannot with {what}, or use "
                "objective='optimise'"
            )


def _best_possible(best: float | None, select: Selector) -> float | None:
    if best is None:
        return None
    if isinstance(best, bool) or not isinstance(best, int | float) or not math.isfinite(best):
        raise ConfigurationError(f"best_possible is the highest return that a run can have, a number, got {best!r}")
    if select is not best_reward:
        raise ConfigurationError(
            "best_possible ends a run as soon as a particle has that reward, which is the answer only with "
            "select='best_reward' (the default with reward=…): give the reward, or leave best_possible out"
        )
    return float(best)


def _quorum(quorum: float | Quorum | None) -> Quorum | None:
    if quorum is None or isinstance(quorum, Quorum):
        return quorum
    if isinstance(quorum, bool) or not isinstance(quorum, int | float):
        raise ConfigurationError(f"quorum is a share such as 0.8, or quorum(0.8, patience=2), got {quorum!r}")
    return Quorum(quorum)


def _backtrack(backtrack: Backtrack | None, value: Any) -> Backtrack | None:
    if backtrack is not None and not isinstance(backtrack, Backtrack):
        raise ConfigurationError(f"backtrack is backtrack(discount=0.9), or None, got {backtrack!r}")
    if backtrack is not None and value is None:
        raise ConfigurationError("backtrack goes back to states of good value: give value=…, or leave it out")
    return backtrack


def _uncertainty(scorer: ValueFunction) -> Callable[[int], float] | None:
    inner = scorer.inner if isinstance(scorer, CheckedValue) else scorer
    return inner.uncertainty if isinstance(inner, SupportsUncertainty) else None


def _effects(spec: Mapping[str, Policy] | Policy | None, app: Any, particles: int) -> EffectRules | None:
    rules = read_effects(spec, app)
    if rules is None:
        return None
    if particles > 1 and (unknown := rules.unclassified()):
        warnings.warn(
            f"nothing is known of the side effects of {', '.join(unknown)}: they run in every particle; say what "
            f"they do with wrap(effects={{{unknown[0]!r}: 'pure'}}) (or 'commit', 'stateful', 'deny'; '*': the rest)",
            stacklevel=4,
        )
    return rules if rules.active else None


_journals: dict[tuple[int, str], Journal] = {}
"""Those that were named by a path or URL, by process: an app that is built anew for each request shares one."""


def _journal(journal: Journal | str | Path | None) -> Journal | None:
    if journal is None:
        return None
    from langgraph_amc.runtime.journal import Journal

    if isinstance(journal, Journal):
        return journal
    text = str(journal)
    key = (os.getpid(), text if "://" in text else str(Path(text).expanduser().absolute()))
    if key not in _journals:
        _journals[key] = Journal(journal)
    return _journals[key]


def _default_transcript(app: Any) -> Transcript | None:
    return Transcript() if "messages" in app.channels else None


def _value(value: Any, transcript: Transcript | None) -> ValueFunction:
    if transcript is None:
        raise ConfigurationError(
            "this app's state has no 'messages', so a value function cannot read it: pass "
            "transcript=Transcript(messages_key=…) or transcript=Transcript.from_state(fn)"
        )
    return as_value(value, transcript_fingerprint=transcript.fingerprint)


def _schedule(resample: Schedule | str | None, objective: Objective, *, guided: bool) -> Schedule:
    if isinstance(resample, str):
        return parse_schedule(resample)
    if resample is not None:
        if not isinstance(resample, Schedule):
            raise ConfigurationError(f"resample is a schedule such as every(3) or ess_below(0.5), got {resample!r}")
        return resample
    if not guided:
        return never()
    return every(3) if objective == "optimise" else ess_below(0.5)


def _tempering(
    objective: Objective,
    beta: float | None,
    tau: float | Tempering | None,
    soft: float | None,
    *,
    guided: bool,
) -> Tempering:
    if tau is not None and beta is not None:
        raise ConfigurationError("give beta (the target's temperature) or tau (a fixed weight temperature), not both")
    if beta is not None and not isinstance(beta, int | float):
        raise ConfigurationError(f"beta is a temperature, a number above 0, got {beta!r}")
    if isinstance(tau, int | float):
        return fixed(tau)
    if tau is not None:
        if not callable(getattr(tau, "potential", None)):
            raise ConfigurationError(f"tau is a number above 0 or a tempering such as ess_target(), got {tau!r}")
        return tau
    if beta is not None:
        # a soft value is in units of reward at this β already; a chance of success still has to be tilted
        base: Tempering = fixed(beta) if soft is not None or not guided else tilt(beta)
        return base if objective == "sample" else ess_target(0.5, base=base)
    if objective == "sample":
        raise ConfigurationError("objective='sample' needs beta=… (or tau=…): it defines the target distribution")
    return ess_target(0.5)


def _selector(select: Selector | str | None, objective: Objective, reward: Any, value: Any) -> Selector:
    if isinstance(select, str):
        if select not in SELECTORS:
            raise ConfigurationError(f"select is one of {', '.join(sorted(SELECTORS))} or a function, got {select!r}")
        select = SELECTORS[select]
    if select is best_reward and reward is None:
        raise ConfigurationError("select='best_reward' needs reward=…, a reward that can be observed when serving")
    if select is best_value and value is None:
        raise ConfigurationError("select='best_value' needs value=…")
    if select is not None and not callable(select):
        raise ConfigurationError(f"select is one of {', '.join(sorted(SELECTORS))} or a function, got {select!r}")
    if select is not None:
        return select
    if objective == "sample":
        return sample
    return best_reward if reward is not None else best_value if value is not None else argmax


def _resampler(resampler: Resampler | str) -> Resampler:
    if isinstance(resampler, str) and resampler in RESAMPLERS:
        return RESAMPLERS[resampler]
    if isinstance(resampler, str) or not callable(resampler):
        names = ", ".join(sorted(RESAMPLERS))
        raise ConfigurationError(f"resampler is one of {names} or a function, got {resampler!r}")
    return resampler
