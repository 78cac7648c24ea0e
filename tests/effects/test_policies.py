"""Which policy a tool gets, which tools are found, and what a refused one answers."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import langgraph_amc.runtime.effects as fx
from langgraph_amc.errors import ConfigurationError
from tests.effects.support import ASK, CallingModel, drive, scope, thread
from tests.effects.test_commit import SYNC, Log, agent, single


def made(name: str, **metadata: Any) -> BaseTool:
    return StructuredTool.from_function(lambda text: f"{name} {text}", name=name, description=name, metadata=metadata)


def mcp_like(name: str, **hints: Any) -> BaseTool:
    """As langchain-mcp-adapters makes them: the dumped annotations are the metadata."""
    types = pytest.importorskip("mcp.types")
    return made(name, **types.ToolAnnotations(**hints).model_dump())


@pytest.mark.parametrize(
    ("metadata", "policy", "source"),
    [
        ({}, "pure", "none"),
        ({"readOnlyHint": True}, "pure", "mcp"),
        ({"read_only_hint": True, "destructive_hint": None}, "pure", "mcp"),
        ({"annotations": {"readOnlyHint": True}}, "pure", "mcp"),
        ({"readOnlyHint": False}, "commit", "mcp"),
        ({"destructiveHint": True}, "commit", "mcp"),
        ({"destructiveHint": False}, "commit", "mcp"),
        ({"idempotentHint": True}, "commit", "mcp"),
        ({"annotations": {"readOnlyHint": False, "destructiveHint": True}}, "commit", "mcp"),
        ({"readOnlyHint": None, "destructiveHint": None, "title": "A tool"}, "pure", "none"),
        ({"annotations": None, "owner": "team"}, "pure", "none"),
    ],
)
def test_hints(metadata: dict[str, Any], policy: str, source: str) -> None:
    assert fx.EffectRules().classify(made("t", **metadata)) == (policy, source)


def test_hints_of_the_installed_mcp_package() -> None:
    rules = fx.EffectRules()
    assert rules.of_tool(mcp_like("t", readOnlyHint=True)) == "pure"
    assert rules.of_tool(mcp_like("t", destructiveHint=True)) == "commit"
    assert rules.classify(mcp_like("t", title="just a title")) == ("pure", "none")


def test_precedence() -> None:
    hinted = made("t", readOnlyHint=True)
    marked = fx.effect("deny")(made("t", readOnlyHint=True))
    assert fx.EffectRules(named={"t": "stateful"}, default="commit").classify(marked) == ("stateful", "mapping")
    assert fx.EffectRules(default="commit").classify(marked) == ("deny", "decorator")
    assert fx.EffectRules(default="commit").classify(hinted) == ("pure", "mcp")
    assert fx.EffectRules(default="commit").classify(made("t")) == ("commit", "default")
    assert fx.EffectRules(everything="commit").classify(marked) == ("commit", "mapping")


def app_with(*tools: Any) -> Any:
    return create_agent(CallingModel(turns=[]), list(tools))


def test_read_effects() -> None:
    app = app_with(made("send"), made("look", readOnlyHint=True), made("other"))
    rules = fx.read_effects({"send": "commit"}, app)
    assert rules is not None
    assert (rules.active, rules.unmatched, rules.unclassified(app)) == (True, (), ["other"])
    with_default = fx.read_effects({"send": "commit", "*": "deny"}, app)
    assert with_default is not None
    assert (with_default.unclassified(app), with_default.of_tool(made("other"))) == ([], "deny")
    everything = fx.read_effects("commit", app)
    assert everything is not None
    assert (everything.active, everything.unclassified(app)) == (True, [])
    nothing = fx.read_effects(None, app)
    assert nothing is not None
    assert nothing.unclassified(app) == ["other", "send"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"send": "comit"}, "pure, stateful, commit, deny"),
        ("never", "pure, stateful, commit, deny"),
        (["send"], "a policy or a mapping"),
        ({"sned": "commit"}, "did you mean 'send'"),
        ({"zzz": "commit"}, "its tools are look, send"),
    ],
)
def test_what_cannot_be_read(spec: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fx.read_effects(spec, app_with(made("send"), made("look")))


def test_names_that_a_custom_node_may_use_are_accepted() -> None:
    def custom(state: Log) -> dict[str, Any]:
        return {"log": [__import__("builtins").len(state["log"])]}

    rules = fx.read_effects({"hidden": "commit"}, single(custom))
    assert rules is not None
    assert (rules.unmatched, rules.active) == (("hidden",), True)


in_a_global = made("in_a_global")
in_a_list = [made("in_a_list")]


@fx.effect("commit")
def in_a_function(text: str) -> str:
    return text


def test_discovery() -> None:
    in_a_closure = made("in_a_closure")
    by_name = {"in_a_mapping": made("in_a_mapping")}

    def node(state: MessagesState) -> dict[str, Any]:
        in_a_closure.invoke("x")
        in_a_global.invoke("x")
        in_a_list[0].invoke("x")
        by_name["in_a_mapping"].invoke("x")
        in_a_function("x")
        return {}

    inner = create_agent(CallingModel(turns=[]), [made("in_a_subgraph")])
    called = create_agent(CallingModel(turns=[]), [made("in_a_called_graph")])
    g = StateGraph(MessagesState)
    g.add_node("node", node)
    g.add_node("inner", inner)
    g.add_node("calls", lambda s: called.invoke(s))
    g.add_node("tools", ToolNode([made("in_a_tool_node")]))
    g.add_node("tool", made("as_a_node"))
    for name in ("node", "inner", "calls", "tools", "tool"):
        g.add_edge(START, name)
    app = g.compile()
    places = ["closure", "global", "list", "mapping", "subgraph", "called_graph", "tool_node"]
    assert set(fx.tools_of(app)) == {*(f"in_a_{p}" for p in places), "as_a_node"}
    rules = fx.read_effects({"in_a_function": "deny"}, app)
    assert rules is not None
    assert (rules.unmatched, list(rules.functions)) == ((), ["in_a_function"])


def test_decorator_arguments() -> None:
    with pytest.raises(ConfigurationError, match="a policy is one of"):
        fx.effect("maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tool or a function"):
        fx.effect("commit")(BaseTool)
    with pytest.raises(ConfigurationError, match="generator"):
        fx.effect("commit")(lambda: (yield))


@SYNC
@pytest.mark.parametrize("kind", ["create_agent", "create_react_agent", "ToolNode"])
async def test_denied_tools_answer_with_an_error(kind: str, sync: bool) -> None:
    ran: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        ran.append(to)
        return "ok"

    own = scope({"send": "deny"})
    result = await drive(agent(kind, [send], [[("send", {"to": "a"})]]), ASK, thread(), own, sync=sync)
    message = result["messages"][-2]
    assert (message.type, message.status, message.tool_call_id) == ("tool", "error", "call-0-0")
    assert "not allowed" in message.content
    assert (ran, [r.state for r in own.records]) == ([], ["denied"])
    assert result["messages"][-1].content == "done"


@SYNC
async def test_denied_without_a_tool_call(sync: bool) -> None:
    ran: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        ran.append(to)
        return "ok"

    @fx.effect("deny")
    def post(text: str) -> str:
        ran.append(text)
        return "ok"

    result = await drive(
        single(lambda s: {"log": [send.invoke({"to": "a"})]}), {"log": []}, thread(), scope({"send": "deny"}), sync=sync
    )
    assert "not allowed" in result["log"][0]
    with pytest.raises(fx.EffectDeniedError, match="post"):
        await drive(single(lambda s: {"log": [post("a")]}), {"log": []}, thread(), scope({}), sync=sync)
    # a tool of an effect that runs is a part of it, but a denied one stays denied
    outer = StructuredTool.from_function(lambda to: send.invoke({"to": to}), name="outer", description="outer")
    own = scope({"send": "deny", "outer": "commit"})
    own.release_all()
    result = await drive(single(lambda s: {"log": [outer.invoke({"to": "a"})]}), {"log": []}, thread(), own, sync=sync)
    assert "not allowed" in result["log"][0]
    assert ran == []


@SYNC
async def test_tools_within_an_effect_are_a_part_of_it(sync: bool) -> None:
    ran: list[str] = []

    @tool
    def inner(to: str) -> str:
        """Send a mail."""
        ran.append(to)
        return "ok"

    @tool
    def outer(to: str) -> str:
        """Send two mails."""
        return inner.invoke({"to": to}) + inner.invoke({"to": to})

    g = StateGraph(Log)
    g.add_node("act", lambda s: {"log": [outer.invoke({"to": "a"})]})
    g.add_edge(START, "act")
    app, own = g.compile(checkpointer=InMemorySaver()), scope({"inner": "commit", "outer": "commit"})
    await drive(app, {"log": []}, thread(), own, sync=sync)
    assert ([h.tool for h in own.held], ran) == (["outer"], [])
    own.release()
    result = await drive(app, None, thread(), own, sync=sync)
    assert (result["log"], ran) == (["okok"], ["a", "a"])
