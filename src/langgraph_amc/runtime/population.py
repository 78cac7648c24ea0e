"""The particles of one run, as the filter of `langgraph_amc.smc` sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from langgraph_amc.context import ParticleContext
from langgraph_amc.errors import AMCError
from langgraph_amc.runtime.cells import Packed, freeze
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.particle import Event, Launch, Particle
from langgraph_amc.runtime.record import messages_of
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.smc import Arrival
from langgraph_amc.tasks.rewards import FinishedRun, RewardFunction
from langgraph_amc.tasks.task import Task
from langgraph_amc.value.protocol import FloatArray

Scorer = Callable[[Sequence[Sequence[str]]], FloatArray]


class ScoreError(AMCError):
    """The value function gave something that is not one number per state."""


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
    candidates: list[Particle] = field(default_factory=list)
    """Every particle that was not pruned, in order of birth."""
    born: list[Particle] = field(default_factory=list)
    unrewarded: list[str] = field(default_factory=list)
    """Why rewards are missing."""
    emitted: int = 0
    _names: int = 0

    async def start(self, n: int) -> Sequence[Particle]:
        # each particle owns its input: add_messages and nodes write into what they are given
        frozen = None if self.launch.alone else freeze(self.input)
        for _ in range(n):
            own = frozen.thaw() if isinstance(frozen, Packed) else self.input
            store = None if self.store is None else OverlayStore(self.store)
            self._add(Particle(self.launch, self._name(), self.root.fork(), store, own))
        return list(self.candidates)

    async def advance(self, particles: Sequence[Particle], until: int | None) -> Sequence[Arrival]:
        running = [p for p in particles if not p.done]
        await self.launch.engine.gather([p.advance(until) for p in running])
        ended = [p for p in running if p.done]
        for particle in ended:
            particle.outcome = await self._observe(particle)
        await self._estimate([p for p in ended if p.status != "failed"])
        return [self._arrival(p) for p in particles]

    async def score(self, particles: Sequence[Particle]) -> FloatArray:
        values = await self._score(particles)
        for particle, value in zip(particles, values, strict=True):
            _note_value(particle, float(value))
        return values

    async def fork(self, particle: Particle) -> Particle:
        return self._add(particle.fork(self._name()))

    async def prune(self, particle: Particle) -> None:
        if particle in self.candidates and not particle.done:
            self.candidates.remove(particle)
        await particle.prune()

    async def prune_all(self, keep: Particle | None = None) -> None:
        """End every held run but ``keep``."""
        for particle in self.born:
            if particle is not keep:
                await particle.prune()

    def settled(self) -> list[Event]:
        """Stream events that every particle still in the race has in common and that were not given yet."""
        lineages = [p.lineage for p in self.candidates]
        events: list[Event] = []
        while lineages and all(len(line) > self.emitted for line in lineages):
            segment = lineages[0][self.emitted]
            if any(line[self.emitted] is not segment for line in lineages):
                break
            events.extend(segment)
            self.emitted += 1
        return events

    # -- inside ----------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"p{self._names - 1}"

    def _add(self, particle: Particle) -> Particle:
        self.candidates.append(particle)
        self.born.append(particle)
        return particle

    async def _observe(self, particle: Particle) -> float | None:
        if self.reward is None or particle.status != "finished":
            return None
        run = FinishedRun(task=self.task, output=particle.output, messages=messages_of(particle.state), trajectory=None)
        engine = self.launch.engine
        result = await engine.call(self.reward.aevaluate if engine.is_async else self.reward.evaluate, run)
        if result.error is not None:
            self.unrewarded.append(result.error)
        return result.value

    async def _estimate(self, ended: Sequence[Particle]) -> None:
        """V of a last state stands in for an outcome that was not observed."""
        unknown = [p for p in ended if p.outcome is None]
        if not unknown or self.score_states is None:
            return
        for particle, value in zip(unknown, await self._score(unknown), strict=True):
            _note_value(particle, float(value))

    async def _score(self, particles: Sequence[Particle]) -> FloatArray:
        if self.score_states is None:
            raise AMCError("there is no value function to score with")
        texts = [p.record.segments for p in particles]
        values = np.asarray(await self.launch.engine.call(self.score_states, texts), dtype=np.float64)
        if values.shape != (len(particles),):
            raise ScoreError(f"the value function returned shape {values.shape} for {len(particles)} states")
        if np.isnan(values).any():
            raise ScoreError(
                "the value function returned NaN: a score that is missing has to be asked again or excluded"
            )
        return values

    def _arrival(self, particle: Particle) -> Arrival:
        reward = particle.observed
        if particle.done and particle.outcome is None:
            reward += particle.values[-1] or 0.0 if particle.values else 0.0
        return Arrival(reward, done=particle.done, failed=particle.status == "failed")


def _note_value(particle: Particle, value: float) -> None:
    padding = len(particle.record.segments) - 1 - len(particle.values)
    particle.values = (*particle.values, *(None,) * padding, value)[: len(particle.record.segments)]
