"""The report of a value function's training: does it rank runs of one task, and are its values right."""

from __future__ import annotations

from langgraph_amc.report import words
from langgraph_amc.report.reading import Plain
from langgraph_amc.report.sections import Curves, Fact, Forest, Interval, Report, Section, Series, Table


def training_report(found: Plain) -> Report:
    """From what `train_value` left beside the value function."""
    q = found["quality"]
    return Report(
        about="training of a value function",
        title=_title(q["ranking"]),
        answer=(
            Fact("How good it is", _ranking(q["ranking"]), strong=True),
            Fact("Whether its values are right", _values(found)),
            Fact("What it learned from", _data(found)),
        ),
        sections=tuple(_sections(found)),
        warnings=tuple(found["notes"]),
        facts=(Fact("folder", str(found["path"])), Fact("loss", str(found["loss"]))),
    )


def _chance(ranking: Plain) -> float:
    return 0.5 if ranking["metric"] == "auc" else 0.0


def _title(ranking: Plain) -> str:
    if ranking["value"] is None:
        return "Whether the value function can tell runs apart is not known"
    if ranking["low"] is None or ranking["low"] <= _chance(ranking):
        return "The value function does not clearly tell better runs from worse"
    return "The value function tells better runs from worse"


def _ranking(ranking: Plain) -> str:
    if ranking["value"] is None:
        return "No task had runs that ended differently, so its ranking could not be measured."
    bounds = "" if ranking["low"] is None else f" (95 % interval {ranking['low']:.2f} to {ranking['high']:.2f})"
    where = f"over {words.many(ranking['tasks'], 'task')} and {words.many(ranking['pairs'], 'pair')}"
    if ranking["metric"] == "auc":
        return (
            f"Of two unfinished runs of the same task, one of which succeeds, it rates that one higher in "
            f"{ranking['value']:.0%} of cases{bounds}, {where}. 50 % would be chance. This is what AMC lives on."
        )
    tau = f"{ranking['value']:.2f}{bounds}"
    return f"It ranks unfinished runs of the same task with Kendall's tau {tau}, {where}; 0 is chance."


def _values(found: Plain) -> str:
    q = found["quality"]
    text = f"On average its values are off by {q['calibration_error']:.3f}."
    before = found.get("raw_calibration_error")
    if found.get("calibrated") and before is not None:
        text += f" Before its calibration ({found['calibrated']}) it was {before:.3f}."
    if q["baseline_mse"]:
        text += f" It explains {1 - q['mse'] / q['baseline_mse']:.0%} of the variance of the returns."
    return text


def _data(found: Plain) -> str:
    used = ", ".join(f"{count:,} {status}" for status, count in found["used"].items())
    where = (
        f"Measured on {words.many(found['validation_tasks'], 'task')} that were held out."
        if found["measured_on"] == "validation"
        else "Measured on its own training tasks, which flatters."
    )
    tasks, states = words.many(found["train_tasks"], "task"), words.many(found["train_states"], "state")
    return f"{tasks}, {states}; runs: {used}. {where}"


def _sections(found: Plain) -> list[Section]:
    q = found["quality"]
    sections: list[Section] = [_by_step(q), _calibration(q)]
    if epochs := found.get("epochs"):
        sections.append(_losses(epochs, found["best_epoch"]))
    return sections


def _by_step(q: Plain) -> Section:
    every = {"all steps": q["ranking"], **{f"step {s}": r for s, r in q["ranking_by_step"].items()}}
    rows = [(name, r) for name, r in {**every, "finished runs": q["ranking_final"]}.items() if r["value"] is not None]
    chance = _chance(q["ranking"])
    return Forest(
        title="Ranking within a task, step by step",
        lead="How often the better of two runs of the same task has the higher value. Early steps are hard to judge; "
        "where the interval crosses the dashed line, resampling at that step is no better than chance.",
        x_label="AUC" if q["ranking"]["metric"] == "auc" else "Kendall's tau",
        rows=tuple(Interval(name, r["value"], r["low"], r["high"]) for name, r in rows),
        zero=chance,
    )


def _calibration(q: Plain) -> Section:
    bins = q["calibration"]
    ends = [b["low"] for b in bins] + [b["high"] for b in bins] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    return Curves(
        title="Were the values right?",
        lead="Each point is a group of states with similar values. On the diagonal, the value is what came on average.",
        x_label="value that was given",
        y_label="return that came, on average",
        series=(
            Series("perfectly calibrated", (low, high), (low, high), "reference"),
            Series(
                "this value function",
                tuple(b["predicted"] for b in bins),
                tuple(b["observed"] for b in bins),
            ),
        ),
    )


def _losses(epochs: list[Plain], best: int) -> Section:
    at = tuple(float(e["epoch"]) for e in epochs)
    if len(epochs) < 2:
        rows = tuple((e["epoch"], e["train_loss"], e["validation_loss"], e["tokens"], e["seconds"]) for e in epochs)
        columns = ("epoch", "training loss", "held-out loss", "tokens", "seconds")
        return Table(title="Training", lead="Loss is the error that training makes small.", columns=columns, rows=rows)
    series = [Series("training", at, tuple(e["train_loss"] for e in epochs))]
    if any(e["validation_loss"] is not None for e in epochs):
        series.append(Series("held-out tasks", at, tuple(e["validation_loss"] for e in epochs)))
    return Curves(
        title="Training",
        lead=f"The error that training makes small, epoch by epoch; the one of epoch {best} was kept.",
        x_label="epoch",
        y_label="loss",
        series=tuple(series),
        marks=((float(best), "kept"),),
    )
