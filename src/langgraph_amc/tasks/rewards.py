"""Rewards: how good a finished run was, from a function, an evaluator, or the tools on the way.

A reward that fails is *missing* and keeps its error; it is never 0, which would teach a value function that
the agent was bad where only the judge was (the twisted target of AMC uses r as it is given).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.tasks.task import Task
from langgraph_amc.trajectories.transcript import turns
from langgraph_amc.trajectories.types import Trajectory

LARGEST = 1e100
"""Size of a reward up to which sums of squares over any number of runs do not overflow."""
_EVALUATOR = ("inputs", "outputs", "reference_outputs")


class RewardError(AMCError, ValueError):
    """A reward that is no number, or cannot be told from what an evaluator returned."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a reward function sees.

    Attributes
    ----------
    task: what was asked, if the run belongs to a task.
    output: values of the final state, as ``app.invoke`` returns them.
    messages: the messages of the final state; empty for states without.
    trajectory: the run as it is stored, where there is one.
    """

    task: Task | None
    output: Any
    messages: tuple[Any, ...] = ()
    trajectory: Trajectory | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


Reward = Callable[[FinishedRun], float | bool | None]
"""The reward of a finished run; ``None`` where it is missing."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A finite reward, or ``None`` with the reason why it is missing."""

    value: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A reward whose failures are values; made by `as_reward`. It is itself a `Reward`."""

    function: Callable[..., Any]
    by_keyword: bool
    needs_reference: bool
    is_async: bool
    key: str | None = None

    def __call__(self, run: FinishedRun) -> float | None:
        """The reward, or ``None`` where it is missing; `evaluate` also tells why."""
        return self.evaluate(run).value

    def evaluate(self, run: FinishedRun) -> RewardResult:
        """Evaluate one run; blocks. Raises `ConfigurationError` for an async function in an event loop."""
        if not self.is_async:
            return self._finish(run, self._call)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.aevaluate(run))
        raise ConfigurationError(f"{_name(self.function)} is async: await aevaluate(run) inside an event loop")

    async def aevaluate(self, run: FinishedRun) -> RewardResult:
        """Evaluate one run; a function that blocks runs in a thread."""
        if not self.is_async:
            return await asyncio.to_thread(self.evaluate, run)
        try:
            result = await self._call(run)
        except asyncio.CancelledError as exc:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return _missing(exc)
        except Exception as exc:
            return _missing(exc)
        return self._finish(run, lambda _: result)

    def _call(self, run: FinishedRun) -> Any:
        if not self.by_keyword:
            return self.function(run)
        reference = run.task.reference if run.task else None
        if self.needs_reference and reference is None:
            raise RewardError("the evaluator compares with reference_outputs, and the task has no reference")
        given = {"inputs": run.task.input if run.task else None, "outputs": run.output}
        return self.function(**self._accepted(given | {"reference_outputs": reference}))

    def _accepted(self, given: dict[str, Any]) -> dict[str, Any]:
        parameters = inspect.signature(self.function).parameters
        # An evaluator's **kwargs are its own options (openevals hands them on to the judge's prompt).
        return {name: value for name, value in given.items() if name in parameters}

    def _finish(self, run: FinishedRun, call: Callable[[FinishedRun], Any]) -> RewardResult:
        try:
            value = _number(_score(call(run), self.key))
        except (Exception, asyncio.CancelledError) as exc:  # this is no coroutine: nobody can have cancelled it
            return _missing(exc)
        if value is None:
            return RewardResult(None, f"{_name(self.function)} returned no score")
        return RewardResult(value)


def as_reward(fn: Callable[..., Any], *, key: str | None = None) -> RewardFunction:
    """A reward from a function of a `FinishedRun` or from a LangSmith/openevals evaluator, sync or async.

    An evaluator is recognised by its parameters ``inputs``, ``outputs`` and ``reference_outputs`` (any of
    them), anything else it requires is a `ConfigurationError`. It may return

    - a number or bool (True is 1), or ``None``: missing;
    - a mapping with ``score``, or an object with an attribute ``score``: that number;
    - a list of such results, or a mapping with a list ``results``: the one whose ``key`` is ``key``, and
      without ``key`` the only one.

    Whatever else it returns (text, NaN, infinity, several scores without ``key``), and any exception, make
    the reward missing, with the reason in ``evaluate(run).error``.
    """
    if isinstance(fn, RewardFunction):
        return fn
    if not callable(fn):
        raise ConfigurationError(f"a reward is a function of a finished run, not {type(fn).__name__}")
    parameters = [p for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    by_keyword = any(p.name in _EVALUATOR for p in parameters)
    unknown = [p.name for p in required if p.name not in _EVALUATOR]
    if by_keyword and unknown:
        raise ConfigurationError(
            f"{_name(fn)} requires {', '.join(unknown)}: an evaluator takes {', '.join(_EVALUATOR)}; "
            "bind the rest with functools.partial"
        )
    if not by_keyword and (len(required) > 1 or not parameters or parameters[0].kind is parameters[0].KEYWORD_ONLY):
        raise ConfigurationError(
            f"{_name(fn)} must take one finished run, or an evaluator's {', '.join(_EVALUATOR)} by name; "
            "an evaluator of (run, example) is written as one of (inputs, outputs, reference_outputs)"
        )
    return RewardFunction(
        function=fn,
        by_keyword=by_keyword,
        needs_reference=any(p.name == "reference_outputs" for p in required),
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__),
        key=key,
    )


def message_reward(message: Any) -> float | None:
    """The reward that one message carries, ``None`` if it carries none.

    Tools give it as ``ToolMessage.artifact["reward"]`` (``response_format="content_and_artifact"``), text
    environments as ``additional_kwargs["reward"]`` of a human or tool message. True is 1 and False is 0,
    as for finished runs; text, NaN and infinities raise `RewardError`.
    """
    if message.type not in ("tool", "human"):
        return None
    for carrier in (getattr(message, "artifact", None), message.additional_kwargs):
        if isinstance(carrier, Mapping) and carrier.get("reward") is not None:
            return _number(carrier["reward"])
    return None


def step_reward(messages: Iterable[Any]) -> float:
    """The sum of the rewards that the messages of one step carry; 0 if none does."""
    return math.fsum(reward for message in messages if (reward := message_reward(message)) is not None)


def step_rewards(messages: Iterable[Any]) -> list[float]:
    """One reward per AI message: the sum over the messages that followed it, before the next.

    With `langgraph_amc.trajectories.segments_from_messages`, these are the ``rewards`` of a `Trajectory`.
    Rewards before the first AI message belong to no step and raise `RewardError`.
    """
    first, *rest = turns(messages)
    if any(message_reward(message) is not None for message in first):
        raise RewardError("a message before the first model call carries a reward: no step has earned it")
    return [step_reward(turn) for turn in rest]


def _score(result: Any, key: str | None) -> Any:
    """The score in an evaluator's result."""
    if isinstance(result, Mapping):
        if "score" in result:
            return result["score"]
        if "results" in result:
            return _one(result["results"], key)
        raise RewardError(f"the result has no score, only {sorted(map(str, result))}")
    if isinstance(result, Sequence) and not isinstance(result, str):
        return _one(result, key)
    return getattr(result, "score", result)


def _one(results: Sequence[Any], key: str | None) -> Any:
    names = [r.get("key") if isinstance(r, Mapping) else getattr(r, "key", None) for r in results]
    chosen = list(results) if key is None else [r for r, n in zip(results, names, strict=True) if n == key]
    if len(chosen) == 1:
        return _score(chosen[0], None)
    if key is None:
        raise RewardError(f"{len(results)} results {names}: choose one with as_reward(fn, key=...)")
    raise RewardError(f"{len(chosen)} of the results {names} have the key {key!r}: exactly one must")


def _number(score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, (str, bytes)):
        raise RewardError("a reward is a number, not text: return a score")
    try:
        value = float(score)
    except (TypeError, ValueError) as exc:
        raise RewardError(f"a reward is a number, not {type(score).__name__}") from exc
    if not math.isfinite(value):
        raise RewardError(f"a reward is finite, not {value}: return None where it is missing")
    if abs(value) > LARGEST:
        raise RewardError(f"a reward is at most {LARGEST:g} in size, not {value:g}: divide it, or return None")
    return value


def _missing(exc: BaseException) -> RewardResult:
    return RewardResult(None, f"{type(exc).__name__}: {exc}")


def _name(fn: Callable[..., Any]) -> str:
    name: str = getattr(fn, "__name__", type(fn).__name__)
    return name
