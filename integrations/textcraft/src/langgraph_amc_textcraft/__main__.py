"""Prints the figures of the README: what the recipe graph and its tasks are."""

from __future__ import annotations

from collections import Counter
from statistics import mean, median

from langgraph_amc_textcraft.recipes import load_book
from langgraph_amc_textcraft.taskset import tasks
from langgraph_amc_textcraft.world import STEP_LIMIT, commands


def main() -> None:
    """Print them as Markdown."""
    book, everything = load_book(), tasks(infeasible=True)
    print("| depth | goals | plan steps, median (longest) | within 20 steps | commands shown, mean | train/tune/test |")
    print("|---|---|---|---|---|---|")
    for depth in sorted({task.metadata["depth"] for task in everything}):
        chosen = [task for task in everything if task.metadata["depth"] == depth]
        steps = [task.metadata["plan_steps"] for task in chosen]
        feasible = [task for task in chosen if task.metadata["plan_steps"] <= STEP_LIMIT]
        shown = mean(len(commands(book, task.input["task"]["goal"])) for task in chosen)
        splits = Counter(task.split for task in feasible)
        print(
            f"| {depth} | {len(chosen)} | {median(steps):g} ({max(steps)}) | {len(feasible)} | {shown:.1f} "
            f"| {splits['train']}/{splits['tune']}/{splits['test']} |"
        )
    recipes = [recipe for item in book.recipes for recipe in book.recipes[item]]
    parts = Counter(len(recipe.parts) for recipe in recipes)
    print(
        f"\n{len(recipes)} recipes for {len(book.recipes)} goals, {len(book.items)} items of which "
        f"{len(book.base)} are base items. Parts per recipe: "
        + ", ".join(f"{n}: {parts[n]}" for n in sorted(parts))
        + f". Of {len(everything)} goals {len(tasks())} have a plan within {STEP_LIMIT} steps."
    )


if __name__ == "__main__":
    main()
