"""The table of the Sudoku study, of what is there: means, paired differences, and what each arm has cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate

Cell = dict[str, Any]
COLUMNS = ("arm (setting, policy)", "solved", "minus base", "each seed", "trained on", "tokens", "tokens/puzzle")


def crossed(scores: Scores, *, resamples: int = 4000) -> Estimate:
    """Mean of [puzzles, runs] with an interval over puzzles and runs alike (Owen 2007, the pigeonhole bootstrap).

    What a training run has learned shows on all puzzles, so runs are drawn anew for all puzzles together.
    """
    rng = np.random.default_rng(0)
    known, (puzzles, runs) = ~np.isnan(scores), scores.shape
    filled = np.where(known, scores, 0.0)
    rows = rng.multinomial(puzzles, np.full(puzzles, 1 / puzzles), size=resamples)
    columns = rng.multinomial(runs, np.full(runs, 1 / runs), size=resamples)
    sums = ((rows @ filled) * columns).sum(axis=1)
    counts = ((rows @ known) * columns).sum(axis=1)
    means = np.divide(sums, counts, out=np.full(resamples, np.nan), where=counts > 0)
    low, high = np.nanpercentile(means, [2.5, 97.5])
    return Estimate(float(np.nanmean(scores)), float(low), float(high))


def grid(cells: Sequence[Cell]) -> Scores:
    """[puzzles, seeds] of one arm."""
    return np.array([list(cell["rewards"].values()) for cell in cells], dtype=float).T


@dataclass(frozen=True)
class Row:
    """One arm of one horizon: its measurements by seed, as far as they are there."""

    arm: str
    cells: dict[int, Cell]

    def against(self, other: Row) -> tuple[Estimate, list[float]] | None:
        """The paired difference over the seeds that both have, and that of each."""
        seeds = sorted(self.cells.keys() & other.cells.keys())
        if not seeds:
            return None
        difference = grid([self.cells[s] for s in seeds]) - grid([other.cells[s] for s in seeds])
        return crossed(difference), [float(mean) for mean in np.nanmean(difference, axis=0)]

    def cost(self) -> dict[str, float]:
        """Trajectories and tokens: of one training run and of the sweep before it, and for one puzzle."""
        cells = list(self.cells.values())
        trained = [cell["trained"] for cell in cells if "trained" in cell]
        puzzles = sum(len(cell["rewards"]) for cell in cells)
        return {
            "trajectories": max((t["trajectories"] for t in trained), default=0),
            "training_tokens": float(np.mean([t["tokens"] for t in trained])) if trained else 0.0,
            "sweep_trajectories": max((cell.get("sweep_trajectories", 0) for cell in cells), default=0),
            "trajectories_per_puzzle": sum(cell["trajectories"] for cell in cells) / puzzles,
            "tokens_per_puzzle": sum(cell["tokens"] for cell in cells) / puzzles,
        }

    @property
    def label(self) -> str:
        """The arm with the setting that was chosen for it, or the policy that it is on."""
        cells = self.cells.values()
        about = {f"{cell['trained']['setting']:g}" for cell in cells if "trained" in cell}
        about |= {cell["on"] for cell in cells if "on" in cell}
        return f"{self.arm} ({', '.join(sorted(about))})" if about else self.arm


def show(title: str, rows: Sequence[Row], absent: dict[str, str], console: Console) -> dict[str, Any]:
    """Print one horizon's table, the base first; the same as plain data. ``absent``: why an arm was not run."""
    base = rows[0]
    shown = Table(*COLUMNS, title=title)
    result: dict[str, Any] = {}
    for row in rows:
        if not row.cells:
            shown.add_row(row.arm, absent.get(row.arm, "not run"))
            continue
        solved, cost = estimate(grid(list(row.cells.values()))), row.cost()
        gain = None if row is base else row.against(base)
        shown.add_row(
            row.label,
            str(solved),
            "" if gain is None else signed(gain[0]),
            "" if gain is None else " ".join(f"{d:+.3f}" for d in gain[1]),
            f"{cost['trajectories']:,.0f} (+{cost['sweep_trajectories']:,.0f})" if cost["trajectories"] else "",
            f"{cost['training_tokens']:,.0f}" if cost["trajectories"] else "",
            f"{cost['tokens_per_puzzle']:,.0f}",
        )
        result[row.arm] = {"label": row.label, "seeds": len(row.cells), "solved": asdict(solved), **cost}
        if gain is not None:
            result[row.arm] |= {"minus_base": asdict(gain[0]), "each_seed": gain[1]}
    console.print(shown)
    return result


def differences(ours: Row, others: Sequence[Row], title: str, console: Console) -> dict[str, Any]:
    """Print one arm against each of the others."""
    result: dict[str, Any] = {}
    for row in others:
        if (found := ours.against(row)) is not None:
            result[row.arm] = asdict(found[0])
            console.print(f"{title}: {ours.arm} minus {row.arm} {signed(found[0])}", highlight=False)
    return result


def signed(e: Estimate) -> str:
    """A difference with its interval."""
    return f"{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"
