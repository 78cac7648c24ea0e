"""Scoring a population at every boundary up to step 20: keys and values carried along against one prompt per state.

Same model (the crafting policy as a base, with a head), same states, one thread. The states are those of N = 15
particles of the crafting world that act at random and are resampled every three steps, as transcripts of the
example app; all seeds are 0. Before anything is timed all arms must
give the same values. The last line is JSON: ``token_ratio`` is tokens encoded by one prompt per state and particle,
over all boundaries, per token encoded with carried keys and values; ``wall_ratio`` the same of the seconds;
``wall_ratio_batched`` against the prompts in one padded batch per boundary.

    python benchmarks/value_scoring.py
"""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_amc.demo import CraftingEnv, make_tasks, policy_folder
from langgraph_amc.smc.resampling import systematic
from langgraph_amc.trajectories.transcript import TranscriptBuilder
from langgraph_amc.value import TransformerValue
from langgraph_amc.value.checkpoint import ValueSpec
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.model import ValueModel, new_model, pick_device

PARTICLES, STEPS, RESAMPLE_EVERY, ROUNDS = 15, 20, 3, 5
States = list[tuple[str, ...]]


@dataclass
class Walker:
    """A particle of the crafting world that acts at random."""

    env: CraftingEnv
    messages: tuple[AIMessage | HumanMessage, ...]
    record: TranscriptBuilder

    def clone(self) -> Walker:
        """One that goes on from here by itself."""
        env = CraftingEnv()
        env.reset(self.env.task)
        env.restore(self.env.snapshot())
        return Walker(env, self.messages, self.record)

    def step(self, rng: random.Random) -> None:
        """Think, act and look, as the example app does."""
        task = self.env.task
        recipe = rng.choice([r for r in task.recipes if r.output != task.goal])
        fetch = f"get {rng.randint(1, 2)} {rng.choice(list(self.env.left))}"
        action = rng.choice([fetch, fetch, recipe.text, "inventory"])
        observation, _, _, _ = self.env.step(action)
        said = AIMessage(f"Thought: {recipe.output}\nAction: {action}"), HumanMessage(observation)
        self.messages = (*self.messages, *said)
        self.record = self.record.extend({"messages": self.messages})


def boundaries() -> list[States]:
    """The transcripts of all particles at each boundary."""
    rng, comb = random.Random(0), np.random.default_rng(0)
    task = replace(make_tasks("test", 1)[0], step_limit=STEPS + 1)  # nobody ends before the last boundary
    env = CraftingEnv()
    prompt = (HumanMessage(env.reset(task)),)
    start = Walker(env, prompt, TranscriptBuilder().extend({"messages": prompt}))
    walkers = [start.clone() for _ in range(PARTICLES)]
    found: list[States] = []
    for step in range(1, STEPS + 1):
        for walker in walkers:
            walker.step(rng)
        found.append([walker.record.segments for walker in walkers])
        if step % RESAMPLE_EVERY == 0:
            ancestors = systematic(comb, comb.normal(size=PARTICLES), PARTICLES)
            walkers = [walkers[a].clone() for a in ancestors]
    return found


@dataclass(frozen=True)
class Arm:
    """A way to score: options of the value function, and whether it is asked for one state at a time."""

    options: dict[str, Any]
    one_by_one: bool = False

    def run(self, model: ValueModel, spec: ValueSpec, population: list[States]) -> Outcome:
        """Score all boundaries, with nothing kept from before."""
        value = TransformerValue(model, spec, **self.options)
        scores, seconds, tokens = [], [], []
        for states in population:
            before, began = value.encoded_tokens, time.perf_counter()
            calls = [[state] for state in states] if self.one_by_one else [states]
            scores.append(np.concatenate([value.score(call) for call in calls]))
            seconds.append(time.perf_counter() - began)
            tokens.append(value.encoded_tokens - before)
        return Outcome(np.stack(scores), np.array(seconds), np.array(tokens))


@dataclass(frozen=True)
class Outcome:
    """Of one run of an arm: scores [boundaries, particles], seconds and encoded tokens of each boundary."""

    scores: np.ndarray
    seconds: np.ndarray
    tokens: np.ndarray


PROMPTS, BATCH, CARRIED = "one prompt per state", "the same in one batch", "shared and carried"
ARMS = {
    PROMPTS: Arm({"share_prefix": False, "cache_bytes": 0}, one_by_one=True),
    BATCH: Arm({"share_prefix": False, "cache_bytes": 0}),
    "shared in the batch": Arm({"cache_bytes": 0}),
    CARRIED: Arm({}),
}


def policy_with_head() -> tuple[ValueModel, ValueSpec]:
    """The crafting policy with a random head: what it costs does not depend on what it has learnt."""
    torch.manual_seed(0)
    head = ReturnHead("bce", 0.0, 1.0, binary=True)
    model = new_model(policy_folder(), head.size, tokenizer=None, lora=False, device=pick_device("cpu"))
    torch.nn.init.normal_(model.head.weight)
    model.network.eval()
    return model, ValueSpec.of(model, head, 1024, "")


def main() -> None:
    """Compare, print the table, then the JSON line."""
    torch.set_num_threads(1)  # the ratio is the same, and threads that wait for one another measure the load
    model, spec = policy_with_head()
    population = boundaries()
    runs: dict[str, list[Outcome]] = {name: [] for name in ARMS}
    for number in range(ROUNDS + 1):  # in turns, so that other load on the machine meets all; the first warms up
        for name, arm in ARMS.items():
            outcome = arm.run(model, spec, population)
            if number:
                runs[name].append(outcome)
    expected = runs[PROMPTS][0].scores
    gap = {name: float(max(np.abs(o.scores - expected).max() for o in found)) for name, found in runs.items()}
    if max(gap.values()) > 1e-5 or np.ptp(expected) < 0.01:
        raise SystemExit(f"the ways disagree, or all values are the same: {gap}")
    tokens = {name: found[0].tokens for name, found in runs.items()}
    seconds = {name: statistics.median(o.seconds.sum() for o in found) for name, found in runs.items()}
    last = {name: statistics.median(o.seconds[-1] for o in found) for name, found in runs.items()}
    rows = [["", "tokens", "seconds", f"tokens at step {STEPS}", f"ms at step {STEPS}", "largest gap"]]
    for name in ARMS:
        step = [f"{tokens[name][-1]:,}", f"{1000 * last[name]:.1f}", f"{gap[name]:.0e}"]
        rows.append([name, f"{tokens[name].sum():,}", f"{seconds[name]:.2f}", *step])
    print(f"N = {PARTICLES}, {STEPS} boundaries, resampled every {RESAMPLE_EVERY} steps, median of {ROUNDS} rounds")
    print(table(rows))
    result = {
        "token_ratio": round(float(tokens[PROMPTS].sum() / tokens[CARRIED].sum()), 2),
        "wall_ratio": round(seconds[PROMPTS] / seconds[CARRIED], 2),
        "wall_ratio_batched": round(seconds[BATCH] / seconds[CARRIED], 2),
        "N": PARTICLES,
        "step": STEPS,
        "largest_gap": max(gap.values()),
    }
    print(json.dumps(result))


def table(rows: list[list[str]]) -> str:
    """Right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    main()
