"""ScienceWorld's tasks: one per variation of each kind, with ScienceWorld's own splits or those of the AMC paper."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from langgraph_amc.checks import is_whole
from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc_scienceworld.catalogue import AMC_KINDS, KINDS, Kind, ScienceWorldError, kind
from langgraph_amc_scienceworld.world import STEP_LIMIT, ScienceWorldTask

Ids = str | Path | Iterable[int]


def tasks(
    *,
    names: str | Iterable[str] = AMC_KINDS,
    variations: int | None = None,
    simplifications: str = "",
    step_limit: int = STEP_LIMIT,
    train_ids: Ids | None = None,
    test_ids: Ids | None = None,
) -> TaskSet:
    """The tasks, one of every kind in turn, so that the first ones of a split are of all kinds.

    Metadata: ``kind`` (4-1), ``variation``, ``index`` (AgentGym's number, `None` for a kind that it leaves out) and
    ``own_split`` (where ScienceWorld has it).

    Parameters
    ----------
    names: kinds of task, or one; those of the AMC paper by default.
    variations: at most so many of a kind in each split; they are chosen by id.
    simplifications: names separated by commas, for example ``easy``.
    step_limit: actions in an episode.
    train_ids, test_ids: AgentGym's numbers, or a file with a JSON list of them: the splits of the AMC paper with its
        repository's ``sciworld_idx`` files. Then ``tune`` is what else is in ScienceWorld's dev split, and all other
        tasks are left out.

    Raises
    ------
    ScienceWorldError: a kind, a simplification or a number that ScienceWorld has not, or a number on both sides.
    """
    if (train_ids is None) != (test_ids is None):
        raise ScienceWorldError("give train_ids and test_ids, or neither: the splits are made of both")
    if variations is not None and not is_whole(variations, 1):
        raise ScienceWorldError(f"variations={variations!r}: it is a whole number of at least 1, or None for all")
    if not isinstance(names, Iterable):
        raise ScienceWorldError(f"names={names!r}: it is a kind of task, or several, of {', '.join(KINDS)}")
    chosen = [kind(name) for name in ([names] if isinstance(names, str) else dict.fromkeys(names))]
    given = None if train_ids is None or test_ids is None else _given(train_ids, test_ids)
    index = {pair: number for number, pair in enumerate(agentgym())}
    places: list[tuple[int, int, Task]] = []
    for column, of_kind in enumerate(chosen):
        taken = {"train": 0, "tune": 0, "test": 0}
        for variation in _mixed(of_kind):
            number = index.get((of_kind.name, variation))
            split = _split(of_kind, variation, number, given)
            if split is None or (variations is not None and taken[split] >= variations):
                continue
            task = ScienceWorldTask(of_kind.name, variation, simplifications, step_limit)
            metadata = {
                "kind": of_kind.number,
                "variation": variation,
                "index": number,
                "own_split": of_kind.split(variation),
            }
            places.append(
                (taken[split], column, Task(_id(task), {"task": asdict(task)}, metadata=metadata, split=split))
            )
            taken[split] += 1
    return TaskSet(task for *_, task in sorted(places, key=lambda place: place[:2]))


def agentgym() -> list[tuple[str, int]]:
    """Name and variation by AgentGym's task number: the variations of its 23 kinds one after the other."""
    return [(name, variation) for name in AMC_KINDS for variation in range(KINDS[name].variations)]


def _given(train_ids: Ids, test_ids: Ids) -> dict[int, str]:
    train, test, known = _numbers(train_ids), _numbers(test_ids), len(agentgym())
    if both := sorted(set(train) & set(test)):
        raise ScienceWorldError(f"{len(both)} tasks are in train_ids and in test_ids, for example {both[0]}")
    if unknown := [number for number in (*train, *test) if not 0 <= number < known]:
        raise ScienceWorldError(f"AgentGym's task numbers are 0 to {known - 1}, not {unknown[0]}")
    return dict.fromkeys(train, "train") | dict.fromkeys(test, "test")


def _numbers(ids: Ids) -> Sequence[int]:
    found: object = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else ids
    if isinstance(ids, (str, Path)):
        try:
            found = json.loads(Path(ids).read_text("utf-8"))
        except (OSError, ValueError) as exc:
            raise ScienceWorldError(
                f"{ids} cannot be read as AgentGym's task numbers ({exc}): give the file's path; it is not shipped "
                "here, see the README"
            ) from exc
    if not isinstance(found, list) or any(type(number) is not int for number in found):
        raise ScienceWorldError(f"{ids} is no list of AgentGym's task numbers: a JSON list of integers is needed")
    return found


def _split(of_kind: Kind, variation: int, number: int | None, given: dict[int, str] | None) -> str | None:
    own = of_kind.split(variation)
    if given is None:
        return own
    return given.get(-1 if number is None else number, "tune" if own == "tune" else None)


def _mixed(of_kind: Kind) -> list[int]:
    """Its variations in an order of their own: neighbours are much alike."""

    def place(variation: int) -> bytes:
        return hashlib.sha256(f"{of_kind.name}:{variation}".encode()).digest()

    return sorted(range(of_kind.variations), key=place)


def _id(task: ScienceWorldTask) -> str:
    parts = [f"scienceworld-{task.name}-{task.variation}"]
    if task.simplifications:
        parts.append("+".join(sorted(task.simplifications.split(","))))
    if task.step_limit != STEP_LIMIT:
        parts.append(f"{task.step_limit}-steps")
    return "-".join(parts)
