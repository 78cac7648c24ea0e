"""What can go wrong with a value function, by name."""

from __future__ import annotations

from langgraph_amc.errors import AMCError


class ValueModelError(AMCError):
    """A value checkpoint or its base model is missing, incomplete, or not what its description says."""


class FingerprintMismatch(ValueModelError):
    """A value function is asked to read transcripts written with other options than it was trained on."""


class TrainingDataError(AMCError, ValueError):
    """The trajectories cannot train a value function."""


class TrainingError(AMCError, RuntimeError):
    """Training went wrong: a loss that is not finite, or weights that receive no gradient."""


class ValueScoreError(AMCError, ValueError):
    """A value function returned something that is not one number per transcript."""
