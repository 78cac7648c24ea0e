"""Objects by name, as in langgraph.json, with errors that say what is there."""

from __future__ import annotations

import sys

import pytest
from langgraph.pregel import Pregel

from langgraph_amc.tasks import FinishedRun, LoadError, load_app, load_object, load_reward

AGENT = """
from dataclasses import dataclass
from langgraph.graph import END, START, MessagesState, StateGraph
from words import GREETING

builder = StateGraph(MessagesState)
builder.add_node("say", lambda state: {"messages": [("assistant", GREETING)]})
builder.add_edge(START, "say")
builder.add_edge("say", END)
graph = builder.compile()
count = 0

@dataclass
class Box:
    inside: int = 3

def make():
    return graph

def make_from(config):
    return builder.compile(name=config["configurable"].get("name", "plain"))

async def make_later():
    return graph

def make_keyword(*, model):
    return graph

def make_two(config, store):
    return graph

def make_optional(config=None):
    return graph

def reward(outputs):
    return len(outputs["messages"])
"""


@pytest.fixture
def agent(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "words.py").write_text("GREETING = 'hello'\n")
    yield tmp_path / "agent.py"
    sys.modules.pop("words", None)


def test_a_file_sees_its_neighbours_while_it_is_loaded_and_is_loaded_once(agent, monkeypatch):
    path = list(sys.path)
    graph = load_object(f"{agent}:graph")
    assert graph.invoke({"messages": []})["messages"][-1].content == "hello"
    assert sys.path == path
    monkeypatch.chdir(agent.parent)
    assert load_object("./agent.py:graph") is graph
    assert load_object("agent.py:Box.inside") == 3
    assert load_object("agent.py:Box")() == load_object("agent.py:Box")()
    agent.write_text(AGENT + "changed = 1\n")
    assert load_object("./agent.py:changed") == 1


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text(f"name = {name!r}")
    assert [load_object(f"{tmp_path / name / 'agent.py'}:name") for name in "ab"] == ["a", "b"]


def test_a_module_by_name():
    from langgraph_amc.tasks import Task

    assert load_object("langgraph_amc.tasks:Task") is Task
    assert load_object("langgraph_amc.tasks.task:Task.id") is Task.id


@pytest.mark.parametrize("spec", ["agent.py", ":graph", "agent.py:", "agent.py:a b", ""])
def test_specs_that_name_nothing(spec):
    with pytest.raises(LoadError, match="names no object"):
        load_object(spec)


def test_errors_say_what_is_missing_and_what_is_there(agent, tmp_path):
    with pytest.raises(LoadError, match="no 'grahp'; it has graph"):
        load_object(f"{agent}:grahp")
    with pytest.raises(LoadError, match=r"no 'zzz'; it has .*make_from"):
        load_object(f"{agent}:zzz")
    with pytest.raises(LoadError, match=r"no file .*agnet\.py; its folder has agent\.py, words\.py"):
        load_object(f"{tmp_path / 'agnet.py'}:graph")
    with pytest.raises(LoadError, match="no module 'nowhere'"):
        load_object("nowhere.agent:graph")
    with pytest.raises(LoadError, match=r"no module 'langgraph_amc\.nothing'"):
        load_object("langgraph_amc.nothing:graph")
    (tmp_path / "broken.py").write_text("import missing_library_of_mine\n")
    with pytest.raises(LoadError, match=r"broken\.py failed with ModuleNotFoundError: .*missing_library"):
        load_object(f"{tmp_path / 'broken.py'}:graph")
    (tmp_path / "script.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        load_object(f"{tmp_path / 'script.py'}:graph")
    assert not any(name.startswith(("amc_user_broken", "amc_user_script")) for name in sys.modules)


@pytest.mark.parametrize("name", ["graph", "builder", "make", "make_from", "make_later", "make_optional"])
def test_an_app_is_a_graph_or_a_factory_of_one(agent, name):
    app = load_app(f"{agent}:{name}")
    assert isinstance(app, Pregel)
    assert app.invoke({"messages": []})["messages"][-1].content == "hello"


def test_a_factory_gets_the_config(agent):
    assert load_app(f"{agent}:make_from").name == "plain"
    assert load_app(f"{agent}:make_from", {"configurable": {"name": "mine"}}).name == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("count", "gives int, not a compiled graph"),
        ("Box", "gives Box"),
        ("make_keyword", "requires model"),
        ("make_two", "requires config, store"),
    ],
)
def test_what_is_no_app(agent, name, message):
    with pytest.raises(LoadError, match=message):
        load_app(f"{agent}:{name}")


async def test_an_async_factory_inside_a_loop_says_what_to_do(agent):
    with pytest.raises(LoadError, match="outside"):
        load_app(f"{agent}:make_later")


def test_a_reward_by_name(agent):
    assert load_reward(f"{agent}:reward")(FinishedRun(None, {"messages": [1, 2]})) == 2.0
