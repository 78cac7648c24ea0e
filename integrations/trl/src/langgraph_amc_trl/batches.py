"""From groups of trajectories to the padded batches of TRL's loss.

A trajectory's advantage counts for each of its sampled tokens, and the loss is a sum over tokens, so it does not
matter into how many sequences a trajectory falls. Sequences of like length are together, padded on the right only:
every token keeps the position it had when it was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from langgraph_amc_trl.advantages import advantages_of
from langgraph_amc_trl.method import GRPO
from langgraph_amc_trl.rollouts import Groups
from langgraph_amc_trl.sequences import TokenSequence, sequences_of


@dataclass(frozen=True, slots=True)
class Weighed:
    """A sequence with its trajectory's advantage."""

    sequence: TokenSequence
    advantage: float


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a batch of rollouts teaches.

    Attributes
    ----------
    sequences: of all trajectories that have a reward.
    sampled_tokens: in them; the loss is a mean over these.
    """

    sequences: tuple[Weighed, ...]
    sampled_tokens: int


def lesson_of(groups: Groups, method: GRPO) -> Lesson:
    """Sequences and advantages of the trajectories that have a reward; the others are left out."""
    advantages = advantages_of(groups.rewards, method.scale).ravel()
    weighed = tuple(
        Weighed(sequence, float(advantage))
        for calls, advantage in zip(groups.calls, advantages, strict=True)
        if not np.isnan(advantage)
        for sequence in sequences_of(calls)
    )
    return Lesson(weighed, sum(w.sequence.trained for w in weighed))


def micro_batches(lesson: Lesson, method: GRPO, step: int) -> list[list[Weighed]]:
    """The lesson in ``method.passes`` parts of about equal size in memory, which may be empty.

    Sequences without an advantage have no gradient and are left out, unless there is a KL divergence to take of them.
    """
    rows = [w for w in lesson.sequences if w.advantage != 0 or method.beta > 0]
    order = np.random.default_rng((method.seed, step)).permutation(len(rows))
    parts: list[list[Weighed]] = []
    for chosen in np.array_split(order, method.minibatches):
        parts.extend(_alike([rows[i] for i in chosen], method.accumulation))
    return parts


def _alike(rows: list[Weighed], parts: int) -> list[list[Weighed]]:
    """``rows`` by length, cut where the tokens up to there pass each part's share."""
    rows = sorted(rows, key=lambda w: len(w.sequence.ids))
    ends = np.cumsum([len(w.sequence.ids) for w in rows])
    cuts = [int(np.searchsorted(ends, ends[-1] * k / parts)) if rows else 0 for k in range(1, parts)]
    return [rows[first:last] for first, last in pairwise([0, *cuts, len(rows)])]


def tensors_of(rows: Sequence[Weighed], sampled_tokens: int, device: torch.device) -> dict[str, Any]:
    """One micro-batch as `trl.GRPOTrainer` takes it.

    Its "prompt" is what all rows have at least before their first sampled token, so none is padded on the left; the
    rest of each row is its "completion", where ``tool_mask`` leaves out what the policy did not sample.
    """
    cut = min(w.sequence.context for w in rows)
    width = max(len(w.sequence.ids) for w in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    there, sampled = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, row in enumerate(rows):
        n = len(row.sequence.ids)
        ids[i, :n] = torch.tensor(row.sequence.ids)
        there[i, :n] = 1
        sampled[i, :n] = torch.tensor(row.sequence.sampled, dtype=torch.long)
    parts = {
        "prompt_ids": ids[:, :cut],
        "prompt_mask": there[:, :cut],
        "completion_ids": ids[:, cut:],
        "completion_mask": there[:, cut:],
        "tool_mask": sampled[:, cut:],
        "advantages": torch.tensor([w.advantage for w in rows], dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(sampled_tokens)),
    }
    return {name: part.to(device) for name, part in parts.items()}
