"""``python -m langgraph_amc_trl``: a store of runs becomes training data, and training data a tuned model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.options import check_stored
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc_trl import exchange
from langgraph_amc_trl.conversations import Tool
from langgraph_amc_trl.examples import Chosen, labelled_runs, selected_runs
from langgraph_amc_trl.methods import DPO, KTO, SFT
from langgraph_amc_trl.pairs import sibling_pairs

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)

Store = Annotated[str, typer.Argument(help="SQLite file or database URL of collected runs")]
Out = Annotated[Path, typer.Option(help="File to write, one line of JSON each")]
Split = Annotated[str | None, typer.Option(help="Only runs on tasks of this split")]
Tools = Annotated[Path | None, typer.Option(help="JSON list of the tools' schemas, in OpenAI's form")]
Policy = Annotated[
    str | None,
    typer.Option(help="Folder of the model that the runs are of: check that their messages are what it read"),
]
Success = Annotated[float | None, typer.Option(help="Least return of a success; by default the best that any run has")]
Data = Annotated[Path, typer.Argument(help="File that the other commands have written")]
Model = Annotated[str, typer.Option(help="Folder of the local model to train")]
OutFolder = Annotated[Path, typer.Option(help="New folder for training.jsonl and model/")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate")]
Epochs = Annotated[int, typer.Option(help="Passes over the data")]
Batch = Annotated[int, typer.Option(help="Pairs or sequences per optimiser step")]
Accumulation = Annotated[int, typer.Option(help="Forward passes per optimiser step")]
Beta = Annotated[float, typer.Option(help="How close the policy stays to what it was")]
Seed = Annotated[int, typer.Option()]


@app.command()
def pairs(
    store: Store,
    out: Out = Path("pairs.jsonl"),
    completion: Annotated[str, typer.Option(help="'step': the answer that differs; 'rest': all to the end")] = "step",
    margin: Annotated[float, typer.Option(help="Least difference of the returns")] = 0.0,
    across_runs: Annotated[bool, typer.Option(help="Compare equal conversations of different runs too")] = False,
    split: Split = None,
    tools: Tools = None,
    policy: Policy = None,
) -> None:
    """Preference pairs (DPO) from siblings that went on differently."""
    given, schemas = _runs(store, split, policy, tools)
    found = sibling_pairs(
        given,
        completion=completion,  # type: ignore[arg-type]  # checked there
        margin=margin,
        across_runs=across_runs,
        tools=schemas,
    )
    _wrote(exchange.write(out, _some(found.pairs), schemas), "pairs", out, found.left_out)


@app.command()
def runs(
    store: Store,
    out: Out = Path("runs.jsonl"),
    success: Success = None,
    per_task: Annotated[int, typer.Option(help="At most so many runs of a task")] = 1,
    split: Split = None,
    tools: Tools = None,
    policy: Policy = None,
) -> None:
    """The best runs of each task (SFT)."""
    given, schemas = _runs(store, split, policy, tools)
    _examples(selected_runs(given, success=success, per_task=per_task, tools=schemas), out, schemas)


@app.command()
def labels(
    store: Store,
    out: Out = Path("labels.jsonl"),
    success: Success = None,
    split: Split = None,
    tools: Tools = None,
    policy: Policy = None,
) -> None:
    """Every run with a return, desirable or not (KTO)."""
    given, schemas = _runs(store, split, policy, tools)
    _examples(labelled_runs(given, success=success, tools=schemas), out, schemas)


@app.command(name="filter")
def filter_(
    data: Data,
    model: Model,
    out: Out = Path("filtered.jsonl"),
    threshold: Annotated[float, typer.Option(help="Least gain of a call, in nats per token")] = 1.0,
    decay: Annotated[float, typer.Option(help="How fast later tokens count less; the paper's is 0.2")] = 0.05,
    only: Annotated[list[str] | None, typer.Option(help="A tool to judge; by default all. May be repeated")] = None,
) -> None:
    """Drop tool calls that do not help to say what follows (Toolformer), from what ``runs`` wrote."""
    from langgraph_amc_trl.toolformer import LocalLoss, filter_calls

    examples, schemas = exchange.read_examples(data)
    kept, counts = filter_calls(
        examples, LocalLoss(model, decay=decay), threshold=threshold, tools=schemas, only=only or None
    )
    _wrote(exchange.write(out, kept, schemas), "runs", out, {f"calls {name}": n for name, n in counts.items()})


@app.command()
def dpo(
    data: Data,
    model: Model,
    out: OutFolder,
    lr: Rate = None,
    beta: Beta = 0.1,
    likelihood: Annotated[float, typer.Option("--sft", help="Weight of the better answers' likelihood")] = 0.0,
    epochs: Epochs = 1,
    batch: Batch = 16,
    accumulation: Accumulation = 1,
    seed: Seed = 0,
) -> None:
    """Train on what ``pairs`` wrote."""
    from langgraph_amc_trl.tuning import train_on_pairs

    given, schemas = exchange.read_pairs(data)
    method = DPO(
        beta=beta, sft=likelihood, epochs=epochs, batch=batch, accumulation=accumulation, seed=seed, **_rate(lr)
    )
    _trained(train_on_pairs(given, model=model, out=out, method=method, tools=schemas))


@app.command()
def sft(
    data: Data,
    model: Model,
    out: OutFolder,
    lr: Rate = None,
    epochs: Epochs = 1,
    batch: Batch = 16,
    accumulation: Accumulation = 1,
    seed: Seed = 0,
) -> None:
    """Train on what ``runs`` or ``filter`` wrote."""
    from langgraph_amc_trl.tuning import train_on_runs

    given, schemas = exchange.read_examples(data)
    method = SFT(epochs=epochs, batch=batch, accumulation=accumulation, seed=seed, **_rate(lr))
    _trained(train_on_runs(given, model=model, out=out, method=method, tools=schemas))


@app.command()
def kto(
    data: Data,
    model: Model,
    out: OutFolder,
    lr: Rate = None,
    beta: Beta = 0.1,
    epochs: Epochs = 1,
    batch: Batch = 16,
    accumulation: Accumulation = 1,
    seed: Seed = 0,
) -> None:
    """Train on what ``labels`` wrote."""
    from langgraph_amc_trl.tuning import train_on_runs

    given, schemas = exchange.read_examples(data)
    method = KTO(beta=beta, epochs=epochs, batch=batch, accumulation=accumulation, seed=seed, **_rate(lr))
    _trained(train_on_runs(given, model=model, out=out, method=method, tools=schemas))


def _runs(
    store: str, split: str | None, policy: str | None, tools: Path | None
) -> tuple[list[Trajectory], Sequence[Tool]]:
    from langgraph_amc.trajectories.store import TrajectoryStore

    check_stored(store)
    schemas: Sequence[Tool] = ()
    if tools is not None:
        try:
            schemas = json.loads(tools.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{tools} holds no JSON list of tools ({error})") from error
        if not isinstance(schemas, list) or not all(_is_schema(schema) for schema in schemas):
            raise ConfigurationError(
                f"{tools} holds no JSON list of tools: give their schemas in OpenAI's form, "
                '[{"type": "function", "function": {"name": …}}]'
            )
    with TrajectoryStore(store) as opened:
        found = list(opened.trajectories(split=split))
    if not found:
        where = "" if split is None else f" on tasks of the split {split!r}"
        raise ConfigurationError(f"the store {without_password(store)} has no runs{where}: collect some (amc collect)")
    if policy is not None:
        from langgraph_amc_trl.rendering import check_seen

        typer.echo(f"{check_seen(found, policy, tools=schemas)} of {len(found)} runs compared with what the model read")
    return found, schemas


def _is_schema(schema: Any) -> bool:
    function = schema.get("function") if isinstance(schema, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _some(items: Sequence[Any]) -> Sequence[Any]:
    if not items:
        raise ConfigurationError(
            "nothing was found to train on: collect several runs of each task whose returns differ"
        )
    return items


def _examples(chosen: Chosen, out: Path, tools: Sequence[Tool]) -> None:
    _wrote(exchange.write(out, _some(chosen.examples), tools), "runs", out, chosen.left_out)


def _wrote(count: int, kind: str, out: Path, besides: Mapping[str, int]) -> None:
    more = "".join(f", {name}: {n}" for name, n in sorted(besides.items()))
    typer.echo(f"{count} {kind} in {out}{more}")


def _rate(rate: float | None) -> dict[str, Any]:
    return {} if rate is None else {"learning_rate": rate}


def _trained(tuned: Any) -> None:
    plain = asdict(tuned)
    steps = plain.pop("steps")
    typer.echo(json.dumps(plain | {"first_loss": steps[0]["loss"], "last_loss": steps[-1]["loss"]}))


def main() -> None:
    """Run it; what the library raises on purpose is a line, not a traceback."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        app()
    except AMCError as error:
        print(f"langgraph_amc_trl: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
