"""How each of AgentGym's environment servers speaks: one protocol in eight dialects, written down as data.

From the servers' code in WooooDyy/AgentGym, at 640f8bc, the commit that AgentGym-RL names, where it has the server
(textcraft, sciworld, babyai, searchqa), else at the last one seen: alfworld b92aabb, webshop 0412982, lmrlgym
(maze and wordle) b92aabb and 2f9f4b6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from langgraph_amc.errors import ConfigurationError

Where = tuple[str | int, ...]
"""Where a value stands in an answer's JSON: keys and places, outermost first; empty: the answer itself."""

_THOUGHT = """

Reply to every observation with one thought and one action, in this form:

Thought: what you need next, and why
Action: one action

You have {limit} actions in all."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server: what it calls things, and where its answers have them.

    Attributes
    ----------
    prompt: the agent's system message; ``{limit}`` in it becomes the number of actions.
    limit: actions in an episode; the servers have none or a larger one.
    success: total reward from which on a finished episode is solved.
    tasks: how many task indices there are; None: that depends on the server's data.
    test: the indices that AgentGym evaluates with, where they are known.
    prefix: of every path.
    create, reset: fields that these requests must have besides the ids.
    env: the field with the environment's id in every request.
    index: the field with the task's index in a reset.
    created: where create's answer has the environment's id.
    first: where reset's answer has the parts of the first observation; none: ``GET /observation`` has it.
    observation, reward, done: where a step's answer has them.
    actions: where the answers have the list of admissible actions, for servers that say it apart.
    standing: ``reward`` is the episode's score so far and not what this step earned.
    scale: what a reward is multiplied by, so that 1 is the best total.
    closes: whether the server can close an environment. If not it is kept and reset for another episode.
    exclusive: create and reset change what all environments of the server share: one at a time.
    varies: pattern of what the same task's text has otherwise at every reset; replays are not compared in it.
    whole_reply: the server takes the agent's reply as it is, not the action in it.
    """

    name: str
    prompt: str
    limit: int
    success: float = 1.0
    tasks: int | None = None
    test: range | None = None
    prefix: str = ""
    create: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    reset: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    env: str = "id"
    index: str = "data_idx"
    created: Where = ("id",)
    first: tuple[Where, ...] = (("observation",),)
    observation: Where = ("observation",)
    reward: Where = ("reward",)
    done: Where = ("done",)
    actions: Where | None = None
    standing: bool = False
    scale: float = 1.0
    closes: bool = True
    exclusive: bool = False
    varies: str = ""
    whole_reply: bool = False


_TEXTCRAFT = """\
You craft items in a text world. You are given crafting commands and a goal. The actions are:
get N item - fetch N of an item that no crafting command makes
craft N item using N item, N item - craft, with a crafting command's exact numbers
inventory - see what you carry
Items such as planks in a command stand for any one kind, for example oak planks."""

_ALFWORLD = """\
You solve a household task. The observation ends with the actions that are possible now: choose one of them,
word for word. "Nothing happens" means that an action had no effect."""

_SCIWORLD = """\
You carry out a task in a simulated science lab. The actions are: open/close OBJ, activate/deactivate OBJ,
connect OBJ to OBJ, disconnect OBJ, use OBJ [on OBJ], look around, look at OBJ, look in OBJ, read OBJ,
move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, go to LOC, eat OBJ,
flush OBJ, focus on OBJ (only on what the task asks for: a wrong focus ends it), wait, wait1, task, inventory."""

_BABYAI = """\
You move through rooms of a grid world to reach a goal. The observation ends with the actions that are possible
now, such as turn left, move forward, go to red ball 1 or pick up grey key 1: choose one of them, word for word."""

_WEBSHOP = """\
You shop on a web site for what the instruction asks. The actions are:
search[keywords] - where the page has a search bar
click[value] - one of the page's buttons, products or options
Choose the options that the instruction names, and end with click[Buy Now]."""

_MAZE = """\
You walk through a maze to its goal, in as few steps as you can. Moving right adds 1 to your second coordinate,
moving down adds 1 to your first. The actions are: move up, move down, move left, move right."""

_WORDLE = """\
You guess a hidden word of five letters in six attempts. An action is a word, its letters separated by spaces,
for example: s h i r e
The answer has one letter for each of them: g - right, y - elsewhere in the word, b - not in the word."""

_SEARCHQA = """\
You answer a question with the help of a search engine. Reason inside <think> and </think> first. Then either
search, with <search> query </search>, and stop, or answer, with <answer> the answer alone </answer>. You have
{limit} replies in all."""

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (
            Dialect(
                "textcraft",
                _TEXTCRAFT + _THOUGHT,
                20,
                tasks=544,
                exclusive=True,
                # Among the commands are others, drawn anew; those that lead to the goal are always there.
                varies=r"(?s)\ACrafting commands:\n.*?\n\n(?=Goal: )",
            ),
            Dialect(
                "alfworld",
                _ALFWORLD + _THOUGHT,
                30,
                tasks=2620,
                test=range(2420, 2620),
                reset=MappingProxyType({"world_type": "Text"}),
                index="game",
                actions=("available_actions",),
            ),
            Dialect(
                "sciworld",
                _SCIWORLD + _THOUGHT,
                30,
                tasks=4639,  # by its server's rule: all variations of scienceworld 1.2.3 but those of seven tasks
                first=(("task_description",), ("observation",)),
                reward=("score",),
                standing=True,
                scale=0.01,
            ),
            # Its levels' own reward falls with the steps taken, and the server ends an episode only above 0.5.
            Dialect("babyai", _BABYAI + _THOUGHT, 20, success=0.5, tasks=900),
            Dialect(
                "webshop",
                _WEBSHOP + _THOUGHT,
                15,
                env="env_idx",
                index="session_id",
                created=(),
                first=(),
                observation=("state",),
            ),
            Dialect("maze", _MAZE + _THOUGHT, 40, tasks=26, prefix="/maze", index="game", closes=False),
            Dialect(
                "wordle",
                _WORDLE + _THOUGHT,
                6,
                tasks=1000,
                test=range(25),
                prefix="/wordle",
                index="seed",
                closes=False,
            ),
            Dialect(
                "searchqa",
                _SEARCHQA,
                10,
                tasks=221_328,
                test=range(51_713),
                create=MappingProxyType({"id": 0}),
                env="env_idx",
                index="id",
                created=(),
                first=((),),
                # A wrong answer in the right form earns a little and may be tried again: only the last one counts.
                standing=True,
                whole_reply=True,
            ),
        )
    }
)
"""The dialects by name."""


def dialect_of(server: str | Dialect) -> Dialect:
    """The dialect with this name, or the one given."""
    if isinstance(server, Dialect):
        return server
    if server not in DIALECTS:
        known = ", ".join(DIALECTS)
        raise ConfigurationError(f"no dialect is known for server={server!r}: name one of {known}, or give a Dialect")
    return DIALECTS[server]
