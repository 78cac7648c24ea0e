"""In which row each state of a run's tree is drawn: the selected lineage straight along the top, branches below.

The tree is cut into chains, each a path that goes on with the child that leads furthest. A chain takes the free row
nearest to the one it branches from; a row is free again when its chain has ended.
"""

from __future__ import annotations

from collections.abc import Sequence


def rows(parents: Sequence[int | None], steps: Sequence[int], selected: Sequence[bool]) -> list[int]:
    """The row of each state.

    Parameters
    ----------
    parents: index of each state's parent, which comes before it; ``None`` for a root. All arguments have shape [n].
    selected: whether a state is on the path that gets row 0 for itself.
    """
    children: list[list[int]] = [[] for _ in parents]
    for i, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(i)
    reach = list(steps)
    for i in reversed(range(len(parents))):
        reach[i] = max([reach[i], *(reach[c] for c in children[i])])
    heir = [max(found, key=lambda c: (selected[c], reach[c], -c), default=None) for found in children]
    starts = [i for i, parent in enumerate(parents) if parent is None or heir[parent] != i]
    found = [0] * len(parents)
    until: list[float] = [float("inf")] if any(selected) else []
    # those that begin first choose first; the selected path has its row already
    for start in sorted(starts, key=lambda i: (not selected[i], steps[i], i)):
        chain = _chain(start, heir)
        row = 0 if selected[start] else _free(until, steps[start], _wanted(parents[start], found))
        if row == len(until):
            until.append(steps[chain[-1]])
        elif row or not any(selected):
            until[row] = steps[chain[-1]]
        for i in chain:
            found[i] = row
    return found


def _chain(start: int, heir: Sequence[int | None]) -> list[int]:
    chain = [start]
    while (following := heir[chain[-1]]) is not None:
        chain.append(following)
    return chain


def _wanted(parent: int | None, found: Sequence[int]) -> int:
    return 0 if parent is None else found[parent]


def _free(until: Sequence[float], step: int, wanted: int) -> int:
    """The nearest row that is free from this step on; a new one where none is."""
    free = [row for row, end in enumerate(until) if end < step]
    return min([*free, len(until)], key=lambda row: (abs(row - wanted), row))
