"""The facade: an app that looks like the user's own and runs as particles.

The wrapper is a dynamic subclass of the app's class that overrides ``stream`` and ``astream`` only:
``invoke``, ``ainvoke``, ``batch``, ``get_state``, ``update_state``, ``get_graph``, schemas and the rest stay
LangGraph's own code, and the user's object is left as it is.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from langgraph.pregel import Pregel
from langgraph.types import GraphOutput

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.config import RunConfig, read_config
from langgraph_amc.runtime.engine import AsyncEngine, Engine, Owned, ThreadEngine
from langgraph_amc.runtime.nested import nested_stream, place_of
from langgraph_amc.runtime.request import StreamRequest, call_config
from langgraph_amc.runtime.result import AMCOutput, AMCResult
from langgraph_amc.runtime.run import run_stream
from langgraph_amc.runtime.settings import Settings, read_settings
from langgraph_amc.runtime.signature import decorating, wrapping
from langgraph_amc.smc import drive

P = ParamSpec("P")
App = TypeVar("App", bound=Pregel)

_current_result: ContextVar[AMCResult | None] = ContextVar("amc_current_result", default=None)
_unwatched: ContextVar[bool] = ContextVar("amc_unwatched", default=False)
"""Set by ``invoke``, which calls ``stream`` but shows none of its events before the end."""
_REMOTE = "langgraph.pregel.remote.RemoteGraph"
_last_results: weakref.WeakKeyDictionary[Any, AMCResult] = weakref.WeakKeyDictionary()


def check_graph(app: object) -> None:
    """Raises ConfigurationError for what is no compiled app of this process."""
    if any(f"{kind.__module__}.{kind.__qualname__}" == _REMOTE for kind in type(app).__mro__):
        raise ConfigurationError(
            "a RemoteGraph runs on a server, where its steps cannot be held and branched: wrap the graph where it is "
            "defined, and deploy the wrapped one"
        )
    if not isinstance(app, Pregel):
        hint = ": call .compile() first" if hasattr(app, "compile") else ""
        raise ConfigurationError(
            f"a compiled LangGraph app that runs in this process is needed, got {type(app).__name__}{hint}"
        )


def check_arguments(names: Iterable[str]) -> None:
    """Raises ConfigurationError for names that are no arguments of `wrap`."""
    known = ["config", *list(inspect.signature(read_settings).parameters)[1:]]
    if unknown := [name for name in names if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise ConfigurationError(f"wrap has no argument {unknown[0]!r}: {hint}")


@wrapping(read_settings)
def wrap(app: Any, *, config: str | Path | RunConfig | None = None, **settings: Any) -> Any:
    """Run a compiled LangGraph app, unchanged, as N weighted particles and answer with one.

    Parameters
    ----------
    app: any compiled graph (``StateGraph.compile()``, ``create_agent``, ``@entrypoint``). It is not modified.
    config: the file that ``amc tune`` wrote; arguments given beside it count more (docs/tuning.md).
    particles: N, or ``adaptive(…)``, the number of runs in parallel (default 8).
    value: V, a `ValueFunction`, a callable over transcripts, or the folder of a trained one.
    reward: reward of a finished run, only if it can be observed when serving; ``FinishedRun -> float``.
    boundary: where particles may be compared: ``"auto"`` (before a node that calls a model), ``"step"``,
        node name(s), paths of nodes inside subgraphs such as ``"worker/model"``, or a predicate over `Edge`.
    resample: a schedule, e.g. ``at(4, 12)``, ``every(3)``, ``ess_below(0.5)``, ``every(4) & ess_below(0.7)``.
    select: ``"best_value"``, ``"best_reward"``, ``"argmax"``, ``"sample"``, ``vote(key=…)`` or any selector.
    objective: ``"optimise"`` (the best answer) or ``"sample"`` (exact draws from π·exp(r/β)/Z).
    beta: temperature β of the target, in units of reward.
    tau: fixed weight temperature τ, or any `Tempering`; default for ``optimise``: solved for an ESS of N/2.
    resampler: ``"systematic"``, ``"stratified"``, ``"residual"``, ``"multinomial"`` or a function.
    seed: fixes the resampling and the particles' seeds.
    transcript: how a state is written as text for V; default: its messages.
    effects: what tools do to the world: a policy for all, or policies by tool name (``"*"`` for the others):
        ``"pure"``, ``"stateful"``, ``"commit"`` (held until its particle is selected, then run once) or ``"deny"``
        (docs/side-effects.md).
    budget: a `Budget` of money, tokens or seconds for each run (docs/budgets.md).
    journal: a `Journal` or the file of one: a run that is broken off can be gone on with (docs/durability.md).
    stream: ``"settled"`` shows what all particles still in the race share, ``"best"`` runs ahead and shows the one
        that is best valued now (docs/streaming.md).
    best_possible: the highest return there can be: who has it ends the run (docs/adaptive.md).
    quorum: a share such as 0.8: checks do not wait for stragglers once so many have arrived.
    backtrack: ``backtrack(discount=0.9)``: resampling may go back to earlier states.
    search: ``amc.search.mcts()``, ``bfs()``, ``dfs()``, ``beam()`` or ``foa()`` in the place of the particle filter
        (docs/searches.md).
    callbacks: functions that are told what happens as it does, an event each (docs/watching.md).
    telemetry: ``Telemetry(detail=…)``: how much of a run goes into OpenTelemetry's traces (docs/tracing.md).

    Returns
    -------
    An object of a subclass of ``type(app)``; results of ``invoke``/``ainvoke`` carry ``.amc``.

    Raises
    ------
    ConfigurationError: an argument that cannot work with this app.
    """
    check_graph(app)
    if isinstance(app, AMCFacade):
        raise ConfigurationError("this app is wrapped already: wrap the original app")
    kind = type(app)
    # pydantic looks names up in the class's module when it makes the app's schemas
    wrapper: Any = object.__new__(type(f"AMC{kind.__name__}", (AMCFacade, kind), {"__module__": kind.__module__}))
    wrapper.__dict__.update(app.__dict__)
    wrapper._amc_app = app
    check_arguments(settings)
    read = RunConfig() if config is None else read_config(config)
    wrapper._amc_settings = read_settings(app, **read.arguments(settings))
    read.check(wrapper._amc_settings)
    return wrapper


@decorating(read_settings)
def amc(
    *, config: str | Path | RunConfig | None = None, **settings: Any
) -> Callable[[Callable[P, App]], Callable[P, App]]:
    """Decorate a function that builds an app, so that it builds the app wrapped; arguments as for `wrap`."""

    def decorate(build: Callable[P, App]) -> Callable[P, App]:
        @functools.wraps(build)
        def built(*args: P.args, **kwargs: P.kwargs) -> App:
            return wrap(build(*args, **kwargs), **{"config": config, **settings})

        return built

    return decorate


def last_run(app: Any) -> AMCResult:
    """The record of the newest finished run of a wrapped app or an `AMCNode`.

    With concurrent runs on one app use ``result.amc`` of `invoke` instead.
    """
    from langgraph_amc.runtime.node import AMCNode  # which is made of this

    app = app.app if isinstance(app, AMCNode) else app
    if not isinstance(app, AMCFacade):
        raise ConfigurationError(
            "last_run is for what wrap returned or for an AMCNode, not for the plain app or the graph around: keep "
            f"the node in a variable; got {type(app).__name__}"
        )
    try:
        return _last_results[app]
    except (KeyError, TypeError):
        raise ConfigurationError("this app has not finished an AMC run yet: invoke it first") from None


class AMCFacade(Pregel):
    """What `wrap` mixes into the app's own class."""

    _amc_app: Any
    _amc_settings: Settings
    _amc_whole = False
    """Whether the app is all that a node of another graph does."""

    def stream(self, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:
        request = self._amc_request(input, config, options)
        settings = self._amc_settings
        engine = ThreadEngine(settings.particles, apart=settings.points is not None)
        yield from drive(self._amc_events(request, engine))

    async def astream(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:
        events = self._amc_events(
            self._amc_request(input, config, options), AsyncEngine(patient=self._amc_settings.journal is not None)
        )
        try:
            async for event in Owned(events):
                yield event
        finally:
            await events.aclose()

    def invoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        _current_result.set(None)
        _unwatched.set(True)
        return _with_record(super().invoke(input, config, **options))

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        _current_result.set(None)
        _unwatched.set(True)
        return _with_record(await super().ainvoke(input, config, **options))

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        # Pregel.copy rebuilds through __init__ and so loses attributes that compile() sets later
        clone = copy.copy(self)
        clone.__dict__.update(update or {})
        clone._amc_app = copy.copy(self._amc_app)
        clone._amc_app.__dict__.update(update or {})
        return clone

    def _amc_request(self, input: Any, config: Any, options: Mapping[str, Any]) -> StreamRequest:
        # attributes set on the wrapper (a saver, a store) count, as they would on the app
        app = copy.copy(self._amc_app)
        app.__dict__.update({k: v for k, v in self.__dict__.items() if k in app.__dict__})
        given = {**options, "debug": options.get("debug") or app.debug}
        app.debug = False  # what is shown is printed, not what every particle does
        watched = not _unwatched.get()
        _unwatched.set(False)  # what runs inside is watched again
        return StreamRequest(app, self._amc_settings, input, call_config(app, config), given, watched)

    def _amc_events(self, request: StreamRequest, engine: Engine) -> AsyncGenerator[Any, None]:
        place = place_of(request, whole=self._amc_whole)
        if place is None:
            return run_stream(request, engine, self._amc_note)
        return nested_stream(run_stream, request, place, engine, self._amc_note)

    def _amc_note(self, result: AMCResult) -> None:
        _current_result.set(result)
        _last_results[self] = result


def _with_record(output: Any) -> Any:
    result = _current_result.get()
    if result is None:
        return output
    if isinstance(output, GraphOutput) and isinstance(output.value, dict):
        return GraphOutput(value=AMCOutput(output.value, result), interrupts=output.interrupts)
    return AMCOutput(output, result) if type(output) is dict else output
