"""What goes wrong between a world and its server: nothing is sent twice, nothing stays open, each fault has a name."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from langgraph_amc_agentgym import (
    AgentGymError,
    AgentGymWorld,
    LeakedEnvironmentWarning,
    Server,
    ServerRefusedError,
    ServerUnreachableError,
    UnexpectedAnswerError,
    open_worlds,
)

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.tasks import ReplayDivergedError, WorldLostError

TASK = {"server": "textcraft", "index": 3}
AS_IT_STANDS = 299


def started(there: Any, **options: Any) -> AgentGymWorld:
    world = AgentGymWorld(Server(there.url, "textcraft", **options))
    world.reset(TASK)
    return world


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (500, "Internal Server Error", WorldLostError, "HTTP 500: Internal Server Error"),
        (200, {"error": "no such thing"}, WorldLostError, r"was refused \(no such thing\)"),
        (AS_IT_STANDS, "<html>hello</html>", UnexpectedAnswerError, "/step should give JSON, not <html>hello</html>"),
        (200, [1, 2], UnexpectedAnswerError, r"should give observation in the answer, not \[1, 2\]"),
        (200, {"observation": "x", "done": False}, UnexpectedAnswerError, "reward in the answer"),
        (200, {"observation": 3, "reward": 0, "done": False}, UnexpectedAnswerError, "an observation as text, not 3"),
        (200, {"observation": "x", "reward": "1", "done": False}, UnexpectedAnswerError, "a finite reward, not '1'"),
        (AS_IT_STANDS, '{"observation": "x", "reward": NaN, "done": false}', UnexpectedAnswerError, "reward, not nan"),
        (200, {"observation": "x", "reward": 0, "done": 0}, UnexpectedAnswerError, "done as true or false, not 0"),
    ],
)
def test_a_step_that_is_not_answered_as_it_should(
    status: int, body: Any, error: type[Exception], says: str, serve: Callable[..., Any]
) -> None:
    there = serve("textcraft")
    world = started(there)
    there.canned["/step"] = deque([(status, body)])
    with pytest.raises(error, match=says):
        world.step("right")
    assert there.open == 0
    assert there.sent("/step") == 1
    assert "You are at 0" in world.reset(TASK)  # in a new environment
    assert there.open == 1


def test_a_slow_answer_is_given_up_and_never_asked_for_again(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    world = started(there, timeout=0.15)
    there.delays["/step"] = deque([0.4])
    with pytest.raises(WorldLostError, match=r"no answer in 0.15 s, so what it did is not known. Give the server more"):
        world.step("right")
    assert there.sent("/step") == 1
    assert there.open == 0
    time.sleep(0.3)
    assert there.open == 0


def test_a_pool_goes_on_in_another_environment_after_a_lost_answer(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    with open_worlds(there.url, size=2) as worlds:
        history, _ = worlds.reset(TASK)
        history, _ = worlds.step(history, "right")
        there.canned["/step"] = deque([None])  # it is carried out, and the connection breaks
        history, (observation, reward, done, info) = worlds.step(history, "right")
        # In the old environment this would have been the third step to the right of two.
        assert (observation, reward, done) == ("You are at 2 of 2.", 1.0, True)
        assert info["solved"]
        assert [body["id"] for path, body in there.seen if path == "/step"] == [0, 0, 1, 1]
        assert there.open == 1
    assert there.open == 0


def test_what_always_breaks_is_an_error_and_leaves_nothing(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    with open_worlds(there.url, size=2) as worlds:
        history, _ = worlds.reset(TASK)
        with pytest.raises(WorldLostError, match="the corridor fell in"):
            worlds.step(history, "crash")
        assert there.sent("/step") == 2
        assert "You are at 1" in worlds.step(history, "right")[1][0]
    assert there.open == 0


def test_an_environment_that_answers_otherwise_than_before_is_told(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    with open_worlds(there.url, size=2) as worlds:
        history, _ = worlds.reset(TASK)
        after, _ = worlds.step(history, "right")
        there.canned["/step"] = deque([(200, {"observation": "A wall.", "reward": 0, "done": False})])
        worlds.step(after, "left")  # in the one that stands there
        there.canned["/step"] = deque([(200, {"observation": "A wall.", "reward": 0, "done": False})])
        with pytest.raises(ReplayDivergedError, match="replay diverged at step 1"):
            worlds.step(after, "left")
    assert there.open == 0


def test_a_reset_and_a_create_are_not_repeated_either(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    world = AgentGymWorld(Server(there.url, "textcraft", timeout=0.15))
    there.delays["/reset"] = deque([0.3])
    with pytest.raises(WorldLostError, match="/reset: no answer"):
        world.reset(TASK)
    assert (there.sent("/reset"), there.open) == (1, 0)
    there.canned["/create"] = deque([None])
    with (
        pytest.warns(LeakedEnvironmentWarning, match="may have made an environment whose id never came"),
        pytest.raises(WorldLostError, match="the connection broke"),
    ):
        world.reset(TASK)
    assert (there.sent("/create"), there.open) == (2, 1)


def test_nobody_there(port: int) -> None:
    world = AgentGymWorld(Server(f"http://127.0.0.1:{port}", "textcraft"))
    with pytest.raises(ServerUnreachableError, match=r"no connection .* Start the textcraft server, or correct the ad"):
        world.reset(TASK)
    assert issubclass(ServerUnreachableError, AgentGymError)
    assert issubclass(AgentGymError, AMCError)


def test_a_server_that_dies_in_the_middle_and_comes_back(spawn: Callable[..., Any], port: int) -> None:
    first = spawn("textcraft", port)
    url = f"http://127.0.0.1:{port}"
    with open_worlds(url, size=3) as worlds:
        # Three at three places, each in an environment of its own.
        histories = [worlds.reset(TASK)[0] for _ in range(3)]
        histories = [worlds.step(histories[k], action)[0] for k, action in enumerate(("right", "left", "look"))]
        assert httpx.get(f"{url}/_count").json() == 3
        first.kill()
        first.wait()
        with pytest.raises(ServerUnreachableError, match="Start the textcraft server"):
            worlds.step(histories[0], "right")
        spawn("textcraft", port)
        answers = [worlds.step(history, "right")[1][:3] for history in histories]
        assert answers == [("You are at 2 of 2.", 1.0, True), *[("You are at 1 of 2.", 0.0, False)] * 2]
        assert httpx.get(f"{url}/_count").json() <= 3
    assert httpx.get(f"{url}/_count").json() == 0


def test_ids_that_a_new_server_gives_again_are_not_taken_for_the_old_ones(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    server = Server(there.url, "textcraft")
    mine, other = AgentGymWorld(server), AgentGymWorld(server)
    mine.reset(TASK)
    other.reset(TASK)
    there.gym.__init__(there.gym.world)  # started anew: it counts from 0 again
    another = AgentGymWorld(server)
    another.reset(TASK | {"index": 4})  # is number 0, as mine was
    with pytest.raises(WorldLostError, match="was started anew, and its environment 0 is another one now"):
        mine.step("right")
    with pytest.raises(WorldLostError, match="The id 1 is not valid"):
        other.step("right")
    assert "You are at 1 of 3." in another.step("right")[0]
    assert "You are at 0 of 2." in mine.reset(TASK)
    for world in (mine, other, another):
        world.close()
    assert (there.open, server.open) == (0, 0)


def test_what_could_not_be_closed_is_tried_again_at_the_end(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    server = Server(there.url, "textcraft")
    worlds = [AgentGymWorld(server) for _ in range(3)]
    for world in worlds:
        world.reset(TASK)
    there.canned["/close"] = deque([(503, "busy"), (503, "busy")])
    for world in worlds:
        world.close()
    assert (there.open, server.open) == (2, 2)
    there.canned["/close"] = deque([(503, "busy")])
    with pytest.warns(LeakedEnvironmentWarning, match=r"did not close its environments \[0\]: restart it"):
        server.close()
    assert there.open == 1


@pytest.mark.parametrize("end", ["finish", "crash", "interrupt"])
def test_a_process_that_ends_leaves_nothing_open(end: str, spawn: Callable[..., Any], port: int) -> None:
    spawn("textcraft", port)
    url = f"http://127.0.0.1:{port}"
    program = f"""
    import signal, sys, time
    from langgraph_amc_agentgym import open_worlds
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as below nohup, it may have been told to ignore it
    worlds = open_worlds("{url}", size=3)
    starts = [worlds.reset({TASK!r})[0] for _ in range(3)]
    worlds.step(starts[0], "right")
    print("ready", flush=True)
    if "{end}" == "crash":
        raise ValueError("on purpose")
    if "{end}" == "interrupt":
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if end == "interrupt":
        assert httpx.get(f"{url}/_count").json() == 3
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode == 0) is (end == "finish")
    assert {"finish": "", "crash": "on purpose", "interrupt": "KeyboardInterrupt"}[end] in errors
    assert httpx.get(f"{url}/_count").json() == 0


def test_a_password_in_the_address_is_used_and_never_shown(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    there = serve("textcraft")
    url = there.url.replace("//", "//ann:secret@")
    server = Server(url, "textcraft")
    world = AgentGymWorld(server)
    world.reset(TASK)
    there.canned["/step"] = deque([(500, "oh")])
    with pytest.raises(WorldLostError) as lost:
        world.step("right")
    there.server_close()
    there.shutdown()
    elsewhere = AgentGymWorld(Server("http://ann:secret@127.0.0.1:9", "textcraft"))
    with pytest.raises(ServerUnreachableError) as unreachable:
        elsewhere.reset(TASK)
    assert caplog.text
    for text in (caplog.text, str(lost.value), str(unreachable.value), server.shown):
        assert "secret" not in text
        assert "ann" not in text
    assert "POST http://127.0.0.1:9/create" in str(unreachable.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:36001", "ftp://host", "http://", "http://host?key=secret", None])
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"looks like http://127\.0\.0\.1:36001") as refused:
        Server(url, "textcraft")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("timeout", [0, "5", None])
def test_a_timeout_is_a_time(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout="):
        Server("http://127.0.0.1:1", "textcraft", timeout=timeout)


def test_refusals_tell_their_status(serve: Callable[..., Any]) -> None:
    there = serve("textcraft")
    there.canned["/create"] = deque([(500, "x" * 1000)])
    with pytest.raises(ServerRefusedError) as refused:
        AgentGymWorld(Server(there.url, "textcraft")).reset(TASK)
    assert (refused.value.status, refused.value.said) == (500, "x" * 200 + "…")
