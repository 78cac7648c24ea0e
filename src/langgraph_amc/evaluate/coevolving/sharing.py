"""Which rollouts told the weights, the gate and the proposer, and whether any told nobody: counted from the store."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields

from langgraph_amc.coevolve.standing import NOTE, Note
from langgraph_amc.evaluate.coevolving.rollouts import LOOKED_AT
from langgraph_amc.evaluate.evolving.rollouts import TRAIN
from langgraph_amc.evolution.history import Log
from langgraph_amc.trajectories.store import TrajectoryStore

Place = tuple[object, ...]
"""Of a rollout: generation, pair, sign, task, repeat, and digest of the library."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Rollouts in a run's store.

    Attributes
    ----------
    train: of the generations that are in the history. weights: of them, with a reward that a step was made from.
    gate: with a reward that a trial's comparison was made from, or will be. both: told both.
    proposer: shown to it when it was asked.
    missing: have no reward. neither: have a reward, and told neither weights nor gate nor proposer.
    measured: of the validation and held-out tasks. unfinished: of a generation that was broken off.
    """

    train: int = 0
    weights: int = 0
    gate: int = 0
    both: int = 0
    proposer: int = 0
    missing: int = 0
    neither: int = 0
    measured: int = 0
    unfinished: int = 0

    def to_text(self) -> str:
        """One line for a terminal."""
        return (
            f"{self.train:,} rollouts: {self.weights:,} told the weights, {self.gate:,} the gate, {self.both:,} both, "
            f"{self.proposer:,} the proposer, {self.neither:,} nobody; {self.missing:,} have no reward; "
            f"{self.measured:,} more to measure"
        )


def count_sharing(log: Log, store: TrajectoryStore, *, weighty: bool = True) -> Sharing:
    """Look every stored rollout up in the history: whose it was, and what was made of it there."""
    rewards, gate = _rewards(log), _tried(log)
    shown = _shown(log)
    counts: Counter[str] = Counter()
    for run in store.runs():
        about = run.metadata
        if about.get("evolution") != TRAIN:
            counts["measured"] += 1
            continue
        if about["generation"] >= len(log.records):
            counts["unfinished"] += 1
            continue
        place: Place = tuple(about[name] for name in ("generation", "pair", "sign", "task", "repeat", "skills"))
        known = not math.isnan(rewards.get(place, math.inf))  # one that the history does not hold told nobody
        uses = {
            "weights": known and weighty and place in rewards,
            "gate": known and place[0] in gate,
            "proposer": (place[0], place[-1]) in shown,
        }
        counts.update(name for name, used in uses.items() if used)
        counts["train"] += 1
        counts["both"] += uses["weights"] and uses["gate"]
        counts["missing"] += not known
        counts["neither"] += known and not any(uses.values())
    return Sharing(**{f.name: counts[f.name] for f in fields(Sharing)})


def _rewards(log: Log) -> dict[Place, float]:
    """The reward of each place in the history."""
    found: dict[Place, float] = {}
    for number, record in enumerate(log.records):
        note = Note.from_json(record.notes[NOTE])
        members = record.update.generation.members
        each = len(members) // len(note.arms)
        for row, member in enumerate(members):
            columns = zip(record.notes["tasks"], record.notes["repeats"], note.arms[row // each], strict=True)
            for column, (task, repeat, arm) in enumerate(columns):
                place = (number, member.pair, member.sign, task, repeat, note.libraries[arm])
                found[place] = float(record.rewards[row, column])
    return found


def _tried(log: Log) -> set[int]:
    """Generations in which a challenger was on trial."""
    return {n for n, record in enumerate(log.records) if len(record.notes[NOTE]["libraries"]) > 1}


def _shown(log: Log) -> set[tuple[int, str]]:
    """Generation and library of what the proposer was shown when it was asked."""
    found: set[tuple[int, str]] = set()
    for number, record in enumerate(log.records):
        note = Note.from_json(record.notes[NOTE])
        if note.asked:
            found |= {(past, note.champion) for past in range(max(0, number + 1 - LOOKED_AT), number + 1)}
    return found
