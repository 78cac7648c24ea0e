"""What a run may take and what its budget buys, said before it is spent: who buys one candidate does not search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.optimizing.rollouts import LibraryRollouts
from langgraph_amc.evaluate.optimizing.study import Study
from langgraph_amc.policy.budget import Budget

CANDIDATES = 3
"""Candidates below which a search has little to choose from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run may take.

    Attributes
    ----------
    candidates: the most that are tried. rollouts: the most in all. each: of one candidate.
    buys: about how many candidates the budget pays for; ``None`` where nothing limits them.
    """

    candidates: int
    rollouts: int
    each: int
    buys: int | None

    def __str__(self) -> str:
        said = f"at most {self.candidates} candidates and {self.rollouts:,} rollouts, {self.each} per candidate"
        if self.buys is None:
            return said
        few = ": too few to choose from" if self.buys < CANDIDATES else ""
        return f"{said}; the budget buys about {min(self.buys, self.candidates)} candidates{few}"


def plan(study: Study, rollouts: LibraryRollouts) -> Plan:
    """The most that a run takes, and what the budget buys by what rollouts have taken so far."""
    each = len(study.validation) * study.measured
    last = 2 * len(study.held_out) * study.measured
    most = each + study.rounds * study.collected + study.trials * each + last
    left = rollouts.affordable()
    if math.isinf(left):
        return Plan(study.trials, most, each, None)
    # each round collects once for its candidates
    per_candidate = each + study.collected / study.candidates
    return Plan(study.trials, most, each, max(0, math.floor((left - each - last) / per_candidate)))


def short_of_money(study: Study, rollouts: LibraryRollouts, further: int) -> str:
    """Why the next candidate is not tried, if the budget does not pay for it and the comparison at the end.

    ``further``: rollouts that come before the candidate.
    """
    candidate = len(study.validation) * study.measured
    last = 2 * len(study.held_out) * study.measured
    need, left = further + candidate + last, rollouts.affordable()
    if left >= need:
        return ""
    kept = f", {last} of them for the comparison at the end" if last else ""
    return (
        f"the budget pays for about {left:.0f} more rollouts, and one more candidate takes {need}{kept}: raise it and "
        "run the same again to go on"
    )


def check_calls(study: Study, budget: Budget | None) -> None:
    """Raise ConfigurationError where a limit on calls cannot pay for one candidate: a rollout takes at least a call."""
    if budget is None or budget.calls is None:
        return
    least = 2 * len(study.validation) * study.measured + study.collected + 2 * len(study.held_out) * study.measured
    if budget.calls < least:
        raise ConfigurationError(
            f"a budget of {budget.calls} calls buys no candidate: measuring the skills as they are, collecting, one "
            f"candidate and the comparison at the end are {least} rollouts of at least one call each; raise it, or "
            "give fewer tasks or a smaller measured"
        )
