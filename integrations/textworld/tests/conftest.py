"""Without the package and TextWorld there is nothing to test: ``pip install -e integrations/textworld`` first.

Games are made once a session, in a folder of its own; the task set's digests hold for them.
"""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if any(importlib.util.find_spec(name) is None for name in ("langgraph_amc_textworld", "textworld")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory):
    """Two tasks whose games are there: ``cooking`` and ``quest``."""
    from langgraph_amc_textworld import GameSpec, find_game, tasks
    from langgraph_amc_textworld.games import CACHE

    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(tmp_path_factory.mktemp("games"))
    chosen = [tasks().get(name) for name in ("textworld-cooking-1-000", "textworld-quest-1-200")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda task: find_game(GameSpec(**task.input["task"]["game"])), chosen))
    yield SimpleNamespace(cooking=chosen[0], quest=chosen[1])
    if before is None:
        del os.environ[CACHE]
    else:
        os.environ[CACHE] = before
