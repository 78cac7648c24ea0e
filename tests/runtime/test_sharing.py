"""What cannot be isolated is noticed: threads of their own, servers' memories, live objects, models' own caches."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, ReplyModel, agent, by_hash, seeded

SETTINGS: dict[str, Any] = {"particles": 3, "value": by_hash, "resample": amc.every(1), "seed": 1, "tau": 1e-4}


def looping(act: Any, **channels: Any) -> Any:
    state: Any = type("S", (MessagesState,), {"__annotations__": channels})
    graph = StateGraph(state)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    graph.add_conditional_edges("act", lambda s: "act" if len(s["messages"]) < 4 else "__end__")
    return graph.compile()


def warnings(app: Any, config: Any = None, **settings: Any) -> list[str]:
    return list(amc.wrap(app, **{**SETTINGS, **settings}).invoke(ASK, config).amc.warnings)


@pytest.mark.parametrize("own", [True, False])
def test_a_graph_with_a_thread_of_its_own(own: bool) -> None:
    inner = agent(seeded(0), saver=InMemorySaver() if own else None)
    config: Any = {"configurable": {"thread_id": "mine"}} if own else None
    app = looping(lambda s: {"messages": [AIMessage(inner.invoke(ASK, config)["messages"][-1].content)]})
    found = warnings(app, THREAD, boundary="act")
    assert any("'mine'" in w and "'model'" in w for w in found) == own
    assert own or not found


async def test_a_graph_with_a_thread_of_its_own_async() -> None:
    inner = agent(seeded(0), saver=InMemorySaver())

    async def act(state: Any) -> dict[str, Any]:
        out = await inner.ainvoke(ASK, {"configurable": {"thread_id": "mine"}})
        return {"messages": [AIMessage(out["messages"][-1].content)]}

    out = await amc.wrap(looping(act), **SETTINGS, boundary="act").ainvoke(ASK, THREAD)
    assert any("'mine'" in w for w in out.amc.warnings)


def test_particles_inside_particles_are_no_such_graph() -> None:
    inner = amc.wrap(agent(seeded(0)), particles=2, seed=1)
    app = looping(lambda s: {"messages": [AIMessage(inner.invoke(ASK)["messages"][-1].content)]})
    assert not any("thread id" in w for w in warnings(app, THREAD, boundary="act"))


class Remembering(ReplyModel):
    previous_response_id: str | None = None

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"previous_response_id": self.previous_response_id}


@pytest.mark.parametrize("response", ["resp_1", None])
def test_state_a_provider_keeps(response: str | None) -> None:
    model = Remembering(reply=seeded(0), previous_response_id=response)
    app = looping(lambda s: {"messages": [model.invoke(s["messages"])]})
    assert any("previous_response_id" in w for w in warnings(app)) == bool(response)


@pytest.mark.parametrize(("make", "noticed"), [(threading.Lock, True), (dict, False), (lambda: 1, False)])
def test_a_live_object_that_no_checkpoint_holds(make: Any, noticed: bool) -> None:
    model = ReplyModel(reply=seeded(9))

    def act(state: Any) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])], "session": state.get("session") or make()}

    app = looping(act, session=Annotated[Any, UntrackedValue])
    assert any("session" in w and "live object" in w for w in warnings(app)) == noticed


def test_what_no_checkpoint_holds_is_copied_for_a_clone() -> None:
    model = ReplyModel(reply=seeded(9))

    def act(state: Any) -> dict[str, Any]:
        seen = state.get("seen") or []
        seen.append(len(state["messages"]))  # in place
        return {"messages": [model.invoke(state["messages"]), AIMessage(f"seen {seen}")], "seen": seen}

    out = amc.wrap(looping(act, seen=Annotated[Any, UntrackedValue]), **{**SETTINGS, "particles": 6}).invoke(ASK)
    assert any(len(set(c.ancestors)) < 6 for c in out.amc.checks)
    for particle in out.amc.particles:
        seen = [m.content for m in particle.output["messages"] if m.content.startswith("seen")]
        assert seen == ["seen [1]", "seen [1, 3]"]


@pytest.mark.parametrize("cache", [InMemoryCache(), None])
def test_a_models_own_cache(cache: Any) -> None:
    model = ReplyModel(reply=lambda messages: AIMessage(f"answer {len(messages)}"), cache=cache)

    def act(state: Any) -> dict[str, Any]:
        asked: list[BaseMessage] = [m.model_copy(update={"id": None}) for m in state["messages"]]
        return {"messages": [model.invoke(asked)]}

    found = [w for w in warnings(looping(act), boundary="act") if "own cache=" in w]
    assert bool(found) == (cache is not None)


def test_a_lone_particle_shares_with_nobody() -> None:
    model = Remembering(reply=seeded(0), previous_response_id="resp_1")
    app = looping(lambda s: {"messages": [model.invoke(s["messages"])]})
    assert warnings(app, particles=1) == []


@pytest.mark.parametrize("wrapper", [amc.wrap, amc.AMCNode])
def test_a_remote_graph_is_refused(wrapper: Any) -> None:
    with pytest.raises(amc.ConfigurationError, match="RemoteGraph runs on a server"):
        wrapper(RemoteGraph("assistant", url="http://127.0.0.1:1"))
