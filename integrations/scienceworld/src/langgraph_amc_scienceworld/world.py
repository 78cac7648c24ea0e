"""ScienceWorld as a `langgraph_amc.tasks.Steppable`: one world is one Java process with ScienceWorld's simulator.

The simulator is reached as ScienceWorld's own Python class does it, through py4j. That class is not used: it lists
every valid action after every step, which takes most of its time, and it opens a port for calls back into Python
that nothing makes. Texts and scores are the same (tests/test_scienceworld_world.py compares them).

One process holds one world, though it could hold many: they would share a random generator, and what one world's
animals do would depend on the other's steps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError
from scienceworld.constants import BASEPATH, JAR_PATH

from langgraph_amc.errors import AMCError
from langgraph_amc.tasks import WorldLostError
from langgraph_amc_scienceworld.catalogue import SIMPLIFICATIONS, ScienceWorldError, kind

STEP_LIMIT = 20
"""Actions in an episode, as in the AMC paper."""

JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
"""A small heap, one thread to collect it, quick compilation, no file in the temporary folder, and determinism.

The simulator walks through sets in the order of its objects' identity hashes, which depend on all that the process
has done before: the contents of rooms, even temperatures, differed between processes. ``hashCode=2`` makes these
hashes equal, so that a set's order is the order in which it was filled. A Java that does not know the option goes
without it, and a replay that differs then is a `ReplayDivergedError`.
"""

ANSWER_SECONDS = 120.0
"""How long an answer may take before the process counts as broken."""

_EXIT_SECONDS = 5.0


class JavaError(AMCError, RuntimeError):
    """Java is missing, or does not start."""


class SimulatorError(AMCError, RuntimeError):
    """The simulator failed at an action; it would do so again in any other process."""


@dataclass(frozen=True, slots=True)
class ScienceWorldTask:
    """One episode.

    Attributes
    ----------
    name: the kind of task, for example ``boil``.
    variation: which of its variations, from 0.
    simplifications: names out of `SIMPLIFICATIONS`, separated by commas.
    step_limit: actions until it ends.
    """

    name: str
    variation: int = 0
    simplifications: str = ""
    step_limit: int = STEP_LIMIT

    def __post_init__(self) -> None:
        kind(self.name).split(self.variation)
        if not isinstance(self.simplifications, str):
            raise ScienceWorldError(f"simplifications are names separated by commas, not {self.simplifications!r}")
        chosen = [name for name in self.simplifications.split(",") if name]
        if unknown := [name for name in chosen if name not in SIMPLIFICATIONS]:
            raise ScienceWorldError(f"no simplifications: {unknown}; there are {', '.join(SIMPLIFICATIONS)}")
        electrical = "power-component" in self.name or "conductivity" in self.name
        if electrical and "noElectricalAction" in chosen:
            raise ScienceWorldError(f"{self.name} cannot be done with noElectricalAction: leave it out")
        if type(self.step_limit) is not int or self.step_limit < 1:
            raise ScienceWorldError(f"a step limit is a whole number of at least 1, not {self.step_limit!r}")

    @classmethod
    def of(cls, data: ScienceWorldTask | Mapping[str, Any]) -> ScienceWorldTask:
        """A task from its fields, for example out of a graph's state."""
        if isinstance(data, ScienceWorldTask):
            return data
        try:
            return cls(**data)
        except TypeError as exc:
            raise ScienceWorldError(
                f"a ScienceWorld task has a name and perhaps variation, simplifications and step_limit: {exc}"
            ) from exc


class ScienceWorld:
    """A world of its own Java process, which ends with `close` and with this process, however that ends.

    Parameters
    ----------
    java_options: for the Java process.

    Raises
    ------
    JavaError: Java is missing or does not start.
    """

    def __init__(self, *, java_options: Sequence[str] = JAVA_OPTIONS) -> None:
        self._process, self._gateway = _start(_java(), java_options)
        self._end = weakref.finalize(self, _end, self._process, self._gateway)  # also for one that nobody closed
        self._simulator: Any = None
        self._task: ScienceWorldTask | None = None
        self._score, self._steps, self._done = 0, 0, False

    @property
    def pid(self) -> int:
        """Of the Java process."""
        return self._process.pid

    def reset(self, task: ScienceWorldTask | Mapping[str, Any]) -> str:
        """Start a task; its description, the number of actions and the first look around, which is free."""
        task, self._task = ScienceWorldTask.of(task), None
        self._ask("load", task.name, task.variation, task.simplifications, False)
        description, look = self._ask("freeActionTaskDesc"), self._ask("step", "look around")
        self._task, self._score, self._steps, self._done = task, 0, 0, False
        return f"{description}\nYou have {task.step_limit} actions.\n\n{look}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Act; observation, reward, done and info.

        The reward is what the score, from 0 to 1, has gained; the first one includes what a task gives for where it
        starts, so that they sum to the score. A task that cannot be solved any more, for example because the wrong
        thing was focused on, has failed: it ends with a score of -1. The step limit ends it too.
        ``info``: ``score`` in ScienceWorld's whole per cent, ``solved`` (100), ``failed`` (below 0).
        Raises `ScienceWorldError` after the end, and for what is no text.
        """
        if not isinstance(action, str):
            raise ScienceWorldError(f"an action is text, not {action!r:.200}")
        if self._task is None or self._done:
            raise ScienceWorldError("no episode is running: call reset(task) to start one")
        observation = self._ask("step", action)
        before, self._score = self._score, round(100 * self._ask("getScore"))
        self._steps += 1
        self._done = self._ask("getCompleted") or self._score < 0 or self._steps >= self._task.step_limit
        info = {"score": self._score, "solved": self._score == 100, "failed": self._score < 0}
        return observation, (self._score - before) / 100, self._done, info

    def gold(self, task: ScienceWorldTask | Mapping[str, Any]) -> list[str]:
        """Actions that solve the task, as the simulator knows them; more than the step limit perhaps. Ends an episode.

        Takes up to half a minute for some tasks.
        """
        task, self._task = ScienceWorldTask.of(task), None
        self._ask("load", task.name, task.variation, task.simplifications, True)
        return list(self._ask("getGoldActionSequence"))

    def splits(self, name: str) -> dict[str, list[int]]:
        """The variations of a kind of task in each of ScienceWorld's own splits. Ends an episode."""
        self._task = None
        self._ask("load", kind(name).name, 0, "", False)
        asked = {"train": "getVariationsTrain", "tune": "getVariationsDev", "test": "getVariationsTest"}
        return {split: list(self._ask(method)) for split, method in asked.items()}

    def close(self) -> None:
        """End the Java process; returns when it is gone."""
        self._task = self._simulator = None
        self._end()

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            if self._simulator is None:
                self._simulator = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
            return getattr(self._simulator, method)(*arguments)
        except Py4JJavaError as exc:
            self._task = None  # what it left behind is not known
            raise SimulatorError(
                f"ScienceWorld's simulator failed in {method}{arguments}: {exc.java_exception}. "
                "Another action or task may do; the fault is the simulator's"
            ) from exc
        except (Py4JError, OSError) as exc:
            self._task = None
            raise WorldLostError(
                f"the Java process {self.pid} of ScienceWorld does not answer any more ({exc}): close this world and "
                "take another, as a WorldPool does"
            ) from exc


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise JavaError(
            f"ScienceWorld's simulator needs Java 8 or newer, and there is none {where}. Install one, for example "
            "with `apt-get install default-jre-headless` or `conda install -c conda-forge openjdk`, or set JAVA_HOME"
        )
    return found


def _start(java: str, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], JavaGateway]:
    """A Java process that answers on a free port of 127.0.0.1, to who has the token, until our end of its stdin closes.

    The last is py4j's ``die_on_exit``: the kernel closes a killed process' pipes, so that no process outlives us.
    """
    try:
        port, token, process = launch_gateway(
            classpath=JAR_PATH,
            javaopts=list(options),
            java_path=java,
            cwd=BASEPATH,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as exc:  # ValueError: it ended without naming a port
        raise JavaError(
            f"{java} with {' '.join(options)} does not start: look at what `{java} -version` says, and whether there "
            "is memory for one more process"
        ) from exc
    parameters = GatewayParameters(
        port=port,
        auth_token=token,
        read_timeout=ANSWER_SECONDS,
        enable_memory_management=False,  # the process ends with its few objects; else py4j tells the dead of them
    )
    return process, JavaGateway(gateway_parameters=parameters)  # connects when it is first used


def _end(process: subprocess.Popen[bytes], gateway: JavaGateway) -> None:
    gateway.close()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
