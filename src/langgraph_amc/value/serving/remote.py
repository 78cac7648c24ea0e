"""A value function on another machine, over HTTP: `amc serve-value`, or a classification or reward model in vLLM.

Connections are kept, failed requests are sent again with growing waits, and a score that the server does not have
is NaN. Formats: docs/serving-values.md; vLLM's as its documentation gives them (``/classify``, ``/pooling``).
"""

from __future__ import annotations

import copy
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from langgraph_amc.checks import check_text
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.retry import Retry
from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.errors import FingerprintMismatch
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.serving.connection import SERVICE, TOKEN_VARIABLE, Connection, RemoteValueError
from langgraph_amc.value.soft import check_beta, soft_of_chance

Api = Literal["auto", "amc", "vllm-classify", "vllm-pooling"]
_MAX_TRANSCRIPTS = 256
_MAX_CHARACTERS = 2_000_000


@dataclass(frozen=True, slots=True)
class Server:
    """What answers at an address.

    Attributes
    ----------
    api, model: which of the APIs, and which model in vLLM.
    max_transcripts: of one request.
    uncertainty: see `Served`; empty if unknown.
    """

    api: Api
    model: str | None = None
    max_transcripts: int = _MAX_TRANSCRIPTS
    uncertainty: tuple[float, ...] = ()


class RemoteValue:
    """A value function behind an address as a `SoftValueFunction`; safe to call from several threads.

    Parameters
    ----------
    url: where the server is, e.g. ``http://127.0.0.1:8750``; for vLLM without ``/v1``.
    api: ``amc`` is `amc serve-value`; ``vllm-classify`` reads the probability of a class, the chance of success of
        0/1 outcomes; ``vllm-pooling`` reads the last number that a reward model gives. ``auto`` asks the server.
    model: the name under which vLLM serves it; by default the only one it has.
    label: which class means success, or which number is the value, where there are several.
    token: bearer token; by default what the variable AMC_VALUE_TOKEN holds, if anything.
    retry: how often and how patiently a failed request is sent again, and the seconds until one counts as failed.
    transcript_fingerprint: of the transcripts it will be given; ``None`` leaves that unchecked. `as_value` sets it.
    allow_fingerprint_mismatch: accept values of a text that the value function has never seen.
    extra: further fields of each request to vLLM, such as ``{"truncate_prompt_tokens": -1}``.

    Raises
    ------
    ConfigurationError: arguments that cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        api: Api = "auto",
        model: str | None = None,
        label: int | None = None,
        token: str | None = None,
        retry: Retry | None = None,
        transcript_fingerprint: str | None = None,
        allow_fingerprint_mismatch: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if api not in get_args(Api):
            raise ConfigurationError(f"api is one of {', '.join(get_args(Api))}, got {api!r}")
        for name, text in (("model", model), ("transcript_fingerprint", transcript_fingerprint)):
            check_text(name, text)
        if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
            raise ConfigurationError(f"label is the number of a class, or None, got {label!r}")
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        self._connection = Connection(url, token, Retry(timeout=60.0) if retry is None else retry)
        self.url = self._connection.url
        self._api = api
        self._model = model
        self._label = label
        self._fingerprint = transcript_fingerprint
        self._any_transcripts = allow_fingerprint_mismatch
        self._extra = _fields(extra)
        self._lock = threading.Lock()
        self._server: Server | None = None

    def reading(self, transcript_fingerprint: str | None) -> RemoteValue:
        """The same for transcripts with this fingerprint, unless it was given one already."""
        if self._fingerprint is not None or transcript_fingerprint is None:
            return self
        other = copy.copy(self)
        other._fingerprint = transcript_fingerprint
        other._lock, other._server = threading.Lock(), None
        return other

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, float64 [n]; NaN where the server has no value.

        Raises
        ------
        FingerprintMismatch: the server's value function was trained on transcripts written with other options.
        RemoteValueError: it cannot be reached, or its answer is none.
        """
        server = self._known_server()
        return np.concatenate([np.empty(0), *(self._ask(server, part, None) for part in _parts(transcripts, server))])

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n]; NaN where the server has no value.

        Raises as `score` does.

        Raises
        ------
        ConfigurationError: β is not positive, or the server knows the mean only.
        """
        check_beta(beta)
        server = self._known_server()
        if server.api == "vllm-classify":
            return _soft(self.score(transcripts), beta)
        if server.api == "vllm-pooling":
            raise ConfigurationError(
                f"the reward model at {self.url} has no soft value: leave beta out, and give tau= instead"
            )
        return np.concatenate([np.empty(0), *(self._ask(server, part, beta) for part in _parts(transcripts, server))])

    def uncertainty(self, step: int) -> float:
        """What the server knew of its own error at a step when it was first asked, in units of reward; NaN: nothing."""
        known = () if self._server is None else self._server.uncertainty
        return known[min(step, len(known) - 1)] if known else math.nan

    def close(self) -> None:
        """Close the connections; the next call opens them again and asks anew what the server is."""
        self._server = None
        self._connection.close()

    # -- which server -------------------------------------------------------------------------------

    def _known_server(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = self._find_out()
            return self._server

    def _find_out(self) -> Server:
        if self._api in ("auto", "amc"):
            about = self._get("/version")
            if about.get("service") == SERVICE:
                self._check_transcripts(about)
                known = about.get("uncertainty") or ()
                return Server(
                    "amc",
                    max_transcripts=int(about.get("max_transcripts") or _MAX_TRANSCRIPTS),
                    uncertainty=tuple(math.nan if number is None else float(number) for number in known),
                )
            if self._api == "amc":
                raise RemoteValueError(f"{self.url} is no `amc serve-value`: check the address, or pass another api=")
        model = self._model if self._model is not None else self._only_model()
        return Server(self._api if self._api != "auto" else self._vllm_api(model), model)

    def _get(self, path: str) -> Mapping[str, Any]:
        """What the server has there, or nothing if it has no such thing."""
        try:
            found = self._connection.request("GET", path)
        except RemoteValueError as error:
            if error.status_code in (404, 405):
                return {}
            raise
        return found if isinstance(found, Mapping) else {}

    def _only_model(self) -> str:
        names = [str(card["id"]) for card in self._get("/v1/models").get("data", ())]
        if len(names) != 1:
            raise RemoteValueError(
                f"{self.url} serves {', '.join(names) or 'no model by name'}: say which with RemoteValue(url, model=…)"
                if names
                else f"{self.url} is neither `amc serve-value` nor vLLM: check the address, or pass api= and model="
            )
        return names[0]

    def _vllm_api(self, model: str) -> Api:
        paths = self._get("/openapi.json").get("paths", {})
        if "/classify" in paths and "/pooling" in paths:  # some versions list both whatever the model can do
            try:
                self._connection.request("POST", "/classify", {**self._extra, "model": model, "input": ["."]})
            except RemoteValueError as error:
                if error.status_code is None or error.status_code >= 500:
                    raise
                return "vllm-pooling"
            return "vllm-classify"
        if "/classify" in paths:
            return "vllm-classify"
        if "/pooling" in paths:
            return "vllm-pooling"
        raise RemoteValueError(f"{self.url} does not say whether it classifies or pools: pass api=")

    def _check_transcripts(self, about: Mapping[str, Any]) -> None:
        theirs = about.get("transcripts")
        if None in (theirs, self._fingerprint) or theirs == self._fingerprint or self._any_transcripts:
            return
        raise FingerprintMismatch(
            f"the value function at {self.url} was trained on transcripts with fingerprint {theirs!r}, yours is"
            f" {self._fingerprint!r}: use the transcript options it was trained with, serve another one, or pass"
            " RemoteValue(url, allow_fingerprint_mismatch=True) to accept values of a text it has never seen"
        )

    # -- scores -------------------------------------------------------------------------------------

    def _ask(self, server: Server, transcripts: Sequence[Segments], beta: float | None) -> FloatArray:
        """Scores of as many transcripts as fit into one request."""
        if server.api == "amc":
            body: dict[str, Any] = {"transcripts": [list(segments) for segments in transcripts]}
            answer = self._connection.request("POST", "/score", body | ({} if beta is None else {"beta": beta}))
            found = answer.get("scores") if isinstance(answer, Mapping) else None
            if isinstance(found, list):
                self._check_transcripts(answer)  # another value function may have taken its place
        else:
            path = "/classify" if server.api == "vllm-classify" else "/pooling"
            texts = [printable("".join(segments)) for segments in transcripts]
            body = {**self._extra, "model": server.model, "input": texts}
            if path == "/pooling":
                body["encoding_format"] = "float"
            answer = self._connection.request("POST", path, body)
            found = self._vllm_values(answer, path)
        if not isinstance(found, list) or len(found) != len(transcripts) or not all(map(_is_score, found)):
            raise RemoteValueError(f"{self.url} did not answer with {len(transcripts)} scores: check what runs there")
        return np.array([math.nan if value is None else value for value in found], dtype=np.float64)

    def _vllm_values(self, answer: Any, path: str) -> list[Any] | None:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, list) or not all(isinstance(item, Mapping) for item in data):
            return None
        name = "probs" if path == "/classify" else "data"
        return [self._value(item.get(name)) for item in sorted(data, key=lambda item: int(item.get("index", 0)))]

    def _value(self, numbers: Any) -> Any:
        """The one number that is meant: of the last token, where there is one for each."""
        if isinstance(numbers, list) and numbers and isinstance(numbers[-1], list):
            numbers = numbers[-1]
        if not isinstance(numbers, list) or not numbers:
            return "none"
        if len(numbers) > 1 and self._label is None:
            raise ConfigurationError(
                f"the model at {self.url} gives {len(numbers)} numbers for a text: say which one is the value (the "
                "class that means success) with RemoteValue(url, label=…)"
            )
        label = self._label if len(numbers) > 1 and self._label is not None else 0
        if not -len(numbers) <= label < len(numbers):
            raise ConfigurationError(f"label={label}: the model at {self.url} gives {len(numbers)} numbers")
        return numbers[label]


def _parts(transcripts: Sequence[Segments], server: Server) -> Iterator[Sequence[Segments]]:
    """The transcripts in requests of bounded size; one that is larger goes alone."""
    part: list[Segments] = []
    characters = 0
    for segments in transcripts:
        length = sum(map(len, segments))
        if part and (len(part) == server.max_transcripts or characters + length > _MAX_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(segments)
        characters += length
    if part:
        yield part


def _soft(chances: FloatArray, beta: float) -> FloatArray:
    """The soft value of 0/1 outcomes with these chances of success; missing ones stay missing."""
    if ((chances < 0) | (chances > 1)).any():
        raise ConfigurationError("the soft value needs chances of success in [0, 1]: leave use_activation switched on")
    with np.errstate(divide="ignore"):
        return soft_of_chance(np.log(chances), np.log1p(-chances), beta)


def _fields(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = {} if extra is None else json.loads(json.dumps(dict(extra)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"extra is a mapping of JSON values by name, got {extra!r}") from error
    return fields


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
