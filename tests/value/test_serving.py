"""`amc serve-value`: a real server on loopback, asked by a plain HTTP client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import ValueScoreError, load_value, train_value
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.serving.batching import BusyError, MicroBatches
from langgraph_amc.value.serving.server import Served, ServerLimits, ValueServer

from .world import FINGERPRINT, slippery_runs

STATES = [["go ", "act"], ["go ", "act", " fine"]]


class Lengths:
    """A soft value function: the length of a text, missing for the empty one; notes what it is asked at once."""

    def __init__(self, pause: float = 0.0) -> None:
        self.asked: list[int] = []
        self.pause = pause

    def score(self, transcripts: Sequence[Sequence[str]]) -> list[float | None]:
        self.asked.append(len(transcripts))
        time.sleep(self.pause)
        if any("boom" in segments for segments in transcripts):
            raise ZeroDivisionError("a secret")
        if any("odd" in segments for segments in transcripts):
            raise ValueScoreError("this text is odd")
        return [float(len("".join(segments))) or None for segments in transcripts]

    def soft_score(self, transcripts: Sequence[Sequence[str]], beta: float) -> list[float | None]:
        return [None if x is None else x + beta for x in self.score(transcripts)]


def serving(value: Any = None, **options: Any) -> ValueServer:
    return ValueServer(Served.of(value or Lengths(), "abc"), **options)


def post(server: ValueServer, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}/score", json=body, headers=headers, trust_env=False)


def test_scores_soft_scores_and_missing_ones() -> None:
    with serving() as server:
        plain = post(server, {"transcripts": [*STATES, [""]]}).json()
        assert plain == {"scores": [6.0, 11.0, None], "value": "abc", "transcripts": None}
        assert post(server, {"transcripts": STATES, "beta": 0.5}).json()["scores"] == [6.5, 11.5]
        assert post(server, {"transcripts": []}).json()["scores"] == []
        assert httpx.get(f"{server.url}/health", trust_env=False).json() == {"status": "ok"}
        about = httpx.get(f"{server.url}/version", trust_env=False).json()
        assert about["value"] == "abc"
        assert about["soft"] is True
        assert about["transcripts"] is None


def test_a_trained_folder_says_what_it_is(base: Path, tmp_path: Path) -> None:
    train_value(slippery_runs(tasks=2), base, out=tmp_path / "v", epochs=1)
    served = Served.of(tmp_path / "v")
    assert served.transcripts == FINGERPRINT
    assert served.soft
    assert served.fingerprint == Served.of(str(tmp_path / "v")).fingerprint
    with ValueServer(served) as server:
        found = post(server, {"transcripts": STATES}).json()
    np.testing.assert_allclose(found["scores"], load_value(tmp_path / "v").score(STATES), atol=1e-6)
    assert found["transcripts"] == FINGERPRINT
    graded = [r.with_outcome(0.25 + 0.5 * (r.outcome or 0.0)) for r in slippery_runs(tasks=2)]
    train_value(graded, base, out=tmp_path / "v", epochs=1)
    other = Served.of(tmp_path / "v")
    assert not other.soft
    assert other.fingerprint != served.fingerprint


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "transcripts is a list"),
        ([], 400, "transcripts"),
        ({"transcripts": "go"}, 400, "transcripts is a list"),
        ({"transcripts": ["go"]}, 400, "list of one or more texts"),
        ({"transcripts": [[]]}, 400, "list of one or more texts"),
        ({"transcripts": [["go", 1]]}, 400, "list of one or more texts"),
        ({"transcripts": STATES, "beta": 0}, 400, "above 0"),
        ({"transcripts": STATES, "beta": True}, 400, "above 0"),
        ({"transcripts": STATES, "beta": "1"}, 400, "above 0"),
        ({"transcripts": STATES, "temperature": 1}, 400, "beta"),
        ({"transcripts": STATES * 3}, 413, "at most 4"),
        ({"transcripts": [["go " * 2000]]}, 413, "bytes"),
        ({"transcripts": [["odd"]]}, 422, "this text is odd"),
        ({"transcripts": [["boom"]]}, 500, "ZeroDivisionError"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(body: Any, status: int, said: str) -> None:
    with serving(limits=ServerLimits(batch=4, body=4000)) as server:
        answer = post(server, body)
        assert answer.status_code == status
        assert said in answer.json()["error"]["message"]
        assert "secret" not in answer.text
        assert post(server, {"transcripts": STATES}).status_code == 200  # and the server lives on


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/", {}, None, 404),
        ("GET", "/score", {}, None, 405),
        ("POST", "/version", {}, b"{}", 405),
        ("PUT", "/score", {}, b"{}", 501),
        ("POST", "/score", {"Content-Type": "text/plain"}, b'{"transcripts": []}', 415),
        ("POST", "/score", {"Content-Type": "application/json"}, b"{", 400),
        ("POST", "/score", {"Content-Type": "application/json"}, b"\xff\xfe", 400),
        ("POST", "/score", {"Content-Type": "application/json"}, b"[" * 200_000, 400),
        ("POST", "/score", {"Content-Type": "application/json", "Content-Length": "+2"}, b"{}", 411),
        ("POST", "/score", {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, b"0\r\n\r\n", 411),
        ("POST", "/score", {"Content-Type": "application/json", "Content-Length": "9" * 5000}, b"{}", 411),
        ("GET", "/health", {"Content-Length": "2"}, b"{}", 200),
    ],
)
def test_odd_requests_get_json_and_do_not_spoil_the_next(
    method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    with serving() as server:
        for _ in range(2):
            host = server.url.removeprefix("http://")
            connection = HTTPConnection(host, timeout=10)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert answer.status == status
            assert isinstance(json.loads(answer.read()), dict)
            connection.close()


@pytest.mark.parametrize(
    "line", [b"GARBAGE\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"GET " + b"x" * 70_000 + b"\r\n"]
)
def test_what_is_no_http_gets_an_error(line: bytes) -> None:
    with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(line)
            assert b'{"error"' in b"".join(iter(lambda: raw.recv(4096), b""))


def test_one_connection_takes_many_requests() -> None:
    with serving() as server:
        connection = HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        connection.connect()
        mine = connection.sock.getsockname()
        for _ in range(3):
            body = json.dumps({"transcripts": STATES})
            connection.request("POST", "/score", body, {"Content-Type": "application/json"})
            assert json.loads(connection.getresponse().read())["scores"] == [6.0, 11.0]
            assert connection.sock.getsockname() == mine
        connection.close()


def test_a_value_function_may_find_out_late_that_it_has_no_soft_value() -> None:
    class Means(Lengths):
        def soft_score(self, transcripts: Sequence[Sequence[str]], beta: float) -> list[float | None]:
            raise ConfigurationError("it knows the mean only")

    with serving(Means()) as server:
        answer = post(server, {"transcripts": STATES, "beta": 0.5})
        assert answer.status_code == 400
        assert answer.json()["error"] == {"code": "no_soft_value", "message": "it knows the mean only"}


def test_a_token_guards_everything_but_health() -> None:
    with serving(token="s3cret") as server:
        assert post(server, {"transcripts": STATES}).status_code == 401
        assert post(server, {"transcripts": STATES}, Authorization="Bearer other").status_code == 401
        assert post(server, {"transcripts": STATES}, Authorization="Bearer s3cret").status_code == 200
        assert httpx.get(f"{server.url}/version", trust_env=False).status_code == 401
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200


def test_requests_that_come_together_are_one_batch() -> None:
    value = Lengths(pause=0.05)
    with serving(value, limits=ServerLimits(window=0.2)) as server, ThreadPoolExecutor(12) as pool:
        texts = ["x" * (1 + i) for i in range(12)]
        found = pool.map(lambda text: post(server, {"transcripts": [[text]]}).json()["scores"], texts)
        assert list(found) == [[float(len(text))] for text in texts]
    assert sum(value.asked) == 12
    assert len(value.asked) <= 4  # alone they would be 12


def test_batches_keep_their_maximum_and_do_not_mix_temperatures() -> None:
    value = Lengths()
    batches = MicroBatches(as_value(value), most=4, waiting=100, window=0.1)
    with ThreadPoolExecutor(12) as pool:
        betas = [None, 0.5, 1.0] * 4
        found = [pool.submit(batches.score, [["x" * (i + 1)]], beta) for i, beta in enumerate(betas)]
        scores = [float(f.result()[0]) for f in found]
    batches.close()
    assert scores == [i + 1 + (beta or 0.0) for i, beta in enumerate(betas)]
    assert max(value.asked) <= 4


def test_only_the_guilty_request_fails() -> None:
    value = Lengths()
    batches = MicroBatches(as_value(value), most=10, waiting=100, window=0.2)
    with ThreadPoolExecutor(3) as pool:
        good, bad, also = (pool.submit(batches.score, [[text]]) for text in ("a", "boom", "ccc"))
        assert good.result() == [1.0]
        assert also.result() == [3.0]
        with pytest.raises(ZeroDivisionError):
            bad.result()
    batches.close()
    with pytest.raises(BusyError):
        batches.score(STATES)


def test_too_much_waiting_is_refused_and_may_come_again() -> None:
    value = Lengths(pause=0.3)
    with serving(value, limits=ServerLimits(batch=1, waiting=1, window=0)) as server, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: post(server, {"transcripts": [["x"]]}), range(6)))
    refused = [a for a in answers if a.status_code == 503]
    assert refused
    assert all(a.headers["Retry-After"] == "1" for a in refused)
    assert len(answers) - len(refused) >= 1


def test_what_is_under_way_is_answered_when_the_server_stops() -> None:
    value = Lengths(pause=0.4)
    server = serving(value).__enter__()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, {"transcripts": STATES})
        while not value.asked:
            time.sleep(0.01)
        server.close()
        assert answer.result().json()["scores"] == [6.0, 11.0]
    with pytest.raises(httpx.ConnectError):
        post(server, {"transcripts": STATES})


def test_idle_connections_do_not_hold_the_server_up() -> None:
    server = serving().__enter__()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as idle:
        time.sleep(0.1)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 3
        assert idle.recv(1) == b""
    assert not [t for t in threading.enumerate() if t.name.startswith("amc-value")]


def test_a_port_in_use_is_a_clear_error() -> None:
    with serving() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="--port"):
            serving(port=port)
    with pytest.raises(ConfigurationError, match="above 0"):
        ServerLimits(batch=0)


COMMAND = """
import sys, typer
from langgraph_amc.cli.serve import serve_value
app = typer.Typer()
app.command()(serve_value)
app()
"""


@pytest.mark.parametrize(("kind", "host"), [(signal.SIGTERM, "127.0.0.1"), (signal.SIGINT, "0.0.0.0")])
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path, kind: signal.Signals, host: str) -> None:
    (tmp_path / "mine.py").write_text("def length(text: str) -> float:\n    return float(len(text))\n")
    words = ["mine.py:length", "--port", "0", "--host", host, "--token-env", "MY_TOKEN"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", COMMAND, *words],
        cwd=tmp_path,
        env={**os.environ, "MY_TOKEN": "t", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert "serving V of mine.py:length on http://" in line
        port = line.split(" on http://")[1].split(" ")[0].rpartition(":")[2]
        answer = httpx.post(
            f"http://127.0.0.1:{port}/score",
            json={"transcripts": STATES},
            headers={"Authorization": "Bearer t"},
            trust_env=False,
        )
        assert answer.json()["scores"] == [6.0, 11.0]
        assert len(answer.json()["value"]) == 16
        process.send_signal(kind)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == "stopped\n"
    assert ("other machines" in err) == (host == "0.0.0.0")
    assert "Traceback" not in err
