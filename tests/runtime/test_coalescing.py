"""AMC over LiteLLM against a real HTTP server: what the server is asked, and what it is paid for."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool

import langgraph_amc as amc
from tests.support.openai_server import OpenAIServer


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing at {where}"


def reply(body: dict[str, Any], number: int) -> str | dict[str, Any]:
    turns = sum(m["role"] == "assistant" for m in body["messages"])
    if turns == 2:
        return f"gave up, {number}"
    call = {"name": "look", "arguments": f'{{"where": "place {number}"}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
    }


async def test_clones_share_requests_and_every_token_is_counted_once() -> None:
    with OpenAIServer() as server:
        server.reply = reply
        model = amc.chat_model("openai/test", api_base=server.base_url, api_key="none", coalesce_window=0.1)
        app = create_agent(model, [look])

        def only_the_first(transcripts: Any) -> list[float]:
            return [1.0, *[0.0] * (len(transcripts) - 1)]

        better = amc.wrap(app, particles=6, value=only_the_first, resample=amc.at(1), tau=0.001, seed=0)
        result = await better.ainvoke({"messages": [("user", "find it")]})
        run = result.amc

    asked = [body.get("n") or 1 for body in server.requests]
    # six particles before one prompt; after the resampling six clones of one before the next; then all differ
    assert asked == [6, 6, 1, 1, 1, 1, 1, 1]
    assert len({p.trajectory.segments for p in run.particles}) == 6
    assert {run.lineage(p.name)[0] for p in run.particles} == {"p0"}
    assert run.usage.input_tokens == 8 * server.prompt_tokens
    assert run.usage.output_tokens == 18 * server.completion_tokens
    assert sum(p.trajectory.usage.tokens for p in (*run.particles, *run.pruned)) == run.usage.tokens
    assert not run.warnings
