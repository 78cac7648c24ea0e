"""The particles of one run, as the filter of `langgraph_amc.smc` sees them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from langgraph_amc.context import ParticleContext
from langgraph_amc.errors import AMCError
from langgraph_amc.policy.budget import BudgetExceededError
from langgraph_amc.runtime.cells import Packed, Shared, freeze
from langgraph_amc.runtime.effects import EffectRules, EffectScope, SessionError
from langgraph_amc.runtime.flights import Flights
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.launch import Launch, noted
from langgraph_amc.runtime.outbox import MemoryOutbox, Outbox
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.record import messages_of
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.watching import ParticlePruned, ParticleStarted, Scored
from langgraph_amc.smc import Abstention, Arrival, FilterState, Quorum
from langgraph_amc.tasks.rewards import FinishedRun, RewardFunction
from langgraph_amc.tasks.task import Task
from langgraph_amc.trajectories.types import Usage
from langgraph_amc.value.protocol import FloatArray

Scorer = Callable[[Sequence[Sequence[str]]], FloatArray]


class ScoreError(AMCError):
    """The value function gave something that is not one number per state, or never gave a number at all."""


def particle_identity(run_id: str, seed: int) -> Callable[[str], ParticleContext]:
    """Contexts of a run's particles; a particle's seed depends on (run seed, name) only."""

    def identity(name: str) -> ParticleContext:
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        return ParticleContext(run_id, name, int.from_bytes(digest, "big") >> 1)

    return identity


@dataclass(slots=True)
class AppPopulation:
    """Implements the filter's Population over particles of a LangGraph app.

    Attributes
    ----------
    score_states: V of a batch of transcripts, or ``None`` where there is no value function.
    reward: the reward of a finished run that is observable at test time, or ``None``.
    """

    launch: Launch
    root: ParticleSaver
    input: Any
    store: Any
    score_states: Scorer | None
    reward: RewardFunction | None
    task: Task | None
    effects: EffectRules | None = None
    """``None`` where tools have no policies."""
    outbox: Outbox = field(default_factory=MemoryOutbox)
    candidates: list[Particle] = field(default_factory=list)
    """Every particle that was not pruned, in order of birth."""
    born: list[Particle] = field(default_factory=list)
    unrewarded: list[str] = field(default_factory=list)
    """Why rewards are missing."""
    judging: list[Usage] = field(default_factory=list)
    """What each call of the value function and of the reward took of models."""
    unaffordable: str | None = None
    """Why the value function is asked no more: the run's budget has refused it a call."""
    unopposed: bool = False
    """Whether its one particle answers, whatever it does: nothing is held for a choice."""
    threads: int = 1
    """How many particles may run at once where there is no event loop."""
    quorum: Quorum | None = None
    """When stragglers are not waited for; ``None``: they are."""
    best_possible: float | None = None
    """A return that nobody can exceed: who has it makes the others needless."""
    abstention: Abstention | None = None
    """The last choice, where nobody was good enough."""
    unparked: dict[str, str] = field(default_factory=dict)
    """Particles to whose states one cannot go back, and why."""
    parked: list[Particle] = field(default_factory=list)
    """Copies that stand at earlier states; nobody runs them."""
    _forgotten: list[Particle] = field(default_factory=list)
    """Copies at earlier states that are needed no more, of which the journal has not been told."""
    _observed: set[Particle] = field(default_factory=set)
    _flights: Flights | None = None
    _names: int = 0
    _frozen: Packed | Shared | None = None

    async def start(self, n: int) -> Sequence[Particle]:
        before = len(self.born)
        for _ in range(n):
            store = None if self.store is None else OverlayStore(self.store)
            name = self._name()
            effects = self.scope(name)
            if effects is not None and self.unopposed:
                effects.release_all()
            self._add(
                Particle(
                    self.launch, name, self.root.fork(), store, self.own_input(), effects, calls=self.launch.calls(name)
                )
            )
        return self.born[before:]

    @property
    def founders(self) -> int:
        """How many particles were started, clones not counted."""
        return sum(p.parent is None for p in self.born)

    def scope(self, name: str, state: dict[str, Any] | None = None) -> EffectScope | None:
        """The effects of a founder, or of a particle that a journal brings back."""
        if self.effects is None:
            return None
        run_id = self.launch.identity(name).run_id
        if state is None:
            return EffectScope(self.effects, run_id, name, self.outbox, self.launch.watch)
        return EffectScope.restored(self.effects, run_id, name, self.outbox, state, self.launch.watch)

    def own_input(self) -> Any:
        """The input for one particle: add_messages and nodes write into what they are given."""
        if self.launch.alone:
            return self.input
        if self._frozen is None:
            self._frozen = freeze(self.input)
        return self._frozen.thaw()

    def take_back(self, particles: Sequence[Particle], parked: Sequence[Particle] = ()) -> None:
        """Take up particles that a journal brings back, in order of birth."""
        self.born, self.parked = list(particles), list(parked)
        self.candidates = [p for p in particles if p.status != "pruned"]
        self._names = len(particles)

    async def only(self, chosen: Particle) -> None:
        """Give up everybody else."""
        for particle in [p for p in self.candidates if p is not chosen]:
            await self.drop(particle)
        self.candidates = [chosen]

    async def next_generation(self, winner: Particle, n: int) -> FilterState[Particle]:
        """Let the effects happen that the chosen particle has paused before, and branch it again behind them."""
        await self.only(winner)
        winner.release()
        self._observed.discard(winner)
        # not broken off at a deadline: an effect may be under way
        await self.launch.engine.gather([winner.advance(winner.boundary + 1)])
        await self.advance([winner], winner.boundary)
        return await self.branch(winner, n)

    async def branch(self, winner: Particle, n: int) -> FilterState[Particle]:
        """n particles that stand where one does; itself only, if it has ended."""
        clones = [] if winner.done else [await self.fork(winner) for _ in range(n - 1)]
        return FilterState.fresh([winner, *clones], winner.boundary)

    async def drop(self, particle: Particle) -> None:
        """Give up a particle for good: its effects will not happen."""
        await particle.prune()
        if particle.effects is not None:
            particle.effects.drop()
            await self.launch.engine.call(particle.effects.close)

    async def advance(self, particles: Sequence[Particle], until: int | None) -> Sequence[Arrival]:
        late = await self._advance([p for p in particles if not p.done], until)
        await self._judge([p for p in particles if p.done and not p.judged and p not in late])
        return [Arrival(p.observed, done=False, late=True) if p in late else self._arrival(p) for p in particles]

    async def score(self, particles: Sequence[Particle]) -> FloatArray:
        values = await self._score(particles, particles[0].boundary)
        for particle, value in zip(particles, values, strict=True):
            _note_value(particle, float(value))
        return values

    async def fork(self, particle: Particle) -> Particle:
        clone = particle.fork(self._name())
        source = particle.name
        if particle in self.parked:
            clone.parent = particle.parent
        return self._add(clone, source)

    async def park(self, particle: Particle) -> Particle | None:
        """A copy that stays at this state, where one can be made."""
        try:
            copy = particle.fork(f"{particle.name}@{particle.boundary}")
        except SessionError as error:
            self.unparked[particle.name] = str(error)
            return None
        self.parked.append(copy)
        if self.launch.keeper is not None:
            self.launch.keeper.particle(copy)
        return copy

    def tell_forgotten(self) -> None:
        """Tell the journal which earlier states are needed no more, now that it is decided."""
        forgotten, self._forgotten = self._forgotten, []
        if self.launch.keeper is not None:
            for particle in forgotten:
                self.launch.keeper.particle(particle)

    async def prune(self, particle: Particle) -> None:
        overtaken = self._flights is not None and await self._flights.ground(particle)
        if particle in self.parked:
            self.parked.remove(particle)
            self._forgotten.append(particle)
            await self.drop(particle)
        elif particle in self.candidates and (overtaken or not particle.done):
            self.candidates.remove(particle)
            await self.drop(particle)
            particle.status = "pruned"  # even if it had just ended
            if self.launch.watch is not None:
                self.launch.watch.tell(
                    ParticlePruned, particle=particle.name, boundary=particle.boundary, usage=particle.calls.usage
                )

    @property
    def scored(self) -> bool:
        """Whether the value function has given any score at all."""
        return any(value is not None for particle in self.born for value in particle.values)

    @property
    def unscored(self) -> int:
        """How many have ended without an outcome, nor a score in its place."""
        ended = [p for p in self.born if p.judged and p.outcome is None and p.status != "failed" and p.values]
        return sum(p.values[-1] is None for p in ended)

    async def end(self, winner: Particle | None) -> None:
        """End every held run, and give up every particle but the winner for good."""
        if self._flights is not None:
            for particle in self.born:
                await self._flights.ground(particle)
            self._flights.close()
        for particle in list(self.parked):
            await self.prune(particle)
        for particle in self.born:
            await (particle.prune() if particle is winner else self.drop(particle))

    # -- inside ----------------------------------------------------------------------------------

    async def _advance(self, running: Sequence[Particle], until: int | None) -> set[Particle]:
        """Run on; who is late."""
        account = self.launch.account
        deadline = None if account is None else account.deadline
        late = set[Particle]()
        if self.quorum is None and self.best_possible is None:
            await self.launch.engine.gather([p.advance(until) for p in running], deadline)
        else:
            self._flights = self._flights or Flights(self.launch.engine, self.threads)
            late = await self._flights.fly(
                running, until, self._fly, quorum=self.quorum, deadline=deadline, enough=lambda: self._unbeatable
            )
        if account is None or deadline is None or time.monotonic() < deadline:
            return late
        for particle in running:
            broken_off = self._flights is not None and await self._flights.ground(particle)
            if not particle.done and (broken_off or until is None or particle.boundary < until):
                await particle.stop(account.timed_out())
        return set()

    async def _fly(self, particle: Particle, until: int | None) -> None:
        await particle.advance(until)
        if self.best_possible is not None and particle.done:
            await self._look_at(particle)

    @property
    def _unbeatable(self) -> bool:
        """Whether a particle that has ended has a return that nobody can exceed."""
        best = self.best_possible
        return best is not None and any(p.outcome is not None and p.observed >= best for p in self.candidates)

    async def _look_at(self, particle: Particle) -> None:
        """Ask for the reward of a particle that has ended, once."""
        if particle not in self._observed:
            particle.outcome = await self._observe(particle)
            self._observed.add(particle)

    def _name(self) -> str:
        self._names += 1
        return f"p{self._names - 1}"

    def _add(self, particle: Particle, source: str | None = None) -> Particle:
        """``source``: what it was cloned from."""
        self.candidates.append(particle)
        self.born.append(particle)
        if self.launch.watch is not None:
            self.launch.watch.tell(
                ParticleStarted, particle=particle.name, parent=source, boundary=particle.forked_at or 0
            )
        return particle

    async def _judge(self, ended: Sequence[Particle]) -> None:
        """What particles that have ended were worth, as far as anybody can tell."""
        for particle in ended:
            await self._look_at(particle)
        await self._estimate([p for p in ended if p.status != "failed" and not p.record.empty])
        for particle in ended:
            particle.judged = True
            if self.launch.keeper is not None:
                self.launch.keeper.particle(particle)

    async def _observe(self, particle: Particle) -> float | None:
        if self.reward is None or particle.status != "finished":
            return None
        run = FinishedRun(task=self.task, output=particle.output, messages=messages_of(particle.state), trajectory=None)
        engine, watch = self.launch.engine, self.launch.watch
        told = nullcontext() if watch is None else watch.rewarding(particle.name)
        with noted(self.launch.account, self.judging), told:
            result = await engine.call(self.reward.aevaluate if engine.is_async else self.reward.evaluate, run)
        if result.error is not None:
            self.unrewarded.append(result.error)
        return result.value

    async def _estimate(self, ended: Sequence[Particle]) -> None:
        """V of a last state stands in for an outcome that was not observed."""
        unknown = [p for p in ended if p.outcome is None]
        if not unknown or self.score_states is None:
            return
        for particle, value in zip(unknown, await self._score(unknown, None), strict=True):
            _note_value(particle, float(value))

    async def _score(self, particles: Sequence[Particle], boundary: int | None) -> FloatArray:
        if self.score_states is None:
            raise AMCError("there is no value function to score with")
        missing = np.full(len(particles), np.nan)
        if self.unaffordable is not None:
            return missing
        texts = [p.record.segments for p in particles]
        account, watch = self.launch.account, self.launch.watch
        names = tuple(p.name for p in particles)
        try:
            with nullcontext() if watch is None else watch.judging(names):
                with noted(account, self.judging):
                    values = np.asarray(await self.launch.engine.call(self.score_states, texts), dtype=np.float64)
                if values.shape != (len(particles),):
                    raise ScoreError(f"the value function returned shape {values.shape} for {len(particles)} states")
                if watch is not None:
                    found, used = tuple(values.tolist()), self.judging[-1]
                    watch.tell(Scored, boundary=boundary, particles=names, values=found, usage=used)
        except BudgetExceededError as error:
            if account is None or account.refused is None:  # it has a budget of its own
                raise
            self.unaffordable = str(error)
            return missing
        return values

    def _arrival(self, particle: Particle) -> Arrival:
        reward = particle.observed
        if particle.done and particle.outcome is None:
            asked = bool(particle.values) or (self.reward is not None and particle.status == "finished")
            value = particle.values[-1] if particle.values else None  # what it was worth, as far as anybody can tell
            reward += math.nan if asked and value is None else value or 0.0
        return Arrival(reward, done=particle.done, failed=particle.status == "failed")


def _note_value(particle: Particle, value: float) -> None:
    """NaN is missing."""
    padding = len(particle.record.segments) - 1 - len(particle.values)
    noted = None if math.isnan(value) else value
    particle.values = (*particle.values, *(None,) * padding, noted)[: len(particle.record.segments)]
