"""In a real headless Chromium: the pages' own rewards, forks, the clock, particles, and what is left after a kill.

pytest -m browser integrations/miniwob
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph_amc_miniwob import (
    BrowserLostError,
    MiniWoB,
    MiniWoBError,
    MissingBrowserError,
    build,
    missing,
    score,
    solved,
    tasks,
)
from langgraph_amc_miniwob.__main__ import random_action
from langgraph_amc_miniwob.agent import worlds

import langgraph_amc as amc
from langgraph_amc.tasks import FinishedRun, Steppable, WorldPool

ABSENT = missing()
"""BrowserGym or a Chromium, and how to get it."""
pytestmark = [pytest.mark.browser, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

LOGIN = {"page": "login-user", "seed": 3}


@pytest.fixture(scope="module")
def world() -> Iterator[MiniWoB]:
    opened = MiniWoB()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorldPool]:
    with WorldPool(MiniWoB, size=2) as opened:
        yield opened


def number(tree: str, role: str, nth: int = 0, name: str = "") -> str:
    """The number of the nth element with a role and a name."""
    return str(re.findall(rf"\[(\d+)\] {role} '{name}'", tree)[nth])


def login(page: str) -> list[str]:
    """What solves a login page: its goal names what goes into its two fields."""
    user, password = re.findall(r'"([^"]+)"', page)[:2]
    return [
        f"fill('{number(page, 'textbox')}', '{user}')",
        f"fill('{number(page, 'textbox', 1)}', '{password}')",
        f"click('{number(page, 'button', name='Login')}')",
    ]


def test_an_episode_earns_what_the_page_gives(world: MiniWoB) -> None:
    assert isinstance(world, Steppable)
    page = world.reset(LOGIN)
    assert page.startswith('Goal: Enter the username "')
    answers = [world.step(action) for action in login(page)]
    assert [(reward, done) for _, reward, done, _ in answers] == [(0.0, False), (0.0, False), (1.0, True)]
    assert "value='" in answers[0][0]
    assert answers[-1][0] == "The episode is over: reward 1."
    assert answers[-1][3] == {"solved": True, "finished": True, "valid": True, "reason": None}
    with pytest.raises(MiniWoBError, match="reset"):
        world.step("noop()")
    world.reset(LOGIN)
    assert world.step(login(page)[-1])[1:3] == (-1.0, True)  # nothing was filled in
    # a part of what was asked for earns a part
    page = world.reset({"page": "click-checkboxes-soft", "seed": 1})
    assert len(re.findall("checkbox", page)) > 1
    _, reward, done, info = world.step(f"click('{number(page, 'button', name='Submit')}')")
    assert done
    assert reward < 1
    assert not info["solved"]


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("click('9999')", 'ValueError: Could not find element with bid "9999"'),
        ("nonsense", "ValueError: Received an empty action."),
        ("upload_file('16', '/etc/passwd')", "NameError: Invalid action type 'upload_file'."),
        ("page.goto('file:///etc/passwd')", "NameError: Invalid action type 'goto'."),
        ("click(open('/etc/passwd').read())", "ValueError: Received a multi-action"),
    ],
)
def test_an_action_that_fails_costs_a_step_and_says_why(world: MiniWoB, action: str, error: str) -> None:
    page = world.reset(LOGIN | {"step_limit": 2})
    observation, reward, done, info = world.step(action)
    assert observation.startswith(f"Error: {error}")
    assert observation.partition("\n\n")[2] == page.partition("\n\n")[2]
    assert (reward, done, info["valid"]) == (0.0, False, False)
    assert world.step("noop()")[1:3] == (0.0, True)  # the step limit


def test_what_is_no_page_is_refused_and_the_browser_lives_on(world: MiniWoB) -> None:
    with pytest.raises(MiniWoBError, match="click-button, "):
        world.reset({"page": "no-such-page"})
    assert world.reset(LOGIN)


def test_no_time_passes_between_actions(world: MiniWoB) -> None:
    task = {"page": "stock-market", "seed": 5}  # its price changes with time

    def prices(wait: float) -> list[str]:
        seen = [world.reset(task)]
        for _ in range(3):
            time.sleep(wait)
            seen.append(world.step("noop()")[0])
        return [re.findall(r"\$[\d.]+", text)[-1] for text in seen]

    assert prices(0.0) == (found := prices(0.7))
    assert len(set(found)) > 1
    # an hour on the page's clock, and its time limit is not reached
    world.reset(task)
    assert all(not world.step("noop(60000)")[2] for _ in range(3))


@pytest.mark.parametrize("seed", range(3))
def test_forks_are_answered_as_independent_runs_are(pool: WorldPool, world: MiniWoB, seed: int) -> None:
    rng = random.Random(seed)
    task = {"page": rng.choice(["click-collapsible-2", "email-inbox", "use-slider", "navigate-tree"]), "seed": seed}
    history, first = pool.reset(task)
    leaves: list[tuple[Any, list[str], list[Any]]] = [(history, [], [first])]
    for _ in range(10):  # more leaves than browsers: most steps replay
        history, actions, answers = rng.choice(leaves)
        last = answers[-1][0] if actions else first
        if actions and answers[-1][2]:
            continue
        action = random_action(last, first.split("\n")[0], rng)
        after, answer = pool.step(history, action)
        leaves.append((after, [*actions, action], [*answers, answer]))
    assert len(pool) <= pool.size
    for _, actions, answers in rng.sample(leaves, 3):
        assert [world.reset(task), *(world.step(action) for action in actions)] == answers


class Clerk(BaseChatModel):
    """Fills in a login page; as particles, all but the first look at it until ``idle`` actions have passed."""

    idle: int = 0

    @property
    def _llm_type(self) -> str:
        return "clerk"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        first, last, steps = messages[1].text, messages[-1].text, sum(m.type == "ai" for m in messages)
        particle = amc.current_particle.get()
        if particle is not None and particle.particle != "p0" and steps < self.idle:
            action = "noop()"
        else:
            action = login(first)[len(re.findall(r"textbox '' value=", last))]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Thought: onwards.\nAction: {action}"))])


async def test_the_agent_solves_a_task_sync_and_async(pool: WorldPool) -> None:
    app, task = build(Clerk(), pool), tasks().get("miniwob-login-user-3")
    for output in (app.invoke(task.input), await app.ainvoke(task.input)):
        run = FinishedRun(task, output)
        assert (solved(run), score(run), output["steps"]) == (1.0, 1.0, 3)


def progress(transcript: str) -> float:
    """Fields that are filled in on the page as last seen."""
    return 0.4 * transcript.rpartition("Page:")[2].count("textbox '' value=")


def test_worlds_branch_with_their_particles(pool: WorldPool) -> None:
    # One particle works, two dawdle: after the check all go on from the worker's page.
    better = amc.wrap(
        build(Clerk(idle=2), pool),
        particles=3,
        value=progress,
        resample=amc.at(2),
        tau=0.01,
        select="argmax",
        seed=0,
    )
    output = better.invoke({"task": LOGIN | {"step_limit": 3}})
    assert any(check.resampled for check in output.amc.checks)
    for report in output.amc.particles:
        # just enough steps: a page that had not been branched could not be finished in time
        assert solved(FinishedRun(None, report.output)) == 1.0, report.name
    assert solved(FinishedRun(None, output)) == 1.0


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, and what they are."""
    parents, names = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it ended meanwhile
            parents[int(folder.name)], names[int(folder.name)] = int(rest.split()[1]), name
    found: dict[int, str] = {}
    around = {pid}
    while around:
        around = {child for child, parent in parents.items() if parent in around} - found.keys()
        found |= {child: names[child] for child in around}
    return found


def ended(pids: Any, within: float = 15.0) -> bool:
    """Whether all of them are gone in that time; a zombie is gone."""

    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    end = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def browsers(found: dict[int, str]) -> list[int]:
    return [pid for pid, name in found.items() if "chrom" in name or "headless" in name]


def is_main(pid: int) -> bool:
    """Whether it is the browser itself, or the script that Debian starts it by, and none of the browser's own."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return "--remote-debugging-pipe" in arguments and not any(word.startswith("--type=") for word in arguments)


def test_close_ends_every_process() -> None:
    opened = MiniWoB()
    below = descendants(opened.pid)
    assert browsers(below)
    opened.close()
    opened.close()
    assert ended([opened.pid, *below])
    with pytest.raises(BrowserLostError):
        opened.reset(LOGIN)


@pytest.mark.parametrize("victim", ["worker", "browser"])
def test_a_killed_browser_costs_a_replay_and_leaves_nothing(victim: str) -> None:
    made: list[MiniWoB] = []

    def make() -> MiniWoB:
        made.append(MiniWoB())
        return made[-1]

    with WorldPool(make, size=1) as one:
        history, page = one.reset(LOGIN)
        actions = login(page)
        history, _ = one.step(history, actions[0])
        below = descendants(made[0].pid)
        assert browsers(below)
        for pid in [made[0].pid] if victim == "worker" else filter(is_main, below):
            os.kill(pid, signal.SIGKILL)
        for action in actions[1:]:
            history, answer = one.step(history, action)
        assert answer[1] == 1.0
        assert len(made) == 2
        assert ended([made[0].pid, *below])


def test_nothing_is_left_when_the_process_that_uses_it_is_killed() -> None:
    program = "from langgraph_amc_miniwob import MiniWoB; world = MiniWoB()\n" + (
        f"world.reset({LOGIN!r}); print(world.pid, flush=True); import time; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        below = descendants(process.pid)
        assert worker in below
        assert browsers(below)
    finally:
        process.kill()
        process.wait()
    assert ended(below)


def test_a_browser_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIWOB_CHROMIUM", "/no/such/chromium")
    with pytest.raises(MissingBrowserError, match="does not start"):
        MiniWoB()


def test_the_pool_is_as_large_as_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIWOB_BROWSERS", "3")
    assert worlds().size == 3
