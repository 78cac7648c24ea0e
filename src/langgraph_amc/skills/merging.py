"""Many proposed edits into few: equal ones are one with all their evidence, contradictory ones are weighed by it.

Support is counted in tasks, not in runs or in how often a model repeats itself. Of edits that cannot both be made, the
one with the higher net support stays; where they are even both stay, and the gate decides by running them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from langgraph_amc.skills.edits import alike
from langgraph_amc.skills.sections import same_title
from langgraph_amc.skills.types import Citation, Edit, Rejected


def merge(edits: Iterable[Edit], groups: Iterable[Iterable[int]] = ()) -> tuple[Edit, ...]:
    """The edits that are left, the best supported first.

    Parameters
    ----------
    groups: places of edits that somebody holds to say the same in other words; the best supported one of a group
        stays, with the evidence of all.
    """
    given = list(edits)
    kept = _joined(_grouped(given, groups))
    for one, other in combinations(range(len(kept)), 2):
        if contradict(kept[one], kept[other]):
            first, second = kept[one], kept[other]
            kept[one] = _opposed(first, second.supports)
            kept[other] = _opposed(second, first.supports)
    beaten = {
        i
        for i, edit in enumerate(kept)
        for j, other in enumerate(kept)
        if i != j and contradict(edit, other) and net(other) > net(edit)
    }
    return tuple(sorted((edit for i, edit in enumerate(kept) if i not in beaten), key=net, reverse=True))


def net(edit: Edit) -> int:
    """Tasks for an edit less tasks against it."""
    return edit.support - edit.opposition


def contradict(one: Edit, other: Edit) -> bool:
    """Whether only one of two different edits can be made: of one section, or of a skill that the other deletes."""
    if one.skill != other.skill or one.key == other.key:
        return False
    if "delete skill" in (one.op, other.op):
        return True
    return "section" in one.op and "section" in other.op and same_title(one.section, other.section)


def fresh(edits: Iterable[Edit], rejected: Sequence[Rejected]) -> tuple[Edit, ...]:
    """The edits that are like none of the rejected single ones."""
    known = [r.proposal.edits[0] for r in rejected if len(r.proposal.edits) == 1]
    return tuple(edit for edit in edits if not any(alike(edit, old) for old in known))


def _grouped(edits: Sequence[Edit], groups: Iterable[Iterable[int]]) -> list[Edit]:
    left = dict(enumerate(edits))
    found = []
    for group in groups:
        places = [i for i in dict.fromkeys(group) if i in left]
        if len({("delete" in left[i].op, left[i].skill) for i in places}) > 1:
            continue  # whoever grouped them was wrong: they change different things
        members = [left.pop(i) for i in places]
        if members:
            best = max(members, key=net)
            found.append(_joined_evidence(best, members))
    return [*found, *left.values()]


def _joined(edits: Iterable[Edit]) -> list[Edit]:
    kept: list[Edit] = []
    for edit in edits:
        same = next((i for i, known in enumerate(kept) if alike(known, edit)), None)
        if same is None:
            kept.append(edit)
        else:
            pair = (kept[same], edit)
            kept[same] = _joined_evidence(max(pair, key=net), pair)
    return kept


def _joined_evidence(best: Edit, members: Iterable[Edit]) -> Edit:
    listed = list(members)
    supports = dict.fromkeys(c for e in (best, *listed) for c in e.supports)
    contradicts = dict.fromkeys(c for e in (best, *listed) for c in e.contradicts)
    return replace(best, supports=tuple(supports), contradicts=tuple(contradicts))


def _opposed(edit: Edit, by: Iterable[Citation]) -> Edit:
    own = set(edit.supports)
    more = dict.fromkeys((*edit.contradicts, *(citation for citation in by if citation not in own)))
    return replace(edit, contradicts=tuple(more))
