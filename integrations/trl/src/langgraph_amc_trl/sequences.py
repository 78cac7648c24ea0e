"""From the model calls of a trajectory to the token sequences that are trained on.

Where a call's prompt begins with all tokens of an earlier call, its prompt and its answer, the two are one sequence:
the model saw, token by token, what it would see in one long conversation. Else (the app rewrote or cut its messages,
or the tokenizer reads an answer back as other tokens) the call is a sequence of its own. The policy's own tokens are
marked; only these enter the loss, each with the trajectory's advantage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model, in tokens: ``answer`` is everything that was sampled, the end token included."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens, and for each whether the policy sampled it (TRL's ``env_mask``); the first never is."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]

    @property
    def context(self) -> int:
        """Tokens before the first sampled one."""
        return self.sampled.index(True)

    @property
    def trained(self) -> int:
        """Sampled tokens."""
        return sum(self.sampled)


@dataclass(slots=True)
class _Growing:
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)

    def extend(self, ids: Iterable[int], sampled: bool) -> None:
        self.ids.extend(ids)
        self.sampled.extend([sampled] * (len(self.ids) - len(self.sampled)))


def sequences_of(calls: Iterable[Call]) -> tuple[TokenSequence, ...]:
    """The sequences of one trajectory; every sampled token is in exactly one of them, in its own context."""
    growing: list[_Growing] = []
    for call in calls:
        fitting = [s for s in growing if call.prompt[: len(s.ids)] == tuple(s.ids)]
        sequence = max(fitting, key=lambda s: len(s.ids), default=None)
        if sequence is None:
            sequence = _Growing()
            growing.append(sequence)
        sequence.extend(call.prompt[len(sequence.ids) :], sampled=False)
        sequence.extend(call.answer, sampled=True)
    return tuple(TokenSequence(tuple(s.ids), tuple(s.sampled)) for s in growing)
