"""`RemoteValue` against real servers on loopback: our own, and ones that answer as vLLM's documentation says."""

from __future__ import annotations

import base64
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

import langgraph_amc as amc
from langgraph_amc.cli.serve import _served
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.retry import Retry
from langgraph_amc.trajectories.transcript import Transcript
from langgraph_amc.value import FingerprintMismatch, SoftValueFunction, as_value, load_value, train_value
from langgraph_amc.value.serving.connection import RemoteValueError
from langgraph_amc.value.serving.remote import RemoteValue
from langgraph_amc.value.serving.server import Served, ServerLimits, ValueServer

from .world import FINGERPRINT, slippery_runs

STATES = [("go ", "act"), ("go ", "act", " fine")]
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
QUICK = Retry(attempts=3, longest_wait=0.02, timeout=5)


class Fake:
    """A server that answers with what functions of the request's JSON return; notes requests and connections."""

    def __init__(self, routes: Mapping[str, Callable[[Any], Answer]]) -> None:
        fake, self.requests, self.connections = self, [], set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: Any) -> None:
                fake.connections.add(self.client_address)
                fake.requests.append((self.path, body, self.headers.get("Authorization")))
                route = routes.get(self.path, lambda body: (404, {"detail": "Not Found"}))
                status, found, *headers = route(body)
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Fake:
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def asked(self, path: str) -> list[Any]:
        return [body for where, body, _ in self.requests if where == path]


class Lengths:
    def score(self, transcripts: Sequence[Sequence[str]]) -> list[float | None]:
        return [float(len("".join(segments))) or None for segments in transcripts]


class SoftLengths(Lengths):
    def soft_score(self, transcripts: Sequence[Sequence[str]], beta: float) -> list[float | None]:
        return [None if x is None else x + beta for x in self.score(transcripts)]


# -- our own server ----------------------------------------------------------------------------------


def test_a_served_value_function_is_the_value_function(base: Path, tmp_path: Path) -> None:
    train_value(slippery_runs(tasks=2), base, out=tmp_path / "v", epochs=1)
    local = load_value(tmp_path / "v")
    with ValueServer(Served.of(tmp_path / "v")) as server:
        remote = as_value(server.url, FINGERPRINT)
        assert isinstance(remote, SoftValueFunction)
        np.testing.assert_allclose(remote.score(STATES), local.score(STATES), atol=1e-6)
        np.testing.assert_allclose(remote.soft_score(STATES, 0.2), local.soft_score(STATES, 0.2), atol=1e-6)
        with pytest.raises(FingerprintMismatch, match="allow_fingerprint_mismatch"):
            as_value(server.url, "sha256:other").score(STATES)
        tolerant = RemoteValue(server.url, allow_fingerprint_mismatch=True)
        np.testing.assert_allclose(as_value(tolerant, "sha256:other").score(STATES), local.score(STATES), atol=1e-6)


def test_missing_scores_nothing_to_score_and_parts() -> None:
    with ValueServer(Served.of(SoftLengths()), limits=ServerLimits(batch=3)) as server:
        remote = RemoteValue(server.url)
        assert remote.score([]).shape == (0,)
        np.testing.assert_array_equal(remote.score([*STATES, ("",)]), [6, 11, np.nan])
        np.testing.assert_array_equal(remote.soft_score([*STATES, ("",)], 0.5), [6.5, 11.5, np.nan])
        many = [("x" * (i + 1),) for i in range(10)]
        np.testing.assert_array_equal(remote.score(many), range(1, 11))  # in four requests
        np.testing.assert_array_equal(remote.score([("ä\ud800\U0001f600",)]), [3])
        with pytest.raises(ConfigurationError, match="beta"):
            remote.soft_score(STATES, 0.0)


def test_the_uncertainty_comes_along() -> None:
    class Unsure(Lengths):
        def uncertainty(self, step: int) -> float:
            return [math.nan, 0.3, 0.2][min(step, 2)]

    with ValueServer(Served.of(Unsure())) as server:
        remote = as_value(server.url).inner
        assert math.isnan(remote.uncertainty(1))  # nothing was asked yet, and this asks nothing
        remote.score(STATES)
        np.testing.assert_array_equal([remote.uncertainty(step) for step in (0, 1, 2, 900)], [np.nan, 0.3, 0.2, 0.2])
    with ValueServer(Served.of(Lengths())) as server:
        sure = RemoteValue(server.url)
        sure.score(STATES)
        assert math.isnan(sure.uncertainty(1))


def test_a_mean_has_no_soft_value() -> None:
    with ValueServer(Served.of(Lengths())) as server, pytest.raises(ConfigurationError, match="leave beta out"):
        RemoteValue(server.url).soft_score(STATES, 0.5)


def test_the_token_comes_from_the_environment_or_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    with ValueServer(Served.of(Lengths()), token="s3cret") as server:
        with pytest.raises(ConfigurationError, match="AMC_VALUE_TOKEN"):
            RemoteValue(server.url).score(STATES)
        assert RemoteValue(server.url, token="s3cret").score(STATES)[0] == 6
        monkeypatch.setenv("AMC_VALUE_TOKEN", "s3cret")
        assert RemoteValue(server.url).score(STATES)[0] == 6


def test_another_value_function_in_the_same_place_is_noticed() -> None:
    about = {"service": "langgraph-amc-value", "transcripts": "a"}
    changing = iter(["a", "b"])
    routes = {
        "/version": lambda _: (200, about),
        "/score": lambda body: (200, {"scores": [0.5] * len(body["transcripts"]), "transcripts": next(changing)}),
    }
    with Fake(routes) as fake:
        remote = RemoteValue(fake.url, transcript_fingerprint="a")
        assert remote.score(STATES)[0] == 0.5
        with pytest.raises(FingerprintMismatch):
            remote.score(STATES)


class Guess(BaseChatModel):
    """Answers a number that differs from particle to particle."""

    @property
    def _llm_type(self) -> str:
        return "guess"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        particle = amc.current_particle.get()
        text = f"x{'y' * (particle.seed % 7 if particle else 0)}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def guessing() -> Any:
    model = Guess()
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda s: END if len(s["messages"]) > 3 else "think", ["think", END])
    return graph.compile()


def test_wrap_takes_an_address() -> None:
    with ValueServer(Served.of(Lengths())) as server:
        app = amc.wrap(guessing(), particles=6, value=server.url, seed=1, resample=amc.every(1))
        output = app.invoke({"messages": [("user", "go")]})
        local = amc.wrap(guessing(), particles=6, value=Lengths(), seed=1, resample=amc.every(1))
        expected = local.invoke({"messages": [("user", "go")]})
    assert [m.content for m in output["messages"]] == [m.content for m in expected["messages"]]
    found, known = ([t.values for t in amc.last_run(run).trajectories] for run in (app, local))
    assert found == known
    assert len({value for values in found for value in values}) > 3


def test_wrap_compares_the_fingerprint_of_the_app() -> None:
    own = Transcript().fingerprint
    for theirs, error in ((own, None), ("other", FingerprintMismatch)):
        with ValueServer(Served(as_value(Lengths()), transcripts=theirs)) as server:
            app = amc.wrap(guessing(), particles=2, value=server.url, seed=1, resample=amc.every(1))
            if error is None:
                app.invoke({"messages": [("user", "go")]})
            else:
                with pytest.raises(error):
                    app.invoke({"messages": [("user", "go")]})


# -- failures ----------------------------------------------------------------------------------------

ABOUT = {"/version": lambda _: (200, {"service": "langgraph-amc-value"})}


def answering(*answers: Answer) -> dict[str, Callable[[Any], Answer]]:
    """Our server's /score with these answers, one after the other, the last for ever."""
    left = list(answers)
    return {**ABOUT, "/score": lambda _: left.pop(0) if len(left) > 1 else left[0]}


GOOD: Answer = (200, {"scores": [0.25, None]})


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_may_pass_is_asked_again(status: int) -> None:
    with Fake(answering((status, {"error": {"message": "busy"}}), (status, b"<html>"), GOOD)) as fake:
        np.testing.assert_array_equal(RemoteValue(fake.url, retry=QUICK).score(STATES), [0.25, np.nan])
        assert len(fake.asked("/score")) == 3


def test_the_server_says_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("langgraph_amc.value.serving.connection.time.sleep", waits.append)
    busy: Answer = (503, {"error": {"message": "busy"}}, {"Retry-After": "7"})
    with Fake(answering(busy, GOOD)) as fake:
        RemoteValue(fake.url, retry=Retry(attempts=2)).score(STATES)
    assert [7 <= wait < 8 for wait in waits] == [True]


def test_what_does_not_pass_is_said_after_the_last_attempt() -> None:
    with Fake(answering((500, {"error": {"message": "the value function failed"}}))) as fake:
        with pytest.raises(RemoteValueError, match=r"/score answers 500: the value function failed"):
            RemoteValue(fake.url, retry=QUICK).score(STATES)
        assert len(fake.asked("/score")) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, {"error": {"message": "no such thing"}}), "answers 400: no such thing"),
        ((413, {"detail": "too large"}), "answers 413: too large"),
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), "answers 302"),
        ((200, b"<html>hello</html>"), "something else than JSON"),
        ((200, {"scores": [0.5]}), "2 scores"),
        ((200, {"scores": [0.5, "high"]}), "2 scores"),
        ((200, {"scores": [0.5, True]}), "2 scores"),
        ((200, {"scores": {"a": 1, "b": 2}}), "2 scores"),
        ((200, [0.5, 0.5]), "2 scores"),
        ((200, None), "something else than JSON"),
    ],
)
def test_odd_answers_are_errors_at_once(answer: Answer, said: str) -> None:
    with Fake(answering(answer)) as fake:
        with pytest.raises(RemoteValueError, match=said):
            RemoteValue(fake.url, retry=QUICK).score(STATES)
        assert len(fake.asked("/score")) == 1


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(RemoteValueError, match="is the value server running"):
            RemoteValue(f"http://127.0.0.1:{taken.getsockname()[1]}", retry=QUICK).score(STATES)


def test_a_server_that_hangs() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        remote = RemoteValue(
            f"http://127.0.0.1:{deaf.getsockname()[1]}", retry=Retry(attempts=2, longest_wait=0.01, timeout=0.1)
        )
        with pytest.raises(RemoteValueError, match=r"within 0\.1 seconds"):
            remote.score(STATES)


def test_a_server_that_comes_back_is_found_again() -> None:
    with ValueServer(Served.of(Lengths())) as server:
        remote = RemoteValue(server.url, retry=Retry(attempts=8, longest_wait=0.3))
        assert remote.score(STATES)[0] == 6
        port = int(server.url.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        scores = pool.submit(remote.score, STATES)
        with ValueServer(Served.of(Lengths()), port=port):
            assert scores.result()[0] == 6


def test_connections_are_kept_and_threads_share_them() -> None:
    routes = {**ABOUT, "/score": lambda body: (200, {"scores": [float(len(t[0])) for t in body["transcripts"]]})}
    with Fake(routes) as fake:
        remote = RemoteValue(fake.url)
        for _ in range(5):
            remote.score(STATES)
        assert len(fake.connections) == 1
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda n: remote.score([("x" * n,)])[0], range(1, 21))
            assert list(found) == list(range(1, 21))
        assert len(fake.connections) <= 4
        assert len(fake.asked("/version")) == 1
        remote.close()
        assert remote.score(STATES)[0] == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: RemoteValue("127.0.0.1:8000"),
        lambda: RemoteValue("http://127.0.0.1:8000", api="openai"),
        lambda: RemoteValue("http://127.0.0.1:port").score(STATES),
    ],
)
def test_arguments_that_cannot_work(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_password_in_the_address_is_used_and_never_shown() -> None:
    sent: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            self.send_error(500)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        value = RemoteValue(f"http://anna:s3c@ret@127.0.0.1:{http.server_port}/", retry=Retry(attempts=1))
        with pytest.raises(RemoteValueError) as failed:
            value.score(STATES)
        http.shutdown()
    assert sent == [f"Basic {base64.b64encode(b'anna:s3c@ret').decode()}"]
    assert value.url == f"http://127.0.0.1:{http.server_port}"
    with pytest.raises(RemoteValueError) as gone:
        value.score(STATES)
    said = [str(failed.value), str(gone.value)]
    for wrong in ("ftp://anna:s3c@ret@host", "http://anna:s3c@ret@", "http://anna:s3c@ret@host:port"):
        with pytest.raises(ConfigurationError) as refused:
            RemoteValue(wrong)
        said.append(str(refused.value))
    with pytest.raises(ConfigurationError) as none:
        as_value("htp://anna:s3c@ret@host")
    with pytest.raises(ConfigurationError) as served:
        _served("http://anna:s3c@ret@host")
    for text in (*said, str(none.value), str(served.value)):
        assert "anna" not in text
        assert "ret@" not in text
        assert "127.0.0.1" in text or "host" in text or "http://" in text


# -- vLLM --------------------------------------------------------------------------------------------


def usage(body: Any) -> dict[str, Any]:
    return {"object": "list", "created": 1, "model": body["model"], "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def classify(body: Any) -> Answer:
    """The probability of class 1 is a tenth of the number of words."""
    if body["input"] == ["boom"]:
        return 400, {"error": {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}}
    data = []
    for index, text in enumerate(body["input"]):
        p = len(text.split()) / 10
        data.append({"index": index, "label": "LABEL_1", "probs": [1 - p, p], "num_classes": 2})
    return 200, {"id": "classify-1", **usage(body), "data": data[::-1]}  # in whatever order


def pooled(body: Any) -> Answer:
    """A reward for each token; the last one is the number of words."""
    assert body["encoding_format"] == "float"
    data = [
        {"index": i, "object": "pooling", "data": [[-1.0], [float(len(text.split()))]]}
        for i, text in enumerate(body["input"])
    ]
    return 200, {"id": "pool-1", **usage(body), "data": data}


def vllm(**routes: Callable[[Any], Answer]) -> dict[str, Callable[[Any], Answer]]:
    listed = {f"/{name}": {} for name in routes} | {"/v1/models": {}, "/version": {}}
    return {
        "/version": lambda _: (200, {"version": "0.15.0"}),
        "/v1/models": lambda _: (200, {"object": "list", "data": [{"id": "my/value", "object": "model"}]}),
        "/openapi.json": lambda _: (200, {"openapi": "3.1.0", "paths": listed}),
        **{f"/{name}": route for name, route in routes.items()},
    }


@pytest.fixture
def classifier() -> Iterator[Fake]:
    with Fake(vllm(classify=classify)) as fake:
        yield fake


def test_a_classifier_in_vllm_is_found_and_read(classifier: Fake) -> None:
    remote = RemoteValue(classifier.url, label=1, extra={"truncate_prompt_tokens": -1}, token="key")
    np.testing.assert_allclose(remote.score(STATES), [0.2, 0.3])
    assert classifier.asked("/classify")[-1] == {
        "model": "my/value",
        "input": ["go act", "go act fine"],
        "truncate_prompt_tokens": -1,
    }
    assert {token for _, _, token in classifier.requests} == {"Bearer key"}
    tilt = [0.5 * math.log(1 - p + p * math.exp(2)) for p in (0.2, 0.3)]
    np.testing.assert_allclose(remote.soft_score(STATES, 0.5), tilt)


def test_one_of_several_classes_has_to_be_named(classifier: Fake) -> None:
    with pytest.raises(ConfigurationError, match=r"2 numbers.*label="):
        RemoteValue(classifier.url).score(STATES)
    with pytest.raises(ConfigurationError, match="label=2"):
        RemoteValue(classifier.url, label=2).score(STATES)
    with pytest.raises(RemoteValueError, match="the prompt is too long"):
        RemoteValue(classifier.url, label=1).score([("boom",)])


def test_a_reward_model_in_vllm() -> None:
    with Fake(vllm(pooling=pooled)) as fake:
        remote = RemoteValue(fake.url)
        np.testing.assert_array_equal(as_value(remote).score(STATES), [2, 3])
        with pytest.raises(ConfigurationError, match="no soft value"):
            remote.soft_score(STATES, 0.5)
        assert fake.asked("/pooling")[-1]["model"] == "my/value"


def test_a_version_that_lists_both_is_asked_what_it_can() -> None:
    def cannot(body: Any) -> Answer:
        return 400, {"error": {"message": "The model does not support Classification API", "code": 400}}

    with Fake(vllm(classify=cannot, pooling=pooled)) as fake:
        np.testing.assert_array_equal(RemoteValue(fake.url).score(STATES), [2, 3])
    with Fake(vllm(classify=classify, pooling=pooled)) as fake:
        np.testing.assert_allclose(RemoteValue(fake.url, label=1).score(STATES), [0.2, 0.3])


@pytest.mark.parametrize(
    ("api", "route", "expected"), [("vllm-classify", classify, [0.2, 0.3]), ("vllm-pooling", pooled, [2, 3])]
)
def test_what_is_said_is_not_asked(api: Any, route: Callable[[Any], Answer], expected: list[float]) -> None:
    with Fake({f"/{api.removeprefix('vllm-')}": route}) as fake:
        remote = RemoteValue(fake.url, api=api, model="mine", label=1)
        np.testing.assert_allclose(remote.score(STATES), expected)
        assert len(fake.requests) == 1


def test_rewards_may_come_one_to_a_text_or_be_missing() -> None:
    def whole(body: Any) -> Answer:
        return 200, {**usage(body), "data": [{"index": 0, "data": [0.5]}, {"index": 1, "data": [None]}]}

    def none(body: Any) -> Answer:
        return 200, {**usage(body), "data": [{"index": 0, "data": "AAAA"}, {"index": 1, "data": []}]}

    with Fake({"/pooling": whole}) as fake:
        found = RemoteValue(fake.url, api="vllm-pooling", model="m").score(STATES)
        np.testing.assert_array_equal(found, [0.5, np.nan])
    with Fake({"/pooling": none}) as fake, pytest.raises(RemoteValueError, match="2 scores"):
        RemoteValue(fake.url, api="vllm-pooling", model="m").score(STATES)


def test_raw_numbers_are_no_chances() -> None:
    def logits(body: Any) -> Answer:
        return 200, {**usage(body), "data": [{"index": i, "probs": [3.5]} for i in range(2)]}

    with Fake({"/classify": logits}) as fake:
        remote = RemoteValue(fake.url, api="vllm-classify", model="m")
        np.testing.assert_array_equal(remote.score(STATES), [3.5, 3.5])
        with pytest.raises(ConfigurationError, match="use_activation"):
            remote.soft_score(STATES, 0.5)


def test_servers_that_are_neither() -> None:
    models = {"/v1/models": lambda _: (200, {"data": [{"id": "a"}, {"id": "b"}]})}
    with Fake({}) as fake, pytest.raises(RemoteValueError, match="neither"):
        RemoteValue(fake.url).score(STATES)
    with Fake(models) as fake:
        with pytest.raises(RemoteValueError, match="a, b"):
            RemoteValue(fake.url).score(STATES)
        with pytest.raises(RemoteValueError, match="pass api="):
            RemoteValue(fake.url, model="a").score(STATES)
        with pytest.raises(RemoteValueError, match="no `amc serve-value`"):
            RemoteValue(fake.url, api="amc").score(STATES)
