"""Commit effects: held before they happen, run once when released, answered from the outbox afterwards."""

from __future__ import annotations

import asyncio
import json
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent
from langgraph.types import Command, RetryPolicy, interrupt

import langgraph_amc.runtime.effects as fx
from langgraph_amc.runtime.journal import Journal
from langgraph_amc.runtime.outbox import MemoryOutbox, Recorded
from tests.effects.support import ASK, CallingModel, drive, scope, thread, tool_texts

SYNC = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


class Mail:
    """An outside system that counts."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str | None] = []
        self.looked = 0

    def tools(self) -> list[BaseTool]:
        @tool
        def send(to: str) -> str:
            """Send a mail."""
            self.sent.append(to)
            self.keys.append(fx.current_effect.get())
            return f"sent to {to}"

        @tool
        def look(what: str) -> str:
            """Look something up."""
            self.looked += 1
            return f"saw {what}"

        return [send, look]


def agent(kind: str, tools: list[Any], turns: Any, **options: Any) -> Any:
    """The same agent built in three ways; the last runs parallel calls in one node."""
    model = CallingModel(turns=turns)
    if kind == "create_agent":
        return create_agent(model, tools, checkpointer=InMemorySaver(), **options)
    if kind == "create_react_agent":
        return create_react_agent(model, tools, checkpointer=InMemorySaver())
    g = StateGraph(MessagesState)
    g.add_node("model", lambda s: {"messages": [model.invoke(s["messages"])]})
    g.add_node("tools", ToolNode(tools))
    g.add_edge(START, "model")
    g.add_conditional_edges("model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END])
    g.add_edge("tools", "model")
    return g.compile(checkpointer=InMemorySaver())


@SYNC
@pytest.mark.parametrize("kind", ["create_agent", "create_react_agent", "ToolNode"])
async def test_pause_release_once(kind: str, sync: bool) -> None:
    mail = Mail()
    app = agent(kind, mail.tools(), [[("send", {"to": "a"}), ("look", {"what": "x"})], [("send", {"to": "b"})]])
    own = scope({"send": "commit"})

    paused = await drive(app, ASK, thread(), own, sync=sync)
    assert mail.sent == []
    (held,) = own.held
    assert (held.tool, held.arguments, held.tool_call_id) == ("send", {"to": "a"}, "call-0-0")
    (shown,) = paused["__interrupt__"]
    assert shown.value == {"amc_effect": held.key, "tool": "send", "arguments": {"to": "a"}}
    assert [r.state for r in own.records] == ["held"]

    own.release()
    assert own.held == ()
    paused = await drive(app, None, thread(), own, sync=sync)
    assert (mail.sent, mail.keys) == (["a"], [held.key])
    assert [h.arguments for h in own.held] == [{"to": "b"}]

    own.release()
    ended = await drive(app, None, thread(), own, sync=sync)
    assert mail.sent == ["a", "b"]
    assert tool_texts(ended) == ["sent to a", "saw x", "sent to b"]
    assert [(r.state, r.tool) for r in own.records] == [("committed", "send")] * 2
    # a task that was not interrupted keeps its result; a node with both calls is run again as a whole
    assert mail.looked in ((1, 2) if kind == "ToolNode" else (1,))


@SYNC
@pytest.mark.parametrize("kind", ["create_agent", "create_react_agent", "ToolNode"])
async def test_same_conversation_as_a_plain_run(kind: str, sync: bool) -> None:
    turns = [[("send", {"to": "a"}), ("send", {"to": "b"})], [("look", {"what": "x"})]]
    mail, plain = Mail(), Mail()
    expected = await drive(agent(kind, plain.tools(), turns), ASK, thread(), None, sync=sync)
    app, own = agent(kind, mail.tools(), turns), scope({"send": "commit"})
    result = await drive(app, ASK, thread(), own, sync=sync)
    for _ in range(3):
        if "__interrupt__" in result:
            own.release()
            result = await drive(app, None, thread(), own, sync=sync)
    assert sorted(mail.sent) == sorted(plain.sent) == ["a", "b"]

    def shown(r: Any) -> list[Any]:
        return [
            (m.type, m.content, getattr(m, "tool_call_id", None), getattr(m, "status", None)) for m in r["messages"]
        ]

    assert shown(result) == shown(expected)
    assert len(app.get_state(thread()).values["messages"]) == len(expected["messages"])


@SYNC
async def test_an_open_scope_does_not_pause(sync: bool) -> None:
    mail = Mail()
    app = agent("create_agent", mail.tools(), [[("send", {"to": "a"})]])
    own = scope({"send": "commit"})
    own.release_all()
    result = await drive(app, ASK, thread(), own, sync=sync)
    assert (mail.sent, tool_texts(result)) == (["a"], ["sent to a"])
    assert [r.state for r in own.records] == ["committed"]


@SYNC
async def test_outbox_answers_after_a_crash(sync: bool) -> None:
    """The effect took place, its super-step's writes were lost: the step runs again with new checkpoint ids."""
    mail, outbox = Mail(), MemoryOutbox()
    turns = [[("look", {"what": "x"})], [("send", {"to": "a"})]]
    first = scope({"send": "commit"}, outbox=outbox)
    first.release_all()
    await drive(agent("create_agent", mail.tools(), turns), ASK, thread(), first, sync=sync)
    again = scope({"send": "commit"}, outbox=outbox)
    again.release_all()
    result = await drive(agent("create_agent", mail.tools(), turns), ASK, thread(), again, sync=sync)
    assert mail.sent == ["a"]
    message = result["messages"][-2]
    assert (message.type, message.content, message.tool_call_id) == ("tool", "sent to a", "call-1-0")
    assert [r.state for r in again.records] == ["committed"]


@SYNC
async def test_unknown_outcome_stops_the_run_and_can_be_settled(sync: bool) -> None:
    mail, outbox = Mail(), MemoryOutbox()
    # middleware and tool nodes that turn errors into messages must not swallow it
    middleware = [
        ToolErrorMiddleware(lambda e, r: "swallowed", aon_error=None),
        ToolRetryMiddleware(max_retries=2, initial_delay=0),
    ]
    app = agent("create_agent", mail.tools(), [[("send", {"to": "a"})]], middleware=middleware)
    own = scope({"send": "commit"}, outbox=outbox)
    await drive(app, ASK, thread(), own, sync=sync)
    key = own.held[0].key
    own.release()
    outbox.begin(key, "send", {"to": "a"})  # another process got this far, and died
    with pytest.raises(fx.EffectUnknownError, match=key) as caught:
        await drive(app, None, thread(), own, sync=sync)
    assert (caught.value.tool, caught.value.arguments) == ("send", {"to": "a"})
    assert "amc settle" in str(caught.value)
    assert mail.sent == []
    assert [r.state for r in own.records] == ["unknown"]

    fx.settle_effect(outbox, key, "sent to a, says the provider")
    result = await drive(app, None, thread(), own, sync=sync)
    assert mail.sent == []
    assert tool_texts(result) == ["sent to a, says the provider"]


class TemporaryError(Exception):
    """Known to this program, so that it is made again after a restart."""


@SYNC
async def test_a_failed_effect_is_not_repeated(sync: bool) -> None:
    tries: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        tries.append(to)
        raise TemporaryError("no route", 7)

    outbox = MemoryOutbox()
    app = agent("create_agent", [send], [[("send", {"to": "a"})]])
    own = scope({"send": "commit"}, outbox=outbox)
    own.release_all()
    with pytest.raises(TemporaryError):
        await drive(app, ASK, thread(), own, sync=sync)
    with pytest.raises(TemporaryError):
        await drive(app, None, thread(), own, sync=sync)
    restarted = scope({"send": "commit"}, outbox=outbox)
    restarted.release_all()
    with pytest.raises(TemporaryError) as caught:
        await drive(app, None, thread(), restarted, sync=sync)
    assert caught.value.args == ("no route", 7)
    assert tries == ["a"]
    assert [r.state for r in restarted.records] == ["failed"]


@SYNC
async def test_retry_middleware_sees_the_failure_again_but_the_tool_does_not_run(sync: bool) -> None:
    tries: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        tries.append(to)
        raise TemporaryError("no route")

    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0, on_failure="continue")
    app = agent("create_agent", [send], [[("send", {"to": "a"})]], middleware=[retry])
    own = scope({"send": "commit"})
    own.release_all()
    result = await drive(app, ASK, thread(), own, sync=sync)
    assert tries == ["a"]
    assert result["messages"][-2].status == "error"


@SYNC
async def test_a_handled_tool_error_is_a_result(sync: bool) -> None:
    from langchain_core.tools import ToolException

    tries: list[str] = []

    def send(to: str) -> str:
        """Send a mail."""
        tries.append(to)
        raise ToolException("mailbox full")

    made = tool(send)
    made.handle_tool_error = True
    outbox = MemoryOutbox()
    for _ in range(2):
        own = scope({"send": "commit"}, outbox=outbox)
        own.release_all()
        result = await drive(agent("ToolNode", [made], [[("send", {"to": "a"})]]), ASK, thread(), own, sync=sync)
        assert (result["messages"][-2].content, result["messages"][-2].status) == ("mailbox full", "error")
    assert tries == ["a"]


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def single(node: Any, **options: Any) -> Any:
    g = StateGraph(Log)
    g.add_node("act", node, **options)
    g.add_edge(START, "act")
    return g.compile(checkpointer=InMemorySaver())


@SYNC
async def test_equal_calls_of_one_node_are_different_effects(sync: bool) -> None:
    mail = Mail()
    send = mail.tools()[0]

    def act(state: Log) -> dict[str, Any]:
        return {"log": [send.invoke({"to": "a"}) for _ in range(3)]}

    async def aact(state: Log) -> dict[str, Any]:
        return {"log": [await send.ainvoke({"to": "a"}) for _ in range(3)]}

    app, own = single(act if sync else aact), scope({"send": "commit"})
    result = await drive(app, {"log": []}, thread(), own, sync=sync)
    for turn in range(3):
        assert (len(mail.sent), len(own.held)) == (turn, 1)
        own.release()
        result = await drive(app, None, thread(), own, sync=sync)
    assert result["log"] == ["sent to a"] * 3
    assert len(set(mail.keys)) == 3


@SYNC
async def test_equal_calls_of_parallel_tasks_are_different_effects(sync: bool) -> None:
    from langgraph.types import Send

    mail = Mail()
    send = mail.tools()[0]
    g = StateGraph(Log)
    g.add_node("work", lambda s: {"log": [send.invoke({"to": "a"})]})
    g.add_conditional_edges(START, lambda s: [Send("work", {}) for _ in range(3)], ["work"])
    app, own = g.compile(checkpointer=InMemorySaver()), scope({"send": "commit"})
    await drive(app, {"log": []}, thread(), own, sync=sync)
    assert len(own.held) == 3
    own.release()
    result = await drive(app, None, thread(), own, sync=sync)
    assert (mail.sent, result["log"]) == (["a"] * 3, ["sent to a"] * 3)
    assert len(set(mail.keys)) == 3


@SYNC
async def test_equal_calls_in_later_steps_are_different_effects(sync: bool) -> None:
    """Models that give every tool call the same id lose no effect."""
    mail = Mail()
    call = {"type": "tool_call", "name": "send", "args": {"to": "a"}, "id": "call_1"}
    g = StateGraph(Log)
    g.add_node("act", lambda s: {"log": [mail.tools()[0].invoke(call).content]})
    g.add_edge(START, "act")
    g.add_conditional_edges("act", lambda s: "act" if len(s["log"]) < 3 else END, ["act", END])
    app, own = g.compile(checkpointer=InMemorySaver()), scope({"send": "commit"})
    own.release_all()
    await drive(app, {"log": []}, thread(), own, sync=sync)
    assert mail.sent == ["a"] * 3


@SYNC
async def test_retry_policy_does_not_repeat_an_effect(sync: bool) -> None:
    mail, runs = Mail(), []
    send = mail.tools()[0]

    def act(state: Log) -> dict[str, Any]:
        runs.append(1)
        text = send.invoke({"to": "a"})
        if len(runs) < 3:
            raise TemporaryError("after the effect")
        return {"log": [text]}

    app = single(act, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, retry_on=TemporaryError))
    own = scope({"send": "commit"})
    own.release_all()
    result = await drive(app, {"log": []}, thread(), own, sync=sync)
    assert (len(runs), mail.sent, result["log"]) == (3, ["a"], ["sent to a"])


@SYNC
async def test_an_effect_that_changes_each_time_is_refused(sync: bool) -> None:
    mail, count = Mail(), iter(range(100))
    send = mail.tools()[0]
    app = single(lambda s: {"log": [send.invoke({"to": f"at {next(count)}"})]})
    own = scope({"send": "commit"})
    await drive(app, {"log": []}, thread(), own, sync=sync)
    own.release()
    await drive(app, None, thread(), own, sync=sync)
    with pytest.raises(fx.EffectChangedError, match="earlier node"):
        own.release()
    assert mail.sent == []


@SYNC
async def test_decorated_function_in_a_node(sync: bool) -> None:
    sent: list[str] = []

    @fx.effect("commit")
    def send(to: str, *, subject: str = "") -> dict[str, Any]:
        sent.append(to)
        return {"id": len(sent), "subject": subject}

    @fx.effect("commit")
    async def asend(to: str, *, subject: str = "") -> dict[str, Any]:
        sent.append(to)
        return {"id": len(sent), "subject": subject}

    async def aact(state: Log) -> dict[str, Any]:
        return {"log": [await asend("a", subject="hi")]}

    app = single((lambda s: {"log": [send("a", subject="hi")]}) if sync else aact)
    own = scope({})
    await drive(app, {"log": []}, thread(), own, sync=sync)
    assert (sent, [h.arguments for h in own.held]) == ([], [{"to": "a", "subject": "hi"}])
    own.release()
    result = await drive(app, None, thread(), own, sync=sync)
    assert (sent, result["log"]) == (["a"], [{"id": 1, "subject": "hi"}])
    await drive(app, {"log": []}, thread("plain"), None, sync=sync)
    assert sent == ["a", "a"]


@SYNC
@pytest.mark.parametrize("above", [True, False])
async def test_decorator_above_and_below_tool(sync: bool, above: bool) -> None:
    sent: list[str] = []

    def send(to: str, state: Annotated[dict, InjectedState]) -> str:
        """Send a mail."""
        sent.append(f"{to} {len(state['messages'])}")
        return "ok"

    made = fx.effect("commit")(tool(send)) if above else tool(fx.effect("commit")(send))
    assert made.name == "send"
    assert set(made.args) - {"state"} == {"to"}
    app = agent("create_agent", [made], [[("send", {"to": "a"})]])
    rules = fx.read_effects(None, app)
    assert rules is not None
    assert rules.active
    assert rules.unclassified(app) == []
    own = scope(rules)
    await drive(app, ASK, thread(), own, sync=sync)
    assert (sent, own.held[0].arguments) == ([], {"to": "a"})
    own.release()
    await drive(app, None, thread(), own, sync=sync)
    assert sent == ["a 2"]


async def test_a_mapping_overrules_the_decorator_of_a_tools_function() -> None:
    sent: list[str] = []

    @tool
    @fx.effect("commit")
    def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "ok"

    app = agent("create_agent", [send], [[("send", {"to": "a"})]])
    for sync in (True, False):
        own = scope({"send": "pure"})
        await drive(app, ASK, thread(str(sync)), own, sync=sync)
        assert own.held == ()
    assert sent == ["a", "a"]


@SYNC
async def test_a_tool_that_asks_a_human(sync: bool) -> None:
    """Held, released, asks, answered: the tool runs again after the answer, as in a plain run."""
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        if interrupt("really?") != "yes":
            return "not sent"
        sent.append(to)
        return "sent"

    app, own = agent("create_agent", [send], [[("send", {"to": "a"})]]), scope({"send": "commit"})
    await drive(app, ASK, thread(), own, sync=sync)
    own.release()
    asked = await drive(app, None, thread(), own, sync=sync)
    assert [i.value for i in asked["__interrupt__"]] == ["really?"]
    assert (sent, own.held) == ([], ())
    result = await drive(app, Command(resume="yes"), thread(), own, sync=sync)
    assert (sent, tool_texts(result)) == (["a"], ["sent"])
    assert [r.state for r in own.records] == ["committed"]


@SYNC
async def test_an_agent_called_as_a_tool(sync: bool) -> None:
    mail = Mail()
    inner = create_agent(CallingModel(turns=[[("look", {"what": "x"})], [("send", {"to": "a"})]]), mail.tools())

    @tool
    def helper(task: str) -> str:
        """Let another agent do it."""
        return inner.invoke({"messages": [("user", task)]})["messages"][-1].content

    @tool("helper")
    async def ahelper(task: str) -> str:
        """Let another agent do it."""
        return (await inner.ainvoke({"messages": [("user", task)]}))["messages"][-1].content

    app = agent("create_agent", [helper if sync else ahelper], [[("helper", {"task": "mail a"})]])
    own = scope({"send": "commit"})
    await drive(app, ASK, thread(), own, sync=sync)
    assert (mail.sent, [h.tool for h in own.held]) == ([], ["send"])
    own.release()
    result = await drive(app, None, thread(), own, sync=sync)
    assert (mail.sent, mail.looked) == (["a"], 1)
    assert result["messages"][-1].content == "done"


@SYNC
async def test_dropped_effects_never_happen(sync: bool) -> None:
    mail = Mail()
    app, own = agent("create_agent", mail.tools(), [[("send", {"to": "a"})]]), scope({"send": "commit"})
    await drive(app, ASK, thread(), own, sync=sync)
    own.drop()
    assert (own.held, [r.state for r in own.records]) == ((), ["dropped"])
    assert mail.sent == []
    json.dumps([r.json() for r in own.records])


@SYNC
async def test_scope_goes_on_from_its_stored_state(sync: bool) -> None:
    mail, outbox = Mail(), MemoryOutbox()
    app, own = agent("create_agent", mail.tools(), [[("send", {"to": "a"})]]), scope({"send": "commit"}, outbox=outbox)
    await drive(app, ASK, thread(), own, sync=sync)
    own.release()
    kept = json.loads(json.dumps(own.state()))
    again = fx.EffectScope.restored(own.rules, "r", "p0", outbox, kept)
    assert [r.state for r in again.records] == ["held"]
    await drive(app, None, thread(), again, sync=sync)
    assert (mail.sent, [r.state for r in again.records]) == (["a"], ["committed"])
    kept = json.loads(json.dumps(again.state()))
    assert fx.EffectScope.restored(own.rules, "r", "p0", outbox, kept).records == again.records


def test_a_holding_particle_is_not_forked() -> None:
    mail = Mail()
    app, own = agent("create_agent", mail.tools(), [[("send", {"to": "a"})]]), scope({"send": "commit"})
    with own.enter():
        app.invoke(ASK, thread())
    with pytest.raises(RuntimeError, match="holds effects"):
        own.fork("p1")


def test_a_fork_ends_free_running() -> None:
    mail = Mail()
    own = scope({"send": "commit"})
    own.release_all()
    clone = own.fork("p1")
    for number, each in enumerate((own, clone)):
        with each.enter():
            agent("create_agent", mail.tools(), [[("send", {"to": "a"})]]).invoke(ASK, thread(str(number)))
        assert len(each.held) == 1
    assert mail.sent == []
    assert own.held[0].key != clone.held[0].key


@SYNC
async def test_a_node_that_swallows_the_pause_goes_without_the_effect(sync: bool) -> None:
    mail = Mail()
    send = mail.tools()[0]

    def act(state: Log) -> dict[str, Any]:
        try:
            return {"log": [send.invoke({"to": "a"})]}
        except Exception:
            return {"log": ["could not"]}

    app, own = single(act), scope({"send": "commit"})
    own.at_step(0)
    result = await drive(app, {"log": []}, thread(), own, sync=sync)
    own.at_step(1)
    assert (result["log"], mail.sent, own.held) == (["could not"], [], ())
    assert [r.state for r in own.records] == ["dropped"]
    own.fork("p1")


@pytest.mark.parametrize("journal", [False, True])
async def test_an_effect_that_is_cut_off_is_unknown(journal: bool, tmp_path: Path) -> None:
    begun = asyncio.Event()
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail, slowly."""
        sent.append(to)
        begun.set()
        await asyncio.sleep(60)
        return "sent"

    app, run = agent("create_agent", [send], [[("send", {"to": "a"})]]), None
    if journal:
        run = Journal(tmp_path / "runs.sqlite").open("key", seed=0, about={})
    own = scope({"send": "commit"}, outbox=MemoryOutbox() if run is None else run.outbox)
    await drive(app, ASK, thread(), own, sync=False)
    own.release()
    key = next(iter(own.records)).key
    call = asyncio.create_task(drive(app, None, thread(), own, sync=False))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [(r.key, r.state) for r in own.records] == [(key, "unknown")]
    assert own.outbox.begin(key, "send", {"to": "a"}) == Recorded("unknown")
    with pytest.raises(fx.EffectUnknownError, match=key):
        await drive(app, None, thread(), own, sync=False)
    assert sent == ["a"]


def test_a_synchronous_effect_that_is_cut_off_is_unknown() -> None:
    @tool
    def send(to: str) -> str:
        """Send a mail, until Ctrl-C."""
        raise KeyboardInterrupt

    own = scope({"send": "commit"})
    own.release_all()
    with own.enter(), pytest.raises(KeyboardInterrupt):
        send.invoke({"to": "a"})
    assert [r.state for r in own.records] == ["unknown"]
    (record,) = own.records
    assert own.outbox.begin(record.key, "send", {"to": "a"}) == Recorded("unknown")
