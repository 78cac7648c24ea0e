"""From trajectories to training data: what is censored, the split, targets, weights and batches.

All trajectories count, failures included. Every state has the weight of its *task*, never of its own
trajectory: how long a run will be is part of the future, so a weight 1/length would favour short successes over
long failures at the very same state and bias V. A weight that depends on the task alone keeps tasks with long
runs from dominating and leaves the target, E[return | state], as it is. Where the runs come from a resampled
population, `value.targets` says what a return counts for a state.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.errors import TrainingDataError
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.targets import importance, lambda_returns, task_of
from langgraph_amc.value.tokens import Window, encode, windows

_CENSORED = ("pruned", "interrupted", "truncated")


@dataclass(frozen=True, slots=True)
class States:
    """All states of a data set whose return can be weighted, one row each.

    ``returns`` [n], ``learnt`` [n] (what V is to say: returns, or TD(λ)), ``importance`` [n] (how much its return
    counts for a state, 1 without resampling), ``weights`` [n] (of task × importance, mean 1), ``task`` [n] (a
    number per task), ``step`` [n], ``final`` [n] (the last state of its trajectory), ``key`` [n] (equal for equal
    transcripts).
    """

    returns: NDArray[np.float64]
    learnt: NDArray[np.float64]
    importance: NDArray[np.float64]
    weights: NDArray[np.float64]
    task: NDArray[np.int64]
    step: NDArray[np.int64]
    final: NDArray[np.bool_]
    key: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.returns)


@dataclass(frozen=True, slots=True)
class DataSet:
    """Token windows, whose ``states`` are rows of ``states``, and those rows."""

    windows: tuple[Window, ...]
    states: States

    @property
    def tokens(self) -> int:
        """Tokens in all windows."""
        return sum(len(window.ids) for window in self.windows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded token ids [rows, tokens], and for each readout its row, its column and its state."""

    ids: Tensor
    rows: Tensor
    columns: Tensor
    states: Tensor


def usable(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], dict[str, int]]:
    """Those with a known future return, failures included, and why the others were left out.

    Raises
    ------
    TrainingDataError: nothing is left, a number is not finite, or transcripts with different options are mixed.
    """
    kept, left_out = [], Counter[str]()
    for trajectory in trajectories:
        if trajectory.status in _CENSORED:
            left_out[trajectory.status] += 1
        elif trajectory.outcome is None:
            left_out["missing outcome"] += 1
        else:
            kept.append(trajectory)
    if not kept:
        found = f"; left out: {dict(left_out)}" if left_out else ""
        raise TrainingDataError(f"no trajectory with a known outcome to train on{found}: collect and evaluate runs")
    for trajectory in kept:
        if not np.isfinite(trajectory.returns() or ()).all():
            raise TrainingDataError(f"run {trajectory.run_id!r}, particle {trajectory.particle!r}: return not finite")
    fingerprints = sorted({trajectory.fingerprint for trajectory in kept})
    if len(fingerprints) > 1:
        raise TrainingDataError(
            f"transcripts written with different options are mixed ({', '.join(map(repr, fingerprints))}):"
            " train on one kind"
        )
    return kept, dict(left_out)


def split_by_task(
    trajectories: Sequence[Trajectory], fraction: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Training and validation trajectories with no task in both; one task alone is all for training."""
    tasks = sorted({task_of(t) for t in trajectories})
    count = 0 if fraction == 0 or len(tasks) < 2 else min(len(tasks) - 1, max(1, round(fraction * len(tasks))))
    held_out = set(np.random.default_rng(seed).permutation(len(tasks))[:count].tolist())
    names = {task for number, task in enumerate(tasks) if number in held_out}
    train = [t for t in trajectories if task_of(t) not in names]
    return train, [t for t in trajectories if task_of(t) in names]


def build(
    trajectories: Sequence[Trajectory],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    known: Mapping[str, int] | None = None,
    td_lambda: float = 1.0,
) -> DataSet:
    """Tokenise trajectories and lay out their states; ``known`` as `known_from` gives it for whole runs.

    States whose return cannot be weighted are read over, like tokens.
    """
    states, there = states_of(trajectories, known or {}, td_lambda)
    row = np.cumsum(there) - 1
    cut: list[Window] = []
    offset = 0
    for encoded in encode(tokenizer, [t.segments for t in trajectories]):
        for window in windows(encoded, max_length):
            kept = there[window.states + offset]
            if kept.any():
                rows = row[window.states + offset]
                cut.append(Window(window.ids, window.readouts[kept], rows[kept]))
        offset += len(encoded.readouts)
    return DataSet(tuple(cut), states)


def states_of(
    trajectories: Sequence[Trajectory], known: Mapping[str, int], td_lambda: float
) -> tuple[States, NDArray[np.bool_]]:
    """The states with a target, and which of all states they are."""
    numbers: dict[str, int] = {}
    lengths: dict[int, list[int]] = defaultdict(list)
    keys: dict[bytes, int] = {}
    rows: list[tuple[float, float, float, int, int, bool, int]] = []
    for trajectory in trajectories:
        task = numbers.setdefault(task_of(trajectory), len(numbers))
        returns, learnt = trajectory.returns(), lambda_returns(trajectory, td_lambda)
        assert returns is not None  # `usable` has sorted the others out
        assert learnt is not None
        lengths[task].append(len(returns))
        counts = importance(trajectory, known.get(trajectory.run_id, 0)).tolist()
        prefix = hashlib.blake2b(digest_size=16)
        for step, segment in enumerate(trajectory.segments):
            data = segment.encode("utf-8", "surrogatepass")
            prefix.update(len(data).to_bytes(8, "big") + data)
            key = keys.setdefault(prefix.digest(), len(keys))
            last = step == len(returns) - 1
            rows.append((returns[step], learnt[step], counts[step], task, step, last, key))
    there = np.array([row[2] > 0 for row in rows])
    if not there.any():
        raise TrainingDataError(
            "no state has a target: the populations were resampled, and it was not recorded how; collect anew"
        )
    columns = zip(*(row for row in rows if row[2] > 0), strict=True)
    returned, learnt_column, counted, task_column, step_column, final_column, key_column = columns
    weights = np.array([c / np.mean(lengths[task]) for c, task in zip(counted, task_column, strict=True)])
    states = States(
        returns=np.array(returned, dtype=np.float64),
        learnt=np.array(learnt_column, dtype=np.float64),
        importance=np.array(counted, dtype=np.float64),
        weights=weights / weights.mean(),
        task=np.array(task_column, dtype=np.int64),
        step=np.array(step_column, dtype=np.int64),
        final=np.array(final_column, dtype=np.bool_),
        key=np.array(key_column, dtype=np.int64),
    )
    return states, there


def targets(states: States, head: ReturnHead, average_siblings: bool) -> Tensor:
    """Training targets [n, head size]; siblings that share a state share the weighted mean of their targets.

    The mean over runs that went through one state has less noise than each of their returns, and for a
    distribution it is the empirical distribution of returns from that state.
    """
    encoded = head.encode(torch.from_numpy(states.learnt).clamp(head.low, head.high))
    if not average_siblings:
        return encoded
    key, counts = torch.from_numpy(states.key), torch.from_numpy(states.importance)
    groups = int(key.max()) + 1
    sums = torch.zeros(groups, encoded.shape[1], dtype=torch.float64).index_add_(
        0, key, encoded.double() * counts[:, None]
    )
    return (sums / torch.bincount(key, counts, minlength=groups)[:, None])[key].float()


def batches(data: DataSet, batch_tokens: int, rng: np.random.Generator | None, pool: int = 16) -> Iterator[Batch]:
    """Right-padded batches of at most ``batch_tokens`` tokens, padding included, each of similar lengths.

    With ``rng``: windows are shuffled, sorted by length within pools of about ``pool`` batches only, and the
    batches are shuffled again, so that batches differ from epoch to epoch. Without: sorted by length. A window
    longer than ``batch_tokens`` is a batch of its own.
    """
    lengths = np.array([len(window.ids) for window in data.windows])
    order = np.argsort(lengths, kind="stable") if rng is None else rng.permutation(len(lengths))
    if rng is not None:
        size = max(1, pool * batch_tokens // max(1, int(lengths.mean())))
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        order = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools])
    groups: list[list[int]] = []
    longest = 0
    for index in order.tolist():
        grown = max(longest, int(lengths[index]))
        if groups and grown * (len(groups[-1]) + 1) <= batch_tokens:
            groups[-1].append(index)
            longest = grown
        else:
            groups.append([index])
            longest = int(lengths[index])
    for group in groups if rng is None else [groups[i] for i in rng.permutation(len(groups))]:
        yield collate([data.windows[index] for index in group])


def collate(chosen: Sequence[Window]) -> Batch:
    """Pad windows on the right; the padding id does not matter, for nothing looks at it."""
    ids = np.zeros((len(chosen), max(len(window.ids) for window in chosen)), dtype=np.int64)
    for row, window in enumerate(chosen):
        ids[row, : len(window.ids)] = window.ids
    rows = np.repeat(np.arange(len(chosen)), [len(window.readouts) for window in chosen])
    columns = np.concatenate([window.readouts for window in chosen])
    states = np.concatenate([window.states for window in chosen])
    return Batch(torch.from_numpy(ids), torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(states))


def default_batch_tokens(data: DataSet) -> int:
    """At least about 50 updates an epoch, between 1,024 and 4,096 tokens, never less than the longest window."""
    longest = max(len(window.ids) for window in data.windows)
    return max(longest, min(4096, max(1024, data.tokens // 50)))


def status_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """How many trajectories ended in which status."""
    return dict(sorted(Counter(t.status for t in trajectories).items()))
