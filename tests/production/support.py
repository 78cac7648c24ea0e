"""A whole production agent in small: a model behind real HTTP, a tool that acts on the world, a SQLite thread.

The server answers with what the particle's seed and the prompt determine, and numbers its answers, so that a test
can tell which of them were paid twice. The world is a file that the tool appends to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

import langgraph_amc as amc

STEPS = 3
"""Times an agent thinks before it orders."""


class Server:
    """Numbers and remembers its answers: ``asked[i]`` is the (particle, prompt) of answer i."""

    def __init__(self, latency: float = 0.0) -> None:
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(latency)
                with server.lock:
                    number = len(server.asked)
                    server.asked.append((body["particle"], body["prompt"]))
                answer = {"draw": draw(body["seed"], body["prompt"]), "number": number}
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def serving(latency: float = 0.0):
    server = Server(latency)
    try:
        yield server
    finally:
        server.close()


def draw(seed: int, prompt: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{prompt}".encode(), digest_size=2).digest(), "big") % 1000


class HTTPModel(BaseChatModel):
    """Thinks STEPS times, orders what it has thought of, and says so."""

    url: str

    @property
    def _llm_type(self) -> str:
        return "http"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        particle = amc.current_particle.get()
        # answers are numbered by the server: what a prompt says must not depend on that
        prompt = re.sub(r"#\d+", "", "\n".join(f"{m.type}: {m.content}" for m in messages))
        body = {"seed": particle.seed, "particle": particle.particle, "prompt": prompt}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.loads(response.read())
        turn = sum(m.type == "ai" for m in messages)
        number, text = answer["draw"], f"#{answer['number']} draw {answer['draw']}"
        calls = []
        if turn < STEPS:
            calls = [{"name": "think", "args": {"number": number}, "id": f"{turn}-{number}"}]
        elif turn == STEPS:
            calls = [{"name": "order", "args": {"number": number}, "id": f"{turn}-{number}"}]
        usage = {"input_tokens": len(prompt), "output_tokens": 10, "total_tokens": len(prompt) + 10}
        message = AIMessage(text, tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def think(number: int) -> str:
    """Think about a number."""
    return f"thought of {number}"


def ordering(world: Path) -> Any:
    """The tool that acts on the world."""

    @tool
    def order(number: int) -> str:
        """Order a number of things."""
        line = json.dumps({"number": number, "particle": amc.current_particle.get().particle})
        descriptor = os.open(world, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, (line + "\n").encode())
        finally:
            os.close(descriptor)
        return f"ordered {number}"

    return order


def happened(world: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in world.read_text().splitlines()] if world.exists() else []


def judge(transcript: str) -> float:
    """V: the mean of the numbers drawn so far."""
    draws = [int(d) for d in re.findall(r"draw (\d+)", transcript)]
    return sum(draws) / len(draws) / 1000 if draws else 0.5


def agent(url: str, world: Path, checkpointer: Any = None, **settings: Any) -> Any:
    app = create_agent(HTTPModel(url=url), [think, ordering(world)], checkpointer=checkpointer)
    how = {
        "particles": 4,
        "value": judge,
        "resample": amc.every(1),
        "effects": {"order": "commit", "think": "pure"},
        **settings,
    }
    return amc.wrap(app, **how)


def texts(state: dict[str, Any]) -> list[str]:
    """What was said, without the numbers that the server gave."""
    return [re.sub(r"#\d+ ", "", str(m.content)) for m in state["messages"]]
