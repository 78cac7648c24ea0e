"""What ``amc show`` tells of a folder of ``amc evolve``: settings, a row per generation, what it has come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from langgraph_amc.cli.account import table_of

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.kept import Kept


def tables(kept: Kept) -> Iterator[Table]:
    """The run's settings, and its generations."""
    yield _facts(kept)
    yield _generations(kept)


def lines(kept: Kept) -> Iterator[str]:
    """How it has ended, if it has."""
    result = kept.result
    if result is None:
        yield "it has not ended here: the command it was started with goes on with it"
        return
    yield f"{result['stopped']}; the tuned weights are those after generation {result['best']} (0: the base)"
    if (held := result["held_out"]) is not None:
        yield "held out: " + ", ".join(f"{name} {_said(held[name])}" for name in ("base", "tuned", "difference"))
    yield from result["remarks"]
    yield f"model: {result['model']}"


def _facts(kept: Kept) -> Table:
    header, about = kept.log.header, kept.log.header.about
    strategy = header.strategy.to_json()
    table = Table(show_header=False, box=None)
    facts: dict[str, Any] = {
        "folder": kept.folder,
        "model": about.get("model", "unknown"),
        **{part: _name(about[part]) for part in ("app", "reward") if part in about},
        "tasks": ", ".join(f"{str(about[name]).partition(':')[0]} {name}" for name in _TASKS if name in about),
        "sigma": " ".join(f"{name} {value}" for name, value in strategy.pop("sigma").items()),
        "strategy": ", ".join(f"{name} {value}" for name, value in strategy.items()),
        "scope": header.scope,
        "base weights": header.weights,
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    return table


def _generations(kept: Kept) -> Table:
    measured = {v["done"]: v["reward"] for v in (kept.result or {}).get("validations", kept.validations)}
    table = table_of("after", "reward", "best", "sigma", "step", "signal/noise", "known", "validation", "weights")
    if 0 in measured:
        table.add_row("0", "", "", "", "", "", "", _said(measured[0]), kept.log.header.weights[:12])
    for g in kept.generations:
        noise = "" if g.signal_to_noise is None else f"{g.signal_to_noise:.2f}"
        done = g.number + 1
        table.add_row(
            str(done),
            str(g.reward),
            f"{g.best:.3f}",
            f"{g.sigma:.3g}",
            f"{g.step:.3g}",
            noise,
            f"{g.known:.0%}",
            _said(measured[done]) if done in measured else "",
            g.weights[:12],
        )
    return table


_TASKS = ("tasks", "validation tasks", "held-out tasks")


def _name(identity: Any) -> str:
    return str(identity.get("name")) if isinstance(identity, Mapping) else str(identity)


def _said(estimate: Mapping[str, float | None]) -> str:
    mean, low, high = ("?" if estimate[part] is None else f"{estimate[part]:.3f}" for part in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
