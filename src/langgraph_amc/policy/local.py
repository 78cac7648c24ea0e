"""LiteLLM's provider ``amc-local/<path>``: a local transformers model behind the usual completion calls.

``<path>`` is a Hugging Face directory or hub id; `engines.get_engine` loads it once per process. Without a
``seed`` in the request, a rollout's calls are seeded from `context.rollout_noise` where that is set, else a
particle's calls from the particle, so that one AMC seed reproduces the run; else they draw fresh entropy. The member
of `context.current_member` answers where the engine serves one generation's members; an engine that serves none (a
judge beside the model that is tuned) answers as it is. The instructions of the context are placed in every prompt.
Without ``max_tokens`` a call generates at most 256. Import only through `litellm_setup.load_litellm`; PyTorch is
imported by the first call, so that models behind an API do without.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import litellm
from litellm.exceptions import (
    BadRequestError,
    ContextWindowExceededError,
    Timeout,
    UnsupportedParamsError,
)
from litellm.llms.custom_llm import CustomLLM
from litellm.types.utils import Choices, GenericStreamingChunk, Message, ModelResponse, Usage

from langgraph_amc.context import current_member, current_particle, rollout_noise
from langgraph_amc.errors import ConfigurationError, MissingExtraError, needing_local
from langgraph_amc.policy.generation import ContextOverflowError, Generation, GenerationRequest
from langgraph_amc.policy.instructions import place_in_dicts
from langgraph_amc.policy.seeds import CallSeeds, mix, place_of_call
from langgraph_amc.policy.usage import LOCAL_PROVIDER

if TYPE_CHECKING:
    from langgraph_amc.policy.engine import BatchEngine

_IGNORED = frozenset({"stream", "stream_options", "user", "extra_body", "max_retries"})
"""Parameters that have no meaning in this process."""
_seeds = CallSeeds()
_listed: set[str] = set()


class LocalProvider(CustomLLM):
    """Completion, streaming and their async forms over the batch engine."""

    def completion(self, model: str, messages: list, *args: Any, **kwargs: Any) -> Any:
        engine, request = _prepare(model, messages, kwargs["optional_params"])
        with _LiteLLMErrors(model):
            future = engine.submit(request)
            try:
                generations = future.result(_seconds(kwargs.get("timeout")))
            finally:
                future.cancel()  # nothing to stop, unless the time ran out
        return _response(kwargs["model_response"], model, generations)

    async def acompletion(self, model: str, messages: list, *args: Any, **kwargs: Any) -> Any:
        engine, request = await _aprepare(model, messages, kwargs["optional_params"])
        with _LiteLLMErrors(model):
            waiting = engine.agenerate(request)
            generations = await asyncio.wait_for(waiting, _seconds(kwargs.get("timeout")))
        return _response(kwargs["model_response"], model, generations)

    def streaming(self, model: str, messages: list, *args: Any, **kwargs: Any) -> Iterator[GenericStreamingChunk]:
        engine, request = _prepare(model, messages, kwargs["optional_params"])
        _check_one_sample(request)
        events: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with _LiteLLMErrors(model):
            future = engine.submit(request, lambda _, text: events.put(text))
        future.add_done_callback(lambda _: events.put(None))
        try:
            while (text := events.get()) is not None:
                yield _chunk(text)
            with _LiteLLMErrors(model):
                yield _last_chunk(future.result()[0])
        finally:
            future.cancel()

    async def astreaming(  # type: ignore[override]  # an async generator, as LiteLLM iterates it
        self, model: str, messages: list, *args: Any, **kwargs: Any
    ) -> AsyncIterator[GenericStreamingChunk]:
        engine, request = await _aprepare(model, messages, kwargs["optional_params"])
        _check_one_sample(request)
        events: asyncio.Queue[str | None] = asyncio.Queue()
        put = _threadsafe(asyncio.get_running_loop(), events)
        with _LiteLLMErrors(model):
            future = engine.submit(request, lambda _, text: put(text))
        future.add_done_callback(lambda _: put(None))
        try:
            while (text := await events.get()) is not None:
                yield _chunk(text)
            with _LiteLLMErrors(model):
                yield _last_chunk(future.result()[0])
        finally:
            future.cancel()


class _LiteLLMErrors:
    """Turns what the engine raises into the LiteLLM exceptions that callers handle."""

    def __init__(self, model: str) -> None:
        self.model = model

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ContextOverflowError):
            raise ContextWindowExceededError(str(error), self.model, LOCAL_PROVIDER) from error
        if isinstance(error, ConfigurationError | MissingExtraError):
            raise BadRequestError(str(error), self.model, LOCAL_PROVIDER) from error
        if isinstance(error, TimeoutError):
            raise Timeout("the local model ran out of time", self.model, LOCAL_PROVIDER) from error


def _threadsafe(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[str | None]) -> Callable[[str | None], None]:
    def put(text: str | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(events.put_nowait, text)

    return put


def _prepare(
    model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
) -> tuple[BatchEngine, GenerationRequest]:
    with _LiteLLMErrors(model):
        engine = _engine(model)
    _list_model(model, engine)
    return engine, _request(model, messages, params, _variant(engine))


async def _aprepare(
    model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
) -> tuple[BatchEngine, GenerationRequest]:
    with _LiteLLMErrors(model):  # the first call imports PyTorch and loads the model: seconds, not on the event loop
        loaded = _loaded(model)
        engine = await asyncio.to_thread(_engine, model) if loaded is None else loaded
    _list_model(model, engine)
    return engine, _request(model, messages, params, _variant(engine))


def _engine(model: str) -> BatchEngine:
    with needing_local(f"A local model ({LOCAL_PROVIDER}/{model})"):
        from langgraph_amc.policy.engines import get_engine
    return get_engine(model)


def _loaded(model: str) -> BatchEngine | None:
    engines = sys.modules.get("langgraph_amc.policy.engines")
    return None if engines is None else engines.loaded_engine(model)


def _list_model(model: str, engine: BatchEngine) -> None:
    """Tell LiteLLM once what this model takes and costs; it searches at length for what it does not know."""
    name = f"{LOCAL_PROVIDER}/{model}"
    if name in _listed:
        return
    _listed.add(name)
    free = dict.fromkeys(
        (
            "input_cost_per_token",
            "output_cost_per_token",
            "cache_creation_input_token_cost",
            "cache_read_input_token_cost",
        ),
        0.0,
    )
    litellm.register_model(
        {
            name: {
                **free,
                "litellm_provider": LOCAL_PROVIDER,
                "mode": "chat",
                "max_input_tokens": engine.context_length,
                "max_output_tokens": engine.context_length,
            }
        }
    )


def _variant(engine: BatchEngine) -> Hashable | None:
    """Whose weights answer; a call from outside any rollout gets them as they are, and is told of."""
    if not engine.serves_variants:
        return None
    if rollout_noise.get() is None:
        warnings.warn(
            "the model that is evolved was called from outside any rollout, and answered by its unperturbed weights. "
            "If the app made this call, its thread lacks the caller's context, and evolution learns noise: start it "
            "with asyncio.to_thread(…) or contextvars.copy_context().run",
            stacklevel=2,
        )
    return current_member.get()


def _request(
    model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], variant: Hashable | None
) -> GenerationRequest:
    messages = place_in_dicts(messages)
    given = {k: v for k, v in params.items() if v is not None and k not in _IGNORED}
    limit = given.pop("max_completion_tokens", None)
    stop = given.pop("stop", ())
    seed = given.pop("seed", None)
    if seed is None:
        seed = _own_seed(messages)
    known = {k: given.pop(k) for k in ("max_tokens", "temperature", "top_p", "n", "tools") if k in given}
    if given.pop("tool_choice", "auto") != "auto":
        raise BadRequestError(f"{LOCAL_PROVIDER} cannot force a tool: leave tool_choice out", model, LOCAL_PROVIDER)
    if given:
        raise UnsupportedParamsError(
            f"{LOCAL_PROVIDER} does not know {sorted(given)}: leave them out",
            model=model,
            llm_provider=LOCAL_PROVIDER,
        )
    with _LiteLLMErrors(model):
        return GenerationRequest(
            messages=[_flat(message) for message in messages],
            **({"max_tokens": limit} if limit is not None else {}) | known,
            seed=seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            variant=variant,
        )


def _own_seed(messages: Sequence[Mapping[str, Any]]) -> int | None:
    """The seed of a call that brings none: of the rollout's noise, or of the particle."""
    noise, particle = rollout_noise.get(), current_particle.get()
    if noise is not None:
        place = place_of_call()
        who = "" if particle is None else particle.particle
        return mix(noise.key, who, *([place] if place else []), noise.number(place))
    return None if particle is None else _seeds.next(particle, messages)


def _flat(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its text in one string, as chat templates expect it."""
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = content or ()
    if any(part.get("type") != "text" for part in parts):
        raise ConfigurationError("local models take text only: leave out images, audio and files")
    return {**message, "content": "".join(part["text"] for part in parts)}


def _check_one_sample(request: GenerationRequest) -> None:
    if request.n != 1:
        raise BadRequestError("a stream carries one sample: ask for n=1, or do not stream", "", LOCAL_PROVIDER)


def _seconds(timeout: Any) -> float | None:
    """Total seconds of a LiteLLM timeout, which may be an httpx one."""
    return float(timeout) if isinstance(timeout, int | float) else None


def _response(response: ModelResponse, model: str, generations: list[Generation]) -> ModelResponse:
    response.created = int(time.time())
    response.model = model
    response.choices = [
        Choices(finish_reason=g.finish_reason, index=i, message=Message(content=g.text, role="assistant"))
        for i, g in enumerate(generations)
    ]
    prompt, new = generations[0].prompt_tokens, sum(len(g.token_ids) for g in generations)
    # Stating the price spares LiteLLM several look-ups of one that it cannot know.
    response._hidden_params["response_cost"] = 0.0
    usage = Usage(prompt_tokens=prompt, completion_tokens=new, total_tokens=prompt + new)
    setattr(response, "usage", usage)  # noqa: B010  # a field that LiteLLM does not declare
    return response


def _chunk(text: str) -> GenericStreamingChunk:
    return GenericStreamingChunk(text=text, is_finished=False, finish_reason="", usage=None, index=0, tool_use=None)


def _last_chunk(generation: Generation) -> GenericStreamingChunk:
    prompt, new = generation.prompt_tokens, len(generation.token_ids)
    return GenericStreamingChunk(
        text="",
        is_finished=True,
        finish_reason=generation.finish_reason,
        usage={"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new},
        index=0,
        tool_use=None,
    )
