"""Agents and worlds side by side: one run, best-of-N, best-of-N with AMC's tokens, AMC, and tree searches.

    python benchmarks/agents.py --out agents            # all agents, 3 seeds; called again it goes on where it stopped
    python benchmarks/agents.py --out quick --quick     # a few tasks, one seed: shows that it works, and nothing else
    python benchmarks/agents.py --out api --model openai/gpt-5.1 --max-usd 20 --agents react,search_r1

Every method has the same N, tasks, seeds and value function, and chooses its answer by that value function: no reward
is shown. Without --model the policies of most rows are scripted stand-ins: what they show is said in each README. Those
of crafting and sudoku are the small language models that come along; crafting's V is trained from its own runs first.
Worlds that none of these can play are named below the table, with the command for a model that may.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kept import read, same, write
from rich.console import Console
from rich.table import Table

import langgraph_amc as amc
from langgraph_amc.demo import policy_folder
from langgraph_amc.demo.stand_in import MODEL
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.compare import compare
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.search import parse_searches
from langgraph_amc.tasks import TaskSet, available
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore

EXAMPLES = Path(__file__).parents[1] / "examples"
SEARCHES = "bfs, mcts"
STAND_IN, SMALL = "stand-in", "0.27M parameters"


@dataclass(frozen=True)
class Agent:
    """One row: app, tasks, reward and value function, each ``file.py:name`` in its folder of `examples/`.

    ``folder``: ``""`` for an integration, whose names stand for themselves. ``value``: ``None`` is trained on the
    agent's own runs. ``options`` are of `amc.wrap`: where particles are compared, and how often. ``policy`` without
    --model.
    """

    name: str
    folder: str
    app: str
    tasks: str
    reward: str
    value: str | None
    options: dict[str, Any]
    policy: str = STAND_IN
    split: str | None = None

    def load(self, what: str) -> str:
        """The full name of one of them."""
        return str(EXAMPLES / self.folder / getattr(self, what)) if self.folder else getattr(self, what)


AGENTS = (
    Agent("react", "react", "agent.py:graph", "desk.py:tasks", "desk.py:correct", "desk.py:grounded", {}),
    Agent("react, as text", "react", "agent.py:text_graph", "desk.py:tasks", "desk.py:correct", "desk.py:grounded", {}),
    Agent(
        *("search_r1", "search_r1", "agent.py:graph", "fact_corpus.py:tasks", "citations.py:exact_match"),
        "citations.py:well_founded",
        {"resample": "every(1)"},
    ),
    Agent(
        *("search_r1, composite", "search_r1", "agent.py:graph", "fact_corpus.py:tasks", "citations.py:composite"),
        "citations.py:well_founded",
        {"resample": "every(1)"},
    ),
    Agent(
        *("memory", "memory", "agent.py:graph", "sessions.py:tasks", "sessions.py:recalled"),
        "sessions.py:kept_and_found",
        {"resample": "every(2)"},
    ),
    Agent(
        *("approval", "approval", "agent.py:graph", "market.py:tasks", "market.py:would_be_approved"),
        "market.py:within_rules",
        {"resample": "every(1)", "effects": {"place_order": "commit", "*": "pure"}},
    ),
    Agent(
        *("supervisor", "supervisor", "agent.py:graph", "sales.py:tasks", "sales.py:right", "sales.py:traceable"),
        {"resample": "every(2)", "boundary": "**/work"},
    ),
    Agent(
        *("reflexion", "reflexion", "agent.py:graph", "pipelines.py:tasks", "pipelines.py:solved"),
        "pipelines.py:passed_so_far",
        {"resample": "every(1)"},
    ),
    Agent(
        *("code_repair", "code_repair", "agent.py:graph", "issues.py:tasks", "issues.py:repaired"),
        "issues.py:tests_pass",
        {"resample": "every(2)"},
    ),
    Agent(
        *("crafting", "crafting", "agent.py:graph", "agent.py:tasks", "agent.py:solved", None, {}, SMALL, "test"),
    ),
    Agent(
        *("sudoku", "sudoku", "agent.py:graph", "agent.py:tasks", "agent.py:solved"),
        "../../benchmarks/sudoku_arms.py:rules",
        {},
        *(SMALL, "test"),
    ),
    Agent(
        *("textworld", "", "textworld:stand_in", "textworld:cooking_2", "textworld:solved", "textworld:progress"),
        *({"resample": "every(3)"}, STAND_IN, "test"),
    ),
)

UNPLAYED = {"scienceworld": "score", "textcraft": "solved", "agentgym": "score", "miniwob": "solved"}
"""Worlds that no policy at hand can play, and their reward."""


def main() -> None:
    given = _arguments()
    if given.model:
        os.environ[MODEL] = given.model
    policy = os.environ.get(MODEL) or "policies that come along: no model behind an API"
    sizes = {"policy": policy, "n": given.n, "seeds": given.seeds, "tasks": given.tasks, "searches": given.searches}
    given.out.mkdir(parents=True, exist_ok=True)
    same(given.out, sizes)
    wanted = {name.strip() for name in given.agents.split(",")} if given.agents else None
    chosen = [a for a in AGENTS if wanted is None or {a.name, a.folder} & wanted]
    console = Console(width=None if Console().is_terminal else 200)
    found: dict[str, dict[str, Any]] = {}
    for agent in chosen:
        if not agent.folder and agent.name not in available():
            console.print(f"{agent.name}: not installed: pip install -e integrations/{agent.name}", style="yellow")
            continue
        path = given.out / f"{agent.name.replace(', ', '_').replace(' ', '_')}.json"
        cell = read(path)
        if cell is None:
            console.print(f"{agent.name} …", style="dim")
            cell = asyncio.run(_measure(agent, given))
            write(path, cell)
        found[agent.name] = cell
    _show(found, policy, given, console)


async def _measure(agent: Agent, given: argparse.Namespace) -> dict[str, Any]:
    app = load_app(agent.load("app"))
    tasks = load_tasks(agent.load("tasks"))
    if agent.value is None:
        value: Any = await _trained(agent, app, tasks.split("train"), given)
    else:
        value = load_object(agent.load("value"))
    settings = read_settings(app, particles=given.n, value=value, **agent.options)
    found = await compare(
        app,
        (tasks.split(agent.split) if agent.split else tasks)[: given.tasks],
        load_reward(agent.load("reward")),
        settings,
        seeds=range(given.seeds),
        methods=parse_searches(given.searches) if given.searches else None,
        label=agent.name,
        budget=amc.Budget(usd=given.max_usd) if given.max_usd else None,
    )
    return asdict(replace(found, by_task=(), best_of=()))


async def _trained(agent: Agent, app: Any, tasks: TaskSet, given: argparse.Namespace) -> str:
    """The folder of a value function that is trained on runs on other tasks, 8 of each."""
    from langgraph_amc.value import train_value

    folder = given.out / f"value-{agent.name}"
    if not (folder / "amc_value.json").exists():
        file = given.out / f"{agent.name}.sqlite"
        file.unlink(missing_ok=True)
        with TrajectoryStore(file) as store:
            some = tasks[: 8 if given.quick else 200]
            await collect(app, some, load_reward(agent.load("reward")), store, read_settings(app), seeds=(0,))
            train_value(list(store.trajectories()), policy_folder(), out=folder, seed=0)
    return str(folder)


def _show(found: dict[str, dict[str, Any]], policy: str, given: argparse.Namespace, console: Console) -> None:
    methods = list(dict.fromkeys(arm["name"] for cell in found.values() for arm in cell["arms"]))
    policies = {agent.name: given.model or agent.policy for agent in AGENTS}
    title = f"reward of the answer chosen by value; {policy}"
    table = Table("agent", "policy", *methods, "AMC − best-of-N", title=title)
    for name, cell in found.items():
        arms = {arm["name"]: arm for arm in cell["arms"]}
        shown = [_cell(arms[method]) if method in arms else "" for method in methods]
        gain = cell["difference_selected"]
        table.add_row(name, policies[name], *shown, f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]")
    console.print(table)
    console.print(
        f"N = {given.n}, {given.seeds} seeds, up to {given.tasks} tasks each; 95 % intervals over tasks and seeds; "
        "tokens per task, of all particles, a language model as V included; best-of-N chooses by the same V",
        style="dim",
    )
    if not given.agents:
        console.print("no policy at hand can play these; with one behind an API, and a V of yours:", style="dim")
        for name, reward in UNPLAYED.items():
            command = f"amc compare {name}:graph --tasks {name}:tasks --reward {name}:{reward} --split test"
            command = f"{name.upper()}_MODEL=openai/gpt-5.1 {command} --value V --max-usd 20"
            console.print(command, style="dim", highlight=False, soft_wrap=True)
    for name, cell in found.items():
        for warning in cell["warnings"]:
            console.print(f"{name}: {warning}", style="yellow", markup=False)


def _cell(arm: dict[str, Any]) -> str:
    return f"{Estimate(**arm['selected'])}\n{arm['tokens']:,.0f} tokens"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--agents", help="names, separated by commas; all by default")
    parser.add_argument("--model", help=f"a LiteLLM model instead of the stand-ins, as {MODEL}")
    parser.add_argument("-n", type=int, default=8, help="particles")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20, help="at most so many of each agent's tasks")
    parser.add_argument("--searches", default=SEARCHES, help="as amc compare --methods; an empty text for none")
    parser.add_argument("--max-usd", type=float, help="budget of each agent")
    parser.add_argument("--quick", action="store_true", help="4 particles, one seed, 3 tasks")
    given = parser.parse_args()
    if given.quick:
        given.n, given.seeds, given.tasks = 4, 1, 3
    return given


if __name__ == "__main__":
    main()
