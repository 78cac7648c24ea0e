"""Trajectories of a parcel desk, written as runs leave them behind."""

from __future__ import annotations

from typing import Any

from langgraph_amc.trajectories.transcript import segments_from_messages
from langgraph_amc.trajectories.types import Trajectory


def run(task: str, *said: str, reward: float | None, run_id: str = "", particle: str = "p0", **more: Any) -> Trajectory:
    """A run whose messages are ``role: text`` each; ``call: name {json}`` is a tool call, ``tool: text`` its result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Quote {task}."}]
    for number, line in enumerate(said):
        role, _, text = line.partition(": ")
        if role == "call":
            name, _, args = text.partition(" ")
            function = {"name": name, "arguments": args or "{}"}
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
                }
            )
        elif role == "tool":
            messages.append({"role": "tool", "content": text, "tool_call_id": f"c{number - 1}"})
        else:
            messages.append({"role": role, "content": text})
    return Trajectory(
        run_id or f"run-{task}-{reward}",
        particle,
        segments_from_messages(messages),
        outcome=reward,
        task_id=task,
        **more,
    )
