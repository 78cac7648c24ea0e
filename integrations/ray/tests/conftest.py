"""One Ray of our own for all tests; without the package nothing is tested: ``pip install -e integrations/ray``."""

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if importlib.util.find_spec("langgraph_amc_ray") is None or importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]

SLEEPER = '''
"""Waits, as an environment does that is slow to answer, and notes that it has ended."""
import os
import time
from pathlib import Path
from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    n: int
    nap: float
    notes: str


def work(state):
    time.sleep(state["nap"])
    if state["n"] == 13:
        raise ValueError("thirteen")
    if state["n"] == 666:
        os._exit(1)
    with Path(state["notes"]).open("a") as file:
        file.write(f"{os.getpid()} {state['n']}\\n")
    return {"n": state["n"]}


graph = StateGraph(State).add_node(work).add_edge(START, "work").add_edge("work", END).compile()


def number(run):
    return float(run.output["n"])
'''


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray that the executors find and leave running."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 << 20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("sleeper") / "agent.py"
    path.write_text(SLEEPER)
    return str(path)
