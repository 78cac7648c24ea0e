"""A particle's effects: what it holds, what it may run, its sessions, and what became of it all.

A scope is forked with its particle. Logs are shared with the clones; what a scope holds is its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_amc.runtime.effects.current import current_effects
from langgraph_amc.runtime.effects.errors import DivergenceError, EffectChangedError, SessionError
from langgraph_amc.runtime.effects.identity import Ordinals, canonical, key_of, place_of
from langgraph_amc.runtime.effects.outcome import decode, encode, encode_error
from langgraph_amc.runtime.effects.policy import EffectRules
from langgraph_amc.runtime.effects.records import Answer, Chain, EffectRecord, EffectState, HeldEffect, StatefulCall
from langgraph_amc.runtime.effects.session import Session
from langgraph_amc.runtime.effects.worlds import Worlds
from langgraph_amc.runtime.outbox import Outbox
from langgraph_amc.runtime.watching import EffectSettled, Watch


class EffectScope:
    """The effects of one particle's lineage.

    Parameters
    ----------
    rules: policies of the app's tools.
    run_id, particle: part of every idempotency key.
    outbox: makes committed effects happen once.
    watch: is told what becomes of them.
    """

    def __init__(
        self, rules: EffectRules, run_id: str, particle: str, outbox: Outbox, watch: Watch | None = None
    ) -> None:
        from langgraph_amc.runtime.effects.tools import install  # what it installs knows scopes

        install(rules)
        self.rules, self.run_id, self.particle, self.outbox = rules, run_id, particle, outbox
        self.watch = watch
        self.step = -2
        self.unrecovered: Exception | None = None
        """Why the sessions of a run that a journal brought back could not be made again when it was adopted."""
        self._lock = threading.RLock()
        self._past: Chain[EffectRecord] = Chain()
        self._pending: dict[str, HeldEffect] = {}
        """Held effects, and released ones that have not run."""
        self._released: set[str] = set()
        self._open = False
        self._forked = False
        self._told: dict[str, dict[str, Any]] = {}
        """What humans were asked inside held effects, and have answered by the questions' ids; by key."""
        self._answers: dict[str, Answer] = {}
        """Outcomes of gated calls of the present super-step, which may be run again."""
        self._noted: set[tuple[str, str]] = set()
        """Keys and states that are in ``_past`` and may come again."""
        self._ordinals = Ordinals()
        self.worlds = Worlds(self.enter)

    # -- for the runtime -------------------------------------------------------------------------

    @contextmanager
    def enter(self) -> Iterator[EffectScope]:
        """Nodes that run within act for this particle."""
        token = current_effects.set(self)
        try:
            yield self
        finally:
            current_effects.reset(token)

    def at_step(self, step: int) -> None:
        """The particle stands at super-step ``step`` of the root graph: what is called next is not a repetition.

        An effect that is still pending was not asked for again, or its node went on without it: it is dropped.
        """
        with self._lock:
            if step != self.step:
                self.drop()
                self.step = step
                self._answers.clear()
                self._told.clear()
                self._noted.clear()
                self._ordinals = Ordinals()

    def fork(self, particle: str) -> EffectScope:
        """The scope of a clone; O(sessions). Raises SessionError where a session can in no way be copied."""
        if self.held:
            raise RuntimeError("a particle that holds effects is not forked: release or drop them first")
        clone = EffectScope(self.rules, self.run_id, particle, self.outbox, self.watch)
        with self._lock:
            clone.step, clone._past = self.step, self._past
            clone._forked = self._forked = True
            self._open = False  # two lineages now: neither is selected
            clone.worlds = self.worlds.fork(clone.enter)
        return clone

    @property
    def held(self) -> tuple[HeldEffect, ...]:
        """Effects that wait for this lineage to be selected."""
        with self._lock:
            return tuple(h for k, h in self._pending.items() if k not in self._released)

    @property
    def records(self) -> tuple[EffectRecord, ...]:
        """The lineage's effects, in order of their fate; held ones last."""
        with self._lock:
            return (*self._past, *(self._record(h, "held") for h in self._pending.values()))

    def release(self) -> None:
        """This lineage is selected: what it holds may run when the particle is re-entered.

        Raises EffectChangedError where a node asked for an effect, was allowed it, and asks for another instead.
        """
        with self._lock:
            for held in self.held:
                stale = [h for k, h in self._pending.items() if k in self._released and h.place == held.place]
                if stale and held.tool_call_id is None:
                    raise EffectChangedError(
                        f"{held.tool}({stale[0].arguments}) was held and released, but its node now asks for "
                        f"{held.tool}({held.arguments}): compute the arguments in an earlier node, so that they "
                        "are the same when the node is run again"
                    )
            self._released.update(self._pending)
            self._ordinals = Ordinals()

    def release_all(self) -> None:
        """Only one lineage is left: effects run when they are asked for. A fork ends this."""
        self.release()
        self._open = True

    def drop(self) -> None:
        """The particle is pruned or not selected: what it holds never happens."""
        with self._lock:
            for held in self._pending.values():
                self._past = self._past.add(self._record(held, "dropped"))
                self._tell(self._record(held, "dropped"))
            self._pending.clear()

    def adopt(self) -> None:
        """Make this particle's sessions the process-wide ones; the next turn begins in its world."""
        with self._handing_over():
            self.worlds.recover()

    async def aadopt(self) -> None:
        """`adopt` on an event loop, where stateful tools may be asynchronous."""
        with self._handing_over():
            await self.worlds.arecover()

    @contextmanager
    def _handing_over(self) -> Iterator[None]:
        """What a journal's log no longer leads to is told, and does not take the answer away with it."""
        lost = self.worlds.lost
        try:
            yield
        except (DivergenceError, SessionError) as error:
            if not lost:
                raise
            self.unrecovered = error
        else:
            self.worlds.hand_over()

    def close(self) -> None:
        """Close this particle's own sessions; raises the first error after all were closed."""
        self.worlds.close()

    # -- for the gate ----------------------------------------------------------------------------

    def identify(self, tool: str, arguments: Any, tool_call_id: str | None, config: RunnableConfig) -> tuple[str, str]:
        """Key and place of a call that is being made."""
        place = place_of(self.step, tool, config)
        call = canonical([place, tool_call_id, arguments])
        with self._lock:
            ordinal = self._ordinals.next(call, config, counted=tool_call_id is None)
        return key_of(self.run_id, self.particle, call, ordinal), place

    def may_run(self, key: str) -> bool:
        return self._open or key in self._released

    def hold(self, held: HeldEffect, told: Mapping[str, Any] | None = None) -> None:
        """``told``: a human's answers to questions asked inside it, by their ids."""
        with self._lock:
            self._pending[held.key] = held
            if told:
                self._told[held.key] = dict(told)
        self._tell(self._record(held, "held"))

    def take_answers(self, key: str) -> dict[str, Any]:
        """A human's answers to what the effect asks; once: the same question of a later time is a new one."""
        with self._lock:
            return self._told.pop(key, {})

    def settled(self, record: EffectRecord) -> None:
        """Note what became of an effect; once per key and state."""
        with self._lock:
            self._pending.pop(record.key, None)
            if (record.key, record.state) not in self._noted:
                self._noted.add((record.key, record.state))
                self._past = self._past.add(record)
                self._tell(record)

    def answered(self, key: str) -> Answer | None:
        """The outcome of the same call in an earlier run of this super-step."""
        return self._answers.get(key)

    def remember(self, key: str, answer: Answer) -> None:
        with self._lock:
            self._answers[key] = answer

    def log(self, call: StatefulCall) -> None:
        with self._lock:
            self._answers[call.key] = call.answer
            self.worlds.log(call)

    def session(self, session: Session[Any]) -> Any:
        """This particle's object of a session."""
        return self.worlds.session(session, direct=self._open and not self._forked)

    def _tell(self, record: EffectRecord) -> None:
        if self.watch is not None:
            self.watch.tell(EffectSettled, record=record)

    def _record(self, held: HeldEffect, state: EffectState) -> EffectRecord:
        return EffectRecord(held.tool, held.arguments, "commit", state, self.particle, held.key)

    # -- for the journal -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What `restored` needs, as JSON: step, released keys, fates, and the log of stateful calls."""
        with self._lock:
            return {
                "step": self.step,
                "open": self._open,
                "released": sorted(self._released & set(self._pending)),
                "pending": [
                    {"key": h.key, "tool": h.tool, "arguments": h.arguments, "call": h.tool_call_id, "place": h.place}
                    for h in self._pending.values()
                ],
                "records": [r.json() for r in self._past],
                "calls": [_call_json(c) for c in self.worlds.calls],
                "told": {key: {i: encode(v) for i, v in told.items()} for key, told in self._told.items()},
            }

    @classmethod
    def restored(
        cls,
        rules: EffectRules,
        run_id: str,
        particle: str,
        outbox: Outbox,
        state: dict[str, Any],
        watch: Watch | None = None,
    ) -> EffectScope:
        """The scope a journal kept; its sessions are made again by repeating the logged calls when first used."""
        from langgraph_amc.runtime.effects.tools import logged_call

        scope = cls(rules, run_id, particle, outbox)
        scope.step, scope._open = state["step"], state["open"]
        scope._released = set(state["released"])
        for held in state["pending"]:
            scope.hold(HeldEffect(held["key"], held["tool"], held["arguments"], held["call"], held["place"]))
        for record in state["records"]:
            scope.settled(EffectRecord(**record))
        for call in state["calls"]:
            logged = logged_call(rules, call)
            scope.worlds.log(logged)
            if logged.step == scope.step:
                scope._answers[logged.key] = logged.answer
        scope.watch = watch  # what happened before is no news
        scope._told = {key: _decoded(told) for key, told in state.get("told", {}).items()}
        scope.worlds.lost = bool(state["calls"])
        return scope


def _decoded(told: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Answers as they were; one whose type has no safe form is asked for again."""
    return {i: decode(stored) for i, stored in told.items() if "lost" not in stored}


def _call_json(call: StatefulCall) -> dict[str, Any]:
    error = call.answer.error
    return {
        "key": call.key,
        "step": call.step,
        "tool": call.tool,
        "arguments": call.arguments,
        "call": call.tool_call_id,
        "result": None if error is not None else encode(call.answer.value),
        "error": None if error is None else encode_error(error),
    }
