"""Particles on their way, some of them longer than one check: who is late is left running.

`Engine.gather` waits for everybody. Where stragglers are not waited for (`smc.quorum`), or a particle that has ended
makes the others needless, each particle runs as a task or in a thread of its own that outlives the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from langgraph_amc.runtime.engine import AsyncEngine, Engine, complete
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.smc import Quorum

Job = asyncio.Task[None] | Future[None]
Run = Callable[[Particle, int | None], Coroutine[Any, Any, None]]


class Flights:
    """Runs particles; `threads` at once in a run without an event loop."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._up: dict[Particle, Job] = {}

    async def fly(
        self,
        particles: Sequence[Particle],
        until: int | None,
        run: Run,
        *,
        quorum: Quorum | None,
        deadline: float | None,
        enough: Callable[[], bool],
    ) -> set[Particle]:
        """Run each on to boundary `until` or its end; who is still on its way when this ends.

        That is when all are there, the quorum's patience is over, the deadline has come, or those there are enough.
        Raises the first error of a particle that is no result of its own.
        """
        if enough():
            return set(particles)
        began, took = time.monotonic(), list[float]()
        flying: dict[Any, Particle] = {self._up.get(p) or self._launch(p, until, run): p for p in particles}
        try:
            while flying and not enough():
                left = self._left(began, took, len(particles), quorum if until is not None else None, deadline)
                if left is not None and left <= 0:
                    break
                for job in await self._first(list(flying), left):
                    particle = flying.pop(job)
                    del self._up[particle]
                    job.result()
                    if self._there(particle, until):
                        took.append(time.monotonic() - began)
                    else:  # it was on its way to an earlier boundary
                        flying[self._launch(particle, until, run)] = particle
        except BaseException:
            self._engine.stopping = True
            if isinstance(self._engine, AsyncEngine) and self._engine.patient:
                for job in flying:  # to their next super-steps, so that what they are about to be told is not lost
                    await asyncio.wait([job])
            raise
        return set(flying.values())

    async def ground(self, particle: Particle) -> bool:
        """End a particle's flight: at once on an event loop, else at its next super-step; whether it was in one."""
        job = self._up.pop(particle, None)
        if job is None:
            return False
        particle.halted = True
        job.cancel()
        if isinstance(job, Future):
            wait([job])
        else:
            await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # it is given up: what it ended with is nobody's concern
        return True

    def close(self) -> None:
        """Nobody flies any more."""
        if self._pool is not None:
            self._pool.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _launch(self, particle: Particle, until: int | None, run: Run) -> Job:
        job: Job
        if self._engine.is_async:
            job = asyncio.create_task(run(particle, until))
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="amc-particle")
            job = self._pool.submit(contextvars.copy_context().run, complete, run(particle, until))
        self._up[particle] = job
        return job

    def _there(self, particle: Particle, until: int | None) -> bool:
        return particle.done or self._engine.stopping or (until is not None and particle.boundary >= until)

    @staticmethod
    def _left(
        began: float, took: Sequence[float], n: int, quorum: Quorum | None, deadline: float | None
    ) -> float | None:
        """Seconds to wait for the next one; ``None``: for ever."""
        patience = None if quorum is None else quorum.goes_on_after(took, n)
        ends = [end for end in (deadline, None if patience is None else began + patience) if end is not None]
        return min(ends) - time.monotonic() if ends else None

    async def _first(self, jobs: list[Any], seconds: float | None) -> set[Any]:
        """The jobs that have ended, as soon as one has; none when the time is over."""
        if self._engine.is_async:
            return (await asyncio.wait(jobs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED))[0]
        return wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED)[0]
