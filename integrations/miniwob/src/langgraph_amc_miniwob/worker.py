"""One browser and one BrowserGym environment, spoken to in lines of JSON; a program of its own, not a module.

``python worker.py [CHROMIUM]`` answers on its output what it is asked on its input, one line for one line:
``{"reset": {"page": "click-button", "seed": 1}}``, ``{"step": "click('13')"}``. It ends, and its browser with it,
when its input ends: also when the process that started it is killed.

It imports BrowserGym and nothing of langgraph-amc, so that it runs in an environment of its own: BrowserGym pins a
version of Playwright. The environment is BrowserGym's, but for four things, which make an episode repeatable:

- The page's clock stands still (``clock.js``) and goes on by a fixed time after each action.
- One Chromium serves all episodes; each has its own context in it.
- No action has a race with a busy machine: it may take seconds until an element can be acted on.
- No screenshot is taken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browsergym.core.env as core
import browsergym.miniwob as miniwob
import numpy as np
from browsergym.core import _set_global_playwright
from browsergym.core.action import functions
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.utils.obs import IGNORED_AXTREE_PROPERTIES, IGNORED_AXTREE_ROLES, flatten_axtree_to_str
from playwright.sync_api import Browser, Error, Playwright, sync_playwright

SETTLE_MS = 1000
"""The page's time from one action to the next; its animations take less."""

ACTION_MS = 3000
"""How long an action may wait for its element: BrowserGym's 500 ms are not enough on a busy machine."""

EPISODE_MS = 10**9
"""The page's own time limit. It is the page's clock that counts, which a step moves by one second."""

ACTIONS: list[Callable[..., Any]] = [
    functions.click,
    functions.fill,
    functions.select_option,
    functions.press,
    functions.scroll,
    functions.dblclick,
    functions.hover,
    functions.focus,
    functions.clear,
    functions.drag_and_drop,
]
"""BrowserGym's actions on elements, but for the upload of files of this machine."""

TASKS = {task.subdomain: task for task in miniwob.ALL_MINIWOB_TASKS}


class OneBrowser:
    """Stands for Playwright before BrowserGym, which starts two browsers an episode; here all share one."""

    def __init__(self, playwright: Playwright, browser: Browser) -> None:
        self.selectors, self.chromium = playwright.selectors, self
        self._browser = browser
        self._clock = Path(__file__).with_name("clock.js").read_text("utf-8")

    def launch(self, **_: Any) -> OneBrowser:
        return self

    def new_context(self, **options: Any) -> Any:
        context = self._browser.new_context(**options, offline=True)
        context.add_init_script(self._clock)
        return context

    def close(self) -> None:
        """The browser is shared."""


class Environment(core.BrowserEnv):
    """BrowserGym's environment on a page whose clock is ours."""

    def _wait_dom_loaded(self) -> None:
        """Called after a reset and after each action, before anything is looked at."""
        super()._wait_dom_loaded()
        self._clock(f"advance({SETTLE_MS})")

    def _get_obs(self) -> Any:
        # BrowserGym's marking waits by the page's timers; nothing of the page itself runs meanwhile.
        self._clock("real()")
        try:
            return super()._get_obs()
        finally:
            self._clock("virtual()")

    def _clock(self, call: str) -> None:
        # An action may have led to a page without a clock: an address that cannot be loaded.
        self.page.evaluate(f"() => window.__clock && window.__clock.{call}")


class World:
    """What the lines of the input do."""

    def __init__(self, base_url: str) -> None:
        actions = HighLevelActionSet("custom", custom_actions=ACTIONS, multiaction=False, demo_mode="off")
        # They come as source, with their waiting times in it.
        actions.python_includes = _replaced(actions.python_includes, "timeout=500", f"timeout={ACTION_MS}")
        actions.python_includes = _replaced(
            actions.python_includes,
            "page.wait_for_timeout(wait_ms)",
            'page.evaluate("ms => window.__clock.advance(ms)", min(wait_ms, 60_000))',
        )
        self._read, self._base_url = actions.to_python_code, base_url
        self._environment: Environment | None = None

    def reset(self, page: str, seed: int) -> dict[str, Any]:
        self.close()
        self._environment = Environment(
            task_entrypoint=TASKS[page],
            task_kwargs={"base_url": self._base_url, "episode_max_time": EPISODE_MS},
            slow_mo=0,
            locale="en-US",
            timezone_id="UTC",
            action_mapping=self._read,
            pre_observation_delay=0,
        )
        observation, _ = self._environment.reset(seed=seed)
        return {"goal": observation["goal"], "tree": _text(observation)}

    def step(self, action: str) -> dict[str, Any]:
        assert self._environment is not None
        observation, _, done, _, info = self._environment.step(action)
        task = info["task_info"]
        return {
            "tree": _text(observation),
            # What follows the first line of an error tells of attempts and times: not the same twice.
            "error": observation["last_action_error"].split("\n")[0],
            "done": bool(done),
            "reward": float(task.get("RAW_REWARD_GLOBAL", 0.0)) if done else 0.0,
            "reason": task.get("REWARD_REASON") or task.get("error"),
        }

    def close(self) -> None:
        if self._environment is not None:
            environment, self._environment = self._environment, None
            environment.close()


def _text(observation: dict[str, Any]) -> str:
    """BrowserGym's text of the tree.

    With what can be clicked without being a button or a link, which it leaves out by default; without the lines that
    a text is broken into (fonts differ) and addresses (folders do).
    """
    tree, elements = observation["axtree_object"], observation["extra_element_properties"]
    for node in tree["nodes"]:
        if node["role"]["value"] == "generic" and not elements.get(node.get("browsergym_id"), {}).get("clickable"):
            node["role"]["value"] = "layout"
    return str(
        flatten_axtree_to_str(
            tree,
            extra_properties=elements,
            with_clickable=True,
            skip_generic=False,
            ignored_roles=[*IGNORED_AXTREE_ROLES, "InlineTextBox", "layout"],
            ignored_properties=[*IGNORED_AXTREE_PROPERTIES, "url"],
        )
    )


def pages() -> Path:
    """The folder of the pages, which the package ``miniwob`` brings; found without importing it."""
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'miniwob'", name="miniwob")
    return Path(found.origin).parent / "html" / "miniwob"


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything here prints is no answer
    logging.getLogger("browsergym").setLevel(logging.ERROR)  # it warns of each setting that is not a task's own
    core.extract_screenshot = lambda page: np.zeros((1, 1, 3), np.uint8)  # the observation is a text

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=sys.argv[1] if len(sys.argv) > 1 else None,
            # No name resolves: a page can ask nobody for anything.
            args=["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-features=OverlayScrollbars"],
            ignore_default_args=["--hide-scrollbars"],
        )
        _set_global_playwright(OneBrowser(playwright, browser))
        world = World(pages().as_uri() + "/")
        answer({"ready": browser.version, "pages": sorted(TASKS)})
        with contextlib.suppress(BrokenPipeError):  # who asked was killed meanwhile
            for line in sys.stdin:
                asked = json.loads(line)
                answer(world.reset(**asked["reset"]) if "reset" in asked else world.step(asked["step"]))
        with contextlib.suppress(Error):
            browser.close()


def _replaced(source: str, old: str, new: str) -> str:
    if old not in source:
        raise RuntimeError(f"this version of BrowserGym has no {old!r} in its actions: install browsergym-core 0.14.3")
    return source.replace(old, new)


if __name__ == "__main__":
    main()
