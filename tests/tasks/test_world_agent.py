"""The agent around a world of text: a plain app, whose particles branch with their worlds."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import WorldPool, read_action, world_agent


class Safe:
    """A safe of five digits: each right one is a fifth of the reward, a wrong one blocks it for good."""

    def reset(self, task):
        self.code, self.at, self.blocked = task["code"], 0, False
        return "A safe with five dials."

    def step(self, action):
        right = not self.blocked and action == self.code[self.at]
        self.blocked |= not right
        self.at += right
        done = self.at == len(self.code)
        return ("click" if right else "stuck"), 0.2 * right, done, {"open": done}

    def close(self):
        pass


class Guesser(BaseChatModel):
    """Says the right digit most of the time: a stand-in with errors, which no step undoes."""

    @property
    def _llm_type(self):
        return "guesser"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        particle = amc.current_particle.get()
        turn = sum(m.type == "ai" for m in messages)
        dice = random.Random(f"{particle.seed if particle else 0} {turn}")
        digit = "7" if dice.random() < 0.7 else "3"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Thought: try\nAction: {digit}"))])


TASK = {"task": {"code": "77777"}}


def clicks(transcript: str) -> float:
    return 0.0 if "stuck" in transcript else min(1.0, 0.2 + 0.2 * transcript.count("click"))


def test_one_run_and_particles():
    made = []
    with WorldPool(Safe, size=8) as pool:

        def worlds():
            made.append(pool)
            return pool

        app = world_agent(Guesser(), worlds, prompt="Open it in {limit} moves.", limit=6)
        assert not made
        out = app.invoke(TASK)
        assert out["messages"][0].content == "Open it in 6 moves."
        assert out["steps"] == len(out["world"]["steps"]) <= 6
        assert out["total"] == pytest.approx(0.2 * sum(m.content == "click" for m in out["messages"]))
        better = amc.wrap(app, particles=8, value=clicks, resample=amc.every(1), seed=1)
        outs = [better.invoke(TASK, {"configurable": {"thread_id": str(i)}}) for i in range(3)]
        assert sum(o["done"] for o in outs) == 3, "branching those that are not stuck opens it"
        assert all(o["info"] == {"open": True} for o in outs)
        assert len(made) == 1


async def test_async_and_a_checkpointer():
    with WorldPool(Safe) as pool:
        app = world_agent(Guesser(), lambda: pool, prompt="Open it.", limit=3)
        app.checkpointer = InMemorySaver()
        config = {"configurable": {"thread_id": "1"}}
        out = await app.ainvoke(TASK, config)
        assert out["steps"] <= 3
        stored = [s.values["world"] for s in app.get_state_history(config) if "world" in s.values]
        assert pool.step(stored[-1], "7")[1][0] == "click", "an old state of the thread can be gone on from"


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": "3"}, {"pool": None}])
def test_settings_that_cannot_be(options):
    with pytest.raises(ConfigurationError, match=f"^{next(iter(options))} is"):
        world_agent(**{"model": Guesser(), "pool": WorldPool(Safe), "prompt": "", **options})


def test_runs_that_start_together_make_one_pool():
    pools = []

    def make():
        time.sleep(0.05)
        pools.append(WorldPool(Safe, size=2))
        return pools[-1]

    app = world_agent(Guesser(), make, prompt="", limit=1)
    with ThreadPoolExecutor(4) as threads:
        assert [out["steps"] for out in threads.map(app.invoke, [TASK] * 4)] == [1] * 4
    [pool] = pools
    pool.close()


def test_half_a_character_in_a_reply_reaches_the_world_as_a_question_mark():
    class Echo(Safe):
        def step(self, action):
            return action.encode().decode(), 0.0, True, {}

    class Halves(Guesser):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("Action: look \ud83d"))])

    with WorldPool(Echo, size=1) as pool:
        out = world_agent(Halves(), pool, prompt="", read=str.strip).invoke(TASK)
    assert out["messages"][-1].text == "Action: look ?"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: a\nAction: get 1 log.", "get 1 log"),
        ("Action: a\nAction: `b`\nmore", "b"),
        ("no marker\nlook around", "look around"),
        ("Action:", ""),
        ("", ""),
    ],
)
def test_actions_are_read_out_of_replies(text, action):
    assert read_action(text) == action
