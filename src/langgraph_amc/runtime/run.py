"""One AMC run of an app, from its input to the committed winner and the stream of its events."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from langgraph_amc import search
from langgraph_amc.errors import AMCError
from langgraph_amc.runtime.choice import AllParticlesFailedError, candidates, choose, raise_failure
from langgraph_amc.runtime.commit import ConcurrentWriteError, check_unmoved, commit
from langgraph_amc.runtime.engine import Engine, Owned
from langgraph_amc.runtime.keeping import JournalKeeper
from langgraph_amc.runtime.listening import tell
from langgraph_amc.runtime.llm_cache import journaled_llm_cache, salted_llm_cache
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.population import AppPopulation, ScoreError
from langgraph_amc.runtime.recording import book, missing_scores, report, result
from langgraph_amc.runtime.request import Emission, StreamRequest, durability_of, emission_of
from langgraph_amc.runtime.result import AMCResult, Check
from langgraph_amc.runtime.searching import Thought, check_same_kind, thoughts
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.runtime.setup import Setup, set_up
from langgraph_amc.runtime.streaming import BestStream, SettledStream, Stream
from langgraph_amc.runtime.watching import GenerationStarted, ParticleChosen, ParticleStarted, RunEnded, Watch
from langgraph_amc.smc import (
    Barrier,
    FilterState,
    Final,
    Finished,
    Stopped,
    Unbeatable,
    adaptive_filter,
    ess_below,
    never,
    particle_filter,
)
from langgraph_amc.smc import Event as FilterEvent
from langgraph_amc.trajectories.types import Usage

__all__ = ["AllParticlesFailedError", "NestedInterruptError", "run_stream"]


class NestedInterruptError(AMCError):
    """An app that runs as particles inside a node of another graph asked to be interrupted."""


async def run_stream(
    request: StreamRequest, engine: Engine, note: Callable[[AMCResult], None]
) -> AsyncGenerator[Any, None]:
    """Run the particles, yield the winner's stream events, commit the winner; ``note`` gets the record.

    Events that all particles share are yielded as soon as they do; the rest when the winner is known.
    """
    emission = emission_of(request)
    setup = await set_up(request, engine, emission)
    run = Run(request, setup)
    try:
        async with aclosing(run.particles()) as steps:
            async for _ in Owned(steps):
                for out in run.settled(emission):
                    yield out
        await run.hand_over()
    except BaseException as error:
        run.tell_broken(error)
        raise
    finally:
        await run.close()
    note(run.told_result())
    for out in run.rest(emission):
        yield out
    raise_failure(request, run.population, run.winner)


class Run:
    """The state of one run; `particles` drives it."""

    def __init__(self, request: StreamRequest, setup: Setup) -> None:
        self.request = request
        self.population: AppPopulation = setup.population
        self._settings: Settings = request.settings
        self._keeper: JournalKeeper | None = setup.keeper
        self._watch: Watch | None = setup.population.launch.watch
        self._generations = itertools.count()
        self._head_id = setup.head_id
        self._shown: Stream = (
            BestStream(emission_of(request).gives) if request.settings.stream == "best" else SettledStream()
        )
        self._started = time.perf_counter()
        # not the seed itself: particles' seeds are drawn from it under other names
        self._rng = np.random.default_rng(self.population.launch.identity("resampling").seed)
        self._checks: list[Check] = []
        self._finals: dict[int, Final[Particle]] = {}
        self._generation: dict[int, Final[Particle]] = {}
        self._winner: Particle | None = None
        self._bound: Particle | None = None
        """The particle whose effects have happened: nobody else can win any more."""
        self._log_evidence: float | None = None
        self._settled_on: int | None = None
        """The number of particles, once effects have happened: nobody can be added behind them."""
        self._stopped: str | None = None
        self._tree: tuple[Thought, ...] = ()
        self._revocable = request.settings.stream == "settled" and (
            request.settings.adaptive is not None or request.settings.backtrack is not None
        )
        """Whether what all particles share can still turn out not to be the winner's."""

    @property
    def winner(self) -> Particle:
        """The chosen particle; only after `particles`."""
        assert self._winner is not None
        return self._winner

    async def particles(self) -> AsyncGenerator[FilterEvent[Particle], None]:
        """Run and weigh generations of particles until the chosen one has ended: the winner."""
        state, chosen = await self._restored()
        with salted_llm_cache(), self._journaled():
            try:
                while True:
                    if chosen is None:
                        async with aclosing(self._filter(state)) as events:
                            async for event in Owned(events):
                                self._book(event)
                                yield event
                        self._check_scores()
                        chosen = choose(self.population, self._generation, self._settings, self._rng)
                        if chosen.held:
                            self._settled_on = self.population.founders
                        await self._decided(chosen)
                    if not chosen.held:
                        self._winner = chosen
                        return
                    await self._check_thread(chosen)
                    self._bound, chosen = chosen, None
                    state = await self.population.next_generation(self._bound, self.population.founders)
            except Exception:
                await self._keep_effects()
                raise
            finally:
                await self.population.end(self._winner)

    async def _check_thread(self, chosen: Particle) -> None:
        """Before effects happen: that there is still a thread to commit them to."""
        if not self.population.launch.alone:
            async with self._abandoned_if_moved():
                await check_unmoved(chosen, self.population.root.base, self._head_id)

    @asynccontextmanager
    async def _abandoned_if_moved(self) -> AsyncIterator[None]:
        """A run whose thread has moved on cannot be gone on with."""
        try:
            yield
        except ConcurrentWriteError as error:
            if self._keeper is not None:
                await self._keeper.abandon(str(error))
            raise

    async def _keep_effects(self) -> None:
        """The run breaks although effects have happened: keep their lineage, as a plain run would have kept it.

        With a journal it can be gone on with instead.
        """
        if self._bound is not None and self._keeper is None and not self.population.launch.alone:
            await commit(self._bound, self.population.root.base, self._head_id, durability_of(self.request))

    def settled(self, emission: Emission) -> list[Any]:
        """Stream events to give now: see `streaming`."""
        if self._revocable:
            return []
        return [out for event in self._shown.check(self.population.candidates) for out in emission.event(event)]

    def rest(self, emission: Emission) -> list[Any]:
        """The winner's stream events that have not been given."""
        return [out for event in self._shown.end(self.winner) for out in emission.event(event)]

    async def hand_over(self) -> None:
        """Make the winner's history and effects the app's own."""
        winner, population = self.winner, self.population
        if self.request.nested and winner.status == "interrupted":
            raise NestedInterruptError(
                "the winning particle interrupts inside a node of another graph that cannot be resumed: compile that "
                "graph with a checkpointer (and this one without checkpointer=False), or ask outside of it"
            )
        if not population.launch.alone:
            async with self._abandoned_if_moved():
                await commit(winner, population.root.base, self._head_id, durability_of(self.request))
        if winner.effects is not None:
            engine = population.launch.engine
            await engine.call(winner.effects.aadopt if engine.is_async else winner.effects.adopt)
        if self._keeper is not None:
            await self._keeper.finish(winner.status or "finished", self.result())

    async def close(self) -> None:
        """Leave the run; one that has not been handed over can be gone on with."""
        if self._winner is not None and self._winner.effects is not None:
            await self.population.launch.engine.call(self._winner.effects.close)
        if self._keeper is not None:
            await self._keeper.close()

    def result(self) -> AMCResult:
        """The record of the run."""
        reports = {p.name: report(p, self._finals.get(id(p))) for p in self.population.born}
        seconds = time.perf_counter() - self._started
        return result(
            self.population,
            self._settings,
            self.winner,
            reports,
            self._checks,
            self._log_evidence,
            seconds,
            self._stopped,
            self._tree,
        )

    def told_result(self) -> AMCResult:
        """The record, and everybody who watches is told that the run is over."""
        result = self.result()
        if self._watch is not None:
            result = replace(result, trace=self._watch.where())
            self._watch.tell(RunEnded, result=result, error=None, broken_off=False)
        return result

    def tell_broken(self, error: BaseException) -> None:
        """Tell everybody who watches that the run ends here, without a result."""
        if self._watch is not None:
            said = f"{type(error).__name__}: {error}"
            self._watch.tell(RunEnded, result=None, error=said, broken_off=not isinstance(error, Exception))

    # -- inside ----------------------------------------------------------------------------------

    def _filter(self, state: FilterState[Particle] | None) -> AsyncGenerator[FilterEvent[Particle], None]:
        settings = self._settings
        alone = settings.particles == 1
        schedule = settings.resample
        if alone:
            # nothing to compare with: held at boundaries only where somebody watches the stream
            schedule = ess_below(0.5) if self.request.watched else never()
        best, back = settings.best_possible, settings.backtrack
        stop = None if best is None else lambda finals: Unbeatable(best).why(candidates(finals))
        if settings.search is not None and not alone:
            guided = settings.value is not None
            return search.tree_search(
                self.population, settings.search, scored=guided, start=state, stop=stop, exhausted=self._unpaid
            )
        how: dict[str, Any] = {
            "schedule": schedule,
            "tempering": settings.tempering,
            "resampler": settings.resampler,
            "objective": settings.objective,
            "rng": self._rng,
            "scored": settings.value is not None and not settings.unopposed,
            "start": state,
            "uncertainty": settings.uncertainty,
            "stop": stop,
            "backtrack": None if back is None else (back, self.population),
        }
        if settings.adaptive is not None and self._settled_on is None:
            return adaptive_filter(self.population, settings.adaptive, enough=self._enough, **how)
        return particle_filter(self.population, particles=self._settled_on or settings.particles, **how)

    def _enough(self, finals: Sequence[Final[Particle]]) -> str | None:
        """Why no more particles are needed, or can be paid for."""
        assert self._settings.adaptive is not None
        return self._unpaid() or self._settings.adaptive.enough.why(candidates(finals, stand_in=False))

    def _unpaid(self) -> str | None:
        """Why there is no money, or no time, for more."""
        account = self.population.launch.account
        refused = None if account is None else account.refused
        return None if refused is None else f"the budget ended it: {refused}"

    def _check_scores(self) -> None:
        """That the value function has said anything, where it was asked."""
        paid = self.population.unaffordable is None
        if paid and not self.population.scored and (missing := missing_scores(self.population, self._checks)):
            raise ScoreError(
                f"the value function gave no score at all: {missing} of {missing} are missing (NaN or None). Look at "
                "what it makes of the transcripts, or leave value=… out"
            )

    def _book(self, event: FilterEvent[Particle]) -> None:
        if isinstance(event, Finished):
            self._generation = {id(f.particle): f for f in event.result.finals}
            self._finals |= self._generation
            self._log_evidence = event.result.log_evidence
            self._tree = thoughts(self._tree, event.result.tree)
        elif isinstance(event, Stopped):
            self._stopped = event.reason
        elif isinstance(event, Barrier):
            if self._watch is not None:
                self._tell_generation(event.state)
            if self._keeper is not None:
                self._note_more()
                self.population.tell_forgotten()
                self._keeper.barrier(self.population, event.state, self._rng, self._checks)
        else:
            book(self._checks, event)
        if self._watch is not None:
            tell(self._watch, event)

    def _tell_generation(self, state: FilterState[Particle]) -> None:
        assert self._watch is not None
        live, number = tuple(p.name for p in state.going), next(self._generations)
        self._watch.tell(GenerationStarted, generation=number, boundary=state.boundary, particles=live)

    def _note_more(self) -> None:
        assert self._keeper is not None
        judging = asdict(sum(self.population.judging, Usage()))
        self._keeper.more = {"settled_on": self._settled_on, "stopped": self._stopped, "judging": judging}
        if self._settings.search is not None:
            self._keeper.more |= {"searched": True, "tree": [asdict(thought) for thought in self._tree]}

    async def _decided(self, chosen: Particle) -> None:
        if self._watch is not None:
            tools = tuple(effect.tool for effect in chosen.held)
            self._watch.tell(ParticleChosen, particle=chosen.name, effects=tools)
        if self._keeper is not None:
            self._note_more()
            await self._keeper.decided(chosen, tuple(self._finals.values()), self._rng, self._checks)

    def _journaled(self) -> AbstractContextManager[None]:
        run = None if self._keeper is None else self._keeper.run
        return nullcontext() if run is None else journaled_llm_cache(run.id, run.answers)

    async def _restored(self) -> tuple[FilterState[Particle] | None, Particle | None]:
        if self._keeper is None or not self._keeper.restored:
            return None, None
        back = await self._keeper.restore(self.population, self._rng)
        check_same_kind(back.more.get("searched", False), self._settings.search)
        self._checks[:] = back.checks
        self._finals |= {id(f.particle): f for f in back.finals}
        self._settled_on, self._stopped = back.more["settled_on"], back.more["stopped"]
        self.population.judging.append(Usage(**back.more.get("judging", {})))
        self._tree = tuple(Thought(**thought) for thought in back.more.get("tree", ()))
        if self._watch is not None:
            for p in self.population.born:
                if not p.done:
                    parent = None if p.parent is None else p.parent.name
                    self._watch.tell(ParticleStarted, particle=p.name, parent=parent, boundary=p.forked_at or 0)
        return back.state, back.chosen
