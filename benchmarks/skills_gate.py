"""What the gate takes and what it leaves, over many seeds, where proposals are made by chance.

    python benchmarks/skills_gate.py [--seeds 20] [--validation 60] [--out skills_gate]

An agent (`tests/support/parcels.py`) asks a real HTTP server on loopback whose model is scripted but stochastic: how
often it succeeds depends on which rules stand in its prompt. Asked as a proposer, it proposes useful, useless and
harmful rules by chance, citing runs that have nothing to do with them, so only the gate can tell them apart. Its noise
depends on the whole prompt, so champion and candidate share tasks but no luck. The same command goes on with what is in
``--out``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import langgraph_amc as amc  # noqa: E402
from langgraph_amc.evaluate.optimizing import Optimization  # noqa: E402
from langgraph_amc.skills.validation import problems_in  # noqa: E402
from tests.support import parcels  # noqa: E402
from tests.support.openai_server import OpenAIServer  # noqa: E402

CALLS = 1500
"""Model calls that one seed's run may make."""


def sizes(validation: int) -> dict[str, int]:
    """Tasks by split."""
    return {"train": 12, "validation": validation, "held_out": 24}


@dataclass(frozen=True, slots=True)
class Row:
    """One seed."""

    seed: int
    proposed: Counter[str]
    taken: Counter[str]
    old: float
    new: float
    calls: int


def run(folder: Path, out: Path, seed: int, validation: int) -> Optimization:
    every = parcels.tasks(**sizes(validation))
    chat = amc.chat_model("openai/author", seed=seed, max_tokens=2000)
    return amc.optimize(
        f"{folder}/agent.py:graph",
        every.split("train"),
        f"{folder}/agent.py:accepted",
        validation=every.split("validation"),
        held_out=every.split("held-out"),
        out=out,
        proposer=amc.LLMProposer(chat, calls=1, batch=6),
        rounds=5,
        candidates=4,
        batch=12,
        patience=None,
        seed=seed,
        budget=amc.Budget(calls=CALLS),
        options={"effects": {"submit": "pure"}},
    )


def study(folder: Path, seeds: int, validation: int, server: OpenAIServer) -> list[Row]:
    """All seeds, each in a folder of its own."""
    rows = []
    for seed in range(seeds):
        before = len(server.requests)
        done = folder / f"seed-{seed}.json"
        out = folder / f"seed-{seed}"
        found = run(folder, out, seed, validation)
        assert problems_in(out / "skills") == []
        calls = len(server.requests) - before
        if done.exists():  # counted when it was run
            calls += json.loads(done.read_text())["calls"]
        done.write_text(json.dumps({"calls": calls}))
        proposed = Counter(k for t in found.trials for e in t.proposal.edits for k in parcels.kinds_in(e.text))
        taken = Counter(k for t in found.accepted for e in t.proposal.edits for k in parcels.kinds_in(e.text))
        base = parcels.chance("You are a clerk at a parcel desk.")
        text = amc.SkillLibrary.read(out / "skills").text()
        rows.append(r := Row(seed, proposed, taken, base, parcels.chance(text), calls))
        print(
            f"{seed:4d}  {_counts(r.proposed)}  {_counts(r.taken)}   {r.old:.3f} -> {r.new:.3f}  {r.calls:6d}  "
            f"{found.stopped}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--validation", type=int, default=60, help="tasks that a candidate is tried on")
    parser.add_argument("--out", type=Path, default=Path("skills_gate"))
    given = parser.parse_args()
    folder = parcels.made(given.out.resolve(), **sizes(given.validation))
    warnings.simplefilter("ignore", UserWarning)  # what the scripted proposer gets wrong, it gets wrong on purpose
    with OpenAIServer() as server:
        server.reply = parcels.reply
        os.environ |= {"OPENAI_API_BASE": server.base_url, "OPENAI_API_KEY": "none"}
        print("seed  proposed     taken        success         calls   (useful/useless/harmful)", flush=True)
        result = _summary(study(folder, given.seeds, given.validation, server))
    for name, value in result.items():
        print(f"{name:>28}: {value}")
    print(json.dumps(result))


def _summary(rows: list[Row]) -> dict[str, Any]:
    kinds = ("useful", "useless", "harmful")
    return {
        "seeds": len(rows),
        **{f"{kind} proposed": sum(r.proposed[kind] for r in rows) for kind in kinds},
        **{f"{kind} taken": sum(r.taken[kind] for r in rows) for kind in kinds},
        "both useful ones found": sum(r.taken["useful"] == 2 for r in rows),
        "success before": round(sum(r.old for r in rows) / len(rows), 3),
        "success after": round(sum(r.new for r in rows) / len(rows), 3),
        "most calls": max(r.calls for r in rows),
        "calls allowed": CALLS,
    }


def _counts(found: Counter[str]) -> str:
    return f"{found['useful']:2d}/{found['useless']:2d}/{found['harmful']:2d}   "


if __name__ == "__main__":
    main()
