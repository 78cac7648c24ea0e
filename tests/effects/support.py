"""Apps whose model asks for given tool calls, and scopes driven by hand as the runtime drives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_amc.runtime.effects import EffectRules, EffectScope
from langgraph_amc.runtime.outbox import MemoryOutbox

ASK: dict[str, Any] = {"messages": [("user", "go")]}


class CallingModel(BaseChatModel):
    """Asks for ``turns[t]`` at its t-th turn, each a list of (tool, arguments), and then says done."""

    turns: list[list[tuple[str, dict[str, Any]]]]

    @property
    def _llm_type(self) -> str:
        return "calling"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        turn = sum(m.type == "ai" for m in messages)
        calls = self.turns[turn] if turn < len(self.turns) else []
        message = AIMessage(
            "" if calls else "done",
            tool_calls=[{"name": n, "args": a, "id": f"call-{turn}-{k}"} for k, (n, a) in enumerate(calls)],
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def scope(
    rules: EffectRules | Mapping[str, Any], particle: str = "p0", outbox: Any = None, run: str = "r"
) -> EffectScope:
    made = rules if isinstance(rules, EffectRules) else EffectRules(named=rules)
    return EffectScope(made, run, particle, outbox or MemoryOutbox())


def thread(name: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


async def drive(app: Any, input: Any, config: Any, within: EffectScope | None, *, sync: bool) -> Any:
    """Run the app for a particle (or plainly), synchronously or not."""
    if within is None:
        return app.invoke(input, config) if sync else await app.ainvoke(input, config)
    with within.enter():
        return app.invoke(input, config) if sync else await app.ainvoke(input, config)


def tool_texts(result: Mapping[str, Any]) -> list[str]:
    return [m.content for m in result["messages"] if m.type == "tool"]
