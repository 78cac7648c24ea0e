"""Servers that speak as AgentGym's do, over real HTTP, around a corridor to walk through or the real TextCraft.

Written after the servers' code and without a look at the package's dialects, which are tested against it.
As a program: ``python gym_servers.py textcraft 36001``; ``GET /_count`` says how many environments are open.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SHARED = threading.Lock()
"""AgentGym's TextCraft changes what all its environments share at every reset; two at once are too many here."""


class Corridor:
    """Walk ``right`` to the end; ``jump`` ends it early, ``crash`` breaks it."""

    def __init__(self, index: int) -> None:
        self.length, self.at, self.jumped = 2 + index % 3, 0, False
        self.first = f"Corridor {index}. {self.text}"

    @property
    def text(self) -> str:
        return f"You are at {self.at} of {self.length}."

    @property
    def solved(self) -> bool:
        return self.at == self.length

    @property
    def over(self) -> bool:
        return self.solved or self.jumped

    def step(self, action: str) -> str:
        if action == "crash":
            raise ValueError("the corridor fell in")
        self.jumped = action == "jump"
        self.at = max(0, self.at + {"right": 1, "left": -1}.get(action, 0))
        return self.text


class Crafting:
    """The TextCraft of the package langgraph-amc-textcraft; as AgentGym's it has no limit of steps."""

    def __init__(self, index: int) -> None:
        from langgraph_amc_textcraft import TextCraft, tasks

        everything = tasks(infeasible=True)
        self.goal = everything[index % len(everything)].input["task"]["goal"]
        self.world = TextCraft()
        self.first = self.world.reset({"goal": self.goal, "step_limit": 10**6})
        self.over = self.solved = False

    def step(self, action: str) -> str:
        observation, _, self.over, _ = self.world.step(action)
        self.solved = self.over
        return observation


class Refused(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, answer: Any) -> None:
        self.status, self.answer = status, answer


def fields(body: Any, **kinds: type) -> list[Any]:
    """The body's fields in order, as FastAPI checks them."""
    for name, kind in kinds.items():
        if not isinstance(body, dict) or not isinstance(body.get(name), kind) or isinstance(body[name], bool):
            raise Refused(422, {"detail": [{"loc": ["body", name], "msg": f"not {kind.__name__}"}]})
    return [body[name] for name in kinds]


class Gym:
    """What the servers have in common: environments by id, errors inside of answers with status 200."""

    prefix = ""
    index = "data_idx"
    closes = True

    def __init__(self, world: Callable[[int], Any]) -> None:
        self.world = world
        self.ids = itertools.count()
        self.envs: dict[int, Any] = {}

    def create(self, body: Any) -> Any:
        env = next(self.ids)
        self.envs[env] = None
        return {"id": env}

    def reset(self, body: Any) -> Any:
        env, index = fields(body, id=int, **{self.index: int})
        return self.guarded(lambda: self.started(env, self.begin(env, index)))

    def step(self, body: Any) -> Any:
        env, action = fields(body, id=int, action=str)
        return self.guarded(lambda: self.moved(self.running(env), action))

    def close(self, body: Any) -> Any:
        (env,) = fields(body, id=int)
        return self.envs.pop(env, self) is not self

    def begin(self, env: int, index: int) -> Any:
        if env not in self.envs:
            raise NameError(f"The id {env} is not valid.")
        if index > 1_000_000:
            raise IndexError("list index out of range")
        self.envs[env] = self.world(index)
        return self.envs[env]

    def running(self, env: int) -> Any:
        if env not in self.envs:
            raise NameError(f"The id {env} is not valid.")
        if self.envs[env].over:
            raise NameError(f"The task with environment {env} has finished.")
        return self.envs[env]

    def guarded(self, answer: Callable[[], Any]) -> Any:
        try:
            return answer()
        except Exception as exc:
            return {"error": str(exc)}

    def started(self, env: int, world: Any) -> Any:
        return {"id": env, "observation": world.first, "done": False, "reward": 0}

    def moved(self, world: Any, action: str) -> Any:
        return {"observation": world.step(action), "reward": int(world.solved), "done": world.over}


class TextCraft(Gym):
    shown = itertools.count()

    def create(self, body: Any) -> Any:
        if not isinstance(body, dict):
            raise Refused(422, {"detail": "a body is required"})
        answer = super().create(body)
        world = self.begin(answer["id"], answer["id"])  # as the original: it is a reset as well
        return self.guarded(lambda: self.started(answer["id"], world))

    def started(self, env: int, world: Any) -> Any:
        """As the original's, the commands that it shows besides are others at every reset."""
        if not SHARED.acquire(blocking=False):
            raise RuntimeError("list changed size during iteration")
        try:
            time.sleep(0.004)
            if isinstance(world, Corridor):
                world.first = f"Crafting commands:\ncraft {next(self.shown)}\n\nGoal: {world.first}"
        finally:
            SHARED.release()
        return super().started(env, world)


class AlfWorld(Gym):
    index = "game"

    def reset(self, body: Any) -> Any:
        (kind,) = fields(body, world_type=str)
        return super().reset(body) if kind in ("Text", "Embody", "Hybrid") else {"error": "world_type must be one of"}

    def started(self, env: int, world: Any) -> Any:
        actions = ["left", "right", "look"]
        return {"id": env, "observation": world.first, "available_actions": actions, "task_type": "pick/trial"}

    def moved(self, world: Any, action: str) -> Any:
        answer = super().moved(world, action)
        return answer | {"reward": float(world.solved), "available_actions": ["left", "right", "look"]}


class SciWorld(Gym):
    def started(self, env: int, world: Any) -> Any:
        answer = {"task_name": "walk", "var_num": 0, "task_description": "Walk right.", "observation": world.first}
        return answer | {"reward": 0, "score": 0, "deleted": False, "done": False}

    def moved(self, world: Any, action: str) -> Any:
        before = world.at
        observation = world.step(action)
        score, gained = (round(100 * at / world.length) for at in (world.at, world.at - before))
        return {"observation": observation, "reward": gained, "score": score, "done": world.over}


class BabyAI(Gym):
    def started(self, env: int, world: Any) -> Any:
        return {"observation": world.first, "reward": 0, "score": 0, "deleted": False, "done": False}

    def moved(self, world: Any, action: str) -> Any:
        observation = world.step(action)
        reward = 0.8 * world.solved
        return {"observation": observation, "reward": reward, "score": reward, "done": world.over}


class Maze(Gym):
    prefix, index, closes = "/maze", "game", False

    def started(self, env: int, world: Any) -> Any:
        return {"observation": world.first}

    def moved(self, world: Any, action: str) -> Any:
        text = world.step(action.removeprefix("move "))
        if world.jumped:
            return {"observation": "Failure\n", "reward": -1.0, "done": True}
        return {"observation": "Success\n" if world.solved else text, "reward": int(world.solved), "done": world.over}


class Wordle(Gym):
    prefix, index, closes = "/wordle", "seed", False

    def started(self, env: int, world: Any) -> Any:
        return {"id": env, "observation": world.first}


class WebShop(Gym):
    """Answers without names, and HTTP 500 for whatever goes wrong."""

    def guarded(self, answer: Callable[[], Any]) -> Any:
        try:
            return answer()
        except Exception as exc:
            raise Refused(500, "Internal Server Error") from exc

    def create(self, body: Any) -> Any:
        env = 1_000_000 + 7 * next(self.ids)
        self.envs[env] = None
        return env

    def reset(self, body: Any) -> Any:
        env, index = fields(body, env_idx=int, session_id=int)
        self.guarded(lambda: self.begin(env, index))
        return ["WebShop [SEP] a part of it only", None]

    def observation(self, query: dict[str, list[str]]) -> Any:
        return self.guarded(lambda: self.envs[int(query["env_idx"][0])].first)

    def step(self, body: Any) -> Any:
        env, action = fields(body, env_idx=int, action=str)
        return self.guarded(lambda: self.moved(self.running(env), action))

    def moved(self, world: Any, action: str) -> Any:
        return {"state": world.step(action), "reward": float(world.solved), "done": world.over, "info": None}

    def close(self, body: Any) -> Any:
        (env,) = fields(body, env_idx=int)
        return {"closed": self.envs.pop(env, self) is not self}


class SearchQA(WebShop):
    def create(self, body: Any) -> Any:
        fields(body, id=int)
        return super().create(body)

    def reset(self, body: Any) -> Any:
        env, index = fields(body, env_idx=int, id=int)
        return self.guarded(lambda: self.begin(env, index).first)

    def moved(self, world: Any, action: str) -> Any:
        """A wrong answer in the right form earns 0.1 and may be tried again."""
        found = re.search(r"<(search|answer)>(.*?)</\1>", action, re.DOTALL)
        text = world.step(found[2].strip()) if found else "Your previous action is invalid."
        answered = found is not None and found[1] == "answer"
        reward = 1.0 if world.solved else 0.1 * answered
        return {"observation": text, "reward": reward, "done": world.over, "info": None}

    def close(self, body: Any) -> Any:
        return super().close(body)["closed"]


GYMS = {
    "textcraft": TextCraft,
    "alfworld": AlfWorld,
    "sciworld": SciWorld,
    "babyai": BabyAI,
    "webshop": WebShop,
    "maze": Maze,
    "wordle": Wordle,
    "searchqa": SearchQA,
}


class GymServer(ThreadingHTTPServer):
    """One of them, listening on this machine only.

    ``canned`` answers come first, per path: a status and a body, or None for a connection that breaks after the
    request was carried out. ``delays`` are seconds before a path's next requests are carried out.
    """

    daemon_threads = True

    def __init__(
        self, kind: str, port: int = 0, *, world: Callable[[int], Any] = Corridor, closes: bool = True
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.gym = GYMS[kind](world)
        self.closes = closes and self.gym.closes
        self.canned: dict[str, deque[tuple[int, str] | None]] = {}
        self.delays: dict[str, deque[float]] = {}
        self.seen: list[tuple[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.Lock()

    @property
    def open(self) -> int:
        return len(self.gym.envs)

    def sent(self, path: str) -> int:
        """How many requests came for a path."""
        return sum(seen == path for seen, _ in self.seen)

    def wait_for(self, path: str, requests: int) -> None:
        """Wait until so many have come; at most ten seconds."""
        end = time.monotonic() + 10
        while self.sent(path) < requests and time.monotonic() < end:
            time.sleep(0.005)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: GymServer

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if where.path == "/_count":
            self.answer(200, self.server.open)
        else:
            self.serve(where.path, parse_qs(where.query))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.serve(self.path, json.loads(self.rfile.read(length)) if length else None)

    def serve(self, path: str, body: Any) -> None:
        server = self.server
        server.seen.append((path, body))
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            if delays := server.delays.get(path):
                time.sleep(delays.popleft())
            canned: tuple[int, str] | str | None = ""
            if server.canned.get(path):
                canned = server.canned[path].popleft()
            if isinstance(canned, tuple):
                self.answer(*canned)
                return
            try:
                status, answer = 200, self.route(path)(body)
            except Refused as refused:
                status, answer = refused.status, refused.answer
            if canned is None:
                self.close_connection = True
                self.connection.close()
            else:
                self.answer(status, answer)
        finally:
            with server.lock:
                server.at_once -= 1

    def route(self, path: str) -> Callable[[Any], Any]:
        gym = self.server.gym
        name = path.removeprefix(gym.prefix + "/")
        known = {"create": gym.create, "reset": gym.reset, "step": gym.step}
        if self.server.closes:
            known["close"] = gym.close
        if isinstance(gym, WebShop) and not isinstance(gym, SearchQA):
            known["observation"] = gym.observation
        if name not in known or not path.startswith(gym.prefix):
            raise Refused(404, {"detail": "Not Found"})
        return known[name]

    def answer(self, status: int, answer: Any) -> None:
        data = (answer if isinstance(answer, str) and status != 200 else json.dumps(answer)).encode()
        if status == 299:  # a body as it stands
            status, data = 200, str(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # nobody waits for it any more

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    running = GymServer(sys.argv[1], int(sys.argv[2]))
    print(running.url, flush=True)
    running.serve_forever()
