"""Skills in the prompt of an app that knows of none, or has a place for them; never in its state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

import langgraph_amc as amc
from langgraph_amc.context import instructions
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.instructions import SLOT, place_in_dicts, place_in_messages
from langgraph_amc.skills import Skill, SkillLibrary, SkillsMiddleware, skills_text, using
from tests.support.cases import FunctionModel
from tests.support.openai_server import OpenAIServer

LIBRARY = SkillLibrary((Skill("desk", "How to quote.", "Weigh first.", files={"units.md": b"Kilograms."}),))
TEXT = LIBRARY.text()


def half(text: str) -> float:
    return 0.5


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def model(server: OpenAIServer, **options: Any) -> Any:
    return amc.chat_model("openai/test-model", api_base=server.base_url, api_key="test", **options)


def said(server: OpenAIServer, number: int = -1) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in server.requests[number]["messages"]]


def test_every_way_to_call_the_chat_model_gets_them_once(server: OpenAIServer) -> None:
    chat = model(server)
    asked = [SystemMessage("Be kind."), HumanMessage("Hello")]
    with using(LIBRARY) as told:
        chat.invoke(asked)
        asyncio.run(chat.ainvoke(asked))
        list(chat.stream(asked))

        async def stream() -> None:
            async for _ in chat.astream(asked):
                pass

        asyncio.run(stream())
        chat.batch([asked])
        chat.generate([asked])
        chat.bind_tools([]).invoke(asked)
    assert len(server.requests) == 7
    assert told.placed >= 7
    for number in range(7):
        assert said(server, number) == [("system", f"Be kind.\n\n{TEXT}"), ("user", "Hello")]
    assert asked[0].content == "Be kind."
    chat.invoke(asked)
    assert said(server) == [("system", "Be kind."), ("user", "Hello")]


def test_without_a_system_message_they_are_one(server: OpenAIServer) -> None:
    with using(LIBRARY):
        model(server).invoke("Hello")
    assert said(server) == [("system", TEXT), ("user", "Hello")]


def test_a_slot_says_where_they_go_and_is_never_sent(server: OpenAIServer) -> None:
    chat = model(server)
    asked = [SystemMessage(f"First.\n{SLOT}\nLast."), HumanMessage("Hello")]
    with using(LIBRARY):
        chat.invoke(asked)
    assert said(server)[0] == ("system", f"First.\n{TEXT}\nLast.")
    with using(SkillLibrary()):
        chat.invoke(asked)
    assert said(server)[0] == ("system", "First.\n\nLast.")
    chat.invoke(asked)
    assert said(server)[0] == ("system", "First.\n\nLast.")


def test_a_model_keeps_its_own_until_a_measurement_says_otherwise(server: OpenAIServer) -> None:
    chat = model(server, instructions=TEXT)
    chat.invoke("Hello")
    assert said(server)[0] == ("system", TEXT)
    other = SkillLibrary((Skill("air", "How to fly.", "Flap."),))
    with using(other):
        chat.invoke("Hello")
    assert said(server)[0] == ("system", other.text())
    with using(SkillLibrary()) as told:
        chat.invoke("Hello")
    assert said(server) == [("user", "Hello")]
    assert told.placed


def test_blocks_of_content_stay_blocks() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with using(LIBRARY):
        [system, user] = place_in_messages(
            [SystemMessage([{"type": "text", "text": "Be kind."}]), HumanMessage([image, "Look"])]
        )
        assert system.content == [{"type": "text", "text": "Be kind."}, {"type": "text", "text": TEXT}]
        assert user.content == [image, "Look"]
        [slotted] = place_in_messages([HumanMessage([image, {"type": "text", "text": f"Now {SLOT}"}, f"and {SLOT}"])])
        assert slotted.content == [image, {"type": "text", "text": f"Now {TEXT}"}, f"and {TEXT}"]
        assert place_in_messages([system, user]) == [system, user]
        assert place_in_dicts([{"role": "user", "content": "Hi"}])[0] == {"role": "system", "content": TEXT}
        quoted = [AIMessage(f"You said {SLOT}"), HumanMessage("Hi")]
        assert place_in_messages(quoted)[1:] == quoted


def test_a_budget_reckons_with_them(server: OpenAIServer) -> None:
    long = SkillLibrary((Skill("desk", "How to quote.", "Weigh the parcel first. " * 400),))
    chat = model(server, max_tokens=10)
    with amc.Budget(tokens=1000).open():
        chat.invoke("Hello")
        with using(long), pytest.raises(amc.BudgetExceededError):
            chat.invoke("Hello")
    assert len(server.requests) == 1


@pytest.mark.parametrize("particles", [1, 3])
def test_no_state_and_no_checkpoint_ever_holds_them(server: OpenAIServer, particles: int) -> None:
    saver = InMemorySaver()
    app = create_agent(model(server), [], system_prompt="Be kind.", checkpointer=saver)
    better = amc.wrap(app, particles=particles, value=half)
    config = {"configurable": {"thread_id": "1"}}
    with using(LIBRARY):
        output = better.invoke({"messages": [("user", "Hello")]}, config)
    assert all(("system", f"Be kind.\n\n{TEXT}") in said(server, n) for n in range(len(server.requests)))
    assert "Weigh" not in str(output)
    assert "Weigh" not in str(list(saver.list(None)))
    for stored in saver.list(None):
        assert "Weigh" not in str(saver.serde.dumps_typed(stored.checkpoint))


def test_clones_before_one_prompt_still_ask_once(server: OpenAIServer) -> None:
    app = create_agent(model(server, coalesce_window=0.2), [])
    with using(LIBRARY):
        amc.wrap(app, particles=4, value=half).invoke({"messages": [("user", "Hello")]})
    assert [body.get("n") for body in server.requests] == [4]


def test_a_judge_is_not_told_what_the_agent_is_told(server: OpenAIServer) -> None:
    server.reply = lambda body, number: "Score: 0.5"
    with using(LIBRARY):
        amc.judge(model(server)).score([("state",)])
    assert all("Weigh" not in str(body) for body in server.requests)


def test_a_graph_that_makes_its_own_prompt_asks_for_the_text() -> None:
    heard: list[Any] = []
    chat = FunctionModel(reply=lambda messages: AIMessage(str(heard.append(messages[0].content))))

    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke([SystemMessage(f"Rules: {skills_text(LIBRARY)}"), *state["messages"]])]}

    g = StateGraph(MessagesState)
    g.add_node("speak", speak)
    g.add_edge(START, "speak")
    g.add_edge("speak", END)
    app = g.compile()
    app.invoke({"messages": [("user", "Hello")]})
    with using(SkillLibrary()) as told:
        app.invoke({"messages": [("user", "Hello")]})
    assert heard == [f"Rules: {TEXT}", "Rules: "]
    assert told.placed == 1


def test_middleware_serves_any_model_and_gives_way_to_a_measurement(server: OpenAIServer, tmp_path: Any) -> None:
    LIBRARY.write(tmp_path)
    app = create_agent(model(server), [], system_prompt="Be kind.", middleware=[SkillsMiddleware(tmp_path)])
    output = app.invoke({"messages": [("user", "Hello")]})
    assert said(server) == [("system", f"Be kind.\n\n{TEXT}"), ("user", "Hello")]
    assert "Weigh" not in str(output)
    other = SkillLibrary((Skill("air", "How to fly.", "Flap."),))
    with using(other) as told:
        asyncio.run(app.ainvoke({"messages": [("user", "Hello")]}))
    assert said(server)[0] == ("system", f"Be kind.\n\n{other.text()}")
    assert told.placed == 1
    with using(SkillLibrary()) as told:
        app.invoke({"messages": [("user", "Hello")]})
    assert said(server)[0] == ("system", "Be kind.")
    assert told.placed == 1
    assert instructions.get() is None
    with pytest.raises(ConfigurationError, match="full or progressive"):
        SkillsMiddleware(LIBRARY, "some")  # type: ignore[arg-type]


def test_progressive_disclosure_shows_names_and_reads_the_rest_on_demand(server: OpenAIServer) -> None:
    asked = [("desk", ""), ("desk", "units.md"), ("desk", "no.md"), ("sea", "")]

    def reply(body: dict[str, Any], number: int) -> str | dict[str, Any]:
        if number == len(asked):
            return "done"
        name, file = asked[number]
        call = {"name": "read_skill", "arguments": f'{{"name": "{name}", "file": "{file}"}}'}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
        }

    server.reply = reply
    app = create_agent(model(server), [], middleware=[SkillsMiddleware(LIBRARY, "progressive")])
    output = app.invoke({"messages": [("user", "Hello")]})
    first = said(server, 0)[0]
    assert first == ("system", LIBRARY.index("read_skill"))
    assert "Weigh" not in str(server.requests[0])
    assert [t["function"]["name"] for t in server.requests[0]["tools"]] == ["read_skill"]
    read = [m.content for m in output["messages"] if m.type == "tool"]
    assert read[0] == "Weigh first.\n\nFurther files:\n- units.md"
    assert read[1] == "Kilograms."
    assert "it has: units.md" in read[2]
    assert "there are: desk" in read[3]


def test_a_local_model_of_an_unchanged_app_gets_them(tmp_path: Any) -> None:
    from langchain_litellm import ChatLiteLLM

    from tests.support.tiny_models import save_tiny

    save_tiny(tmp_path / "model", num_hidden_layers=1)
    chat = ChatLiteLLM(model=f"amc-local/{tmp_path / 'model'}", max_tokens=1)
    plain = chat.invoke("Hello").usage_metadata["input_tokens"]
    with using(LIBRARY) as told:
        longer = chat.invoke("Hello").usage_metadata["input_tokens"]
    assert longer > plain + 10
    assert told.placed == 1
