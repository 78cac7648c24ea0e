"""The batch engine: one worker thread that generates for all particles and tasks together.

Continuous batching over a ragged cache (`kv`): each decode step advances every running row by one token,
rows join and leave between steps. A row starts from the longest prefix that any earlier row left in the
prefix store (`prefix`), so a clone inherits its parent's keys and values; requests that arrive together and
share a prefix wait one round for the first of them to compute it. Perturbed variants of the model are served in
the same batch (`serving`, `variants`).
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.batch import Batch, fail, wrap_error
from langgraph_amc.policy.forward import Decoder, pick_device
from langgraph_amc.policy.generation import (
    ContextOverflowError,
    EngineClosedError,
    EngineStats,
    Generation,
    GenerationRequest,
    Job,
    Limits,
    OnText,
    VariantsEndedError,
    fresh_seed,
)
from langgraph_amc.policy.kv import KVPool, probe
from langgraph_amc.policy.loading import load_model, load_tokenizer, serving_dtype
from langgraph_amc.policy.prefix import PrefixStore, block_keys
from langgraph_amc.policy.text import TextCodec
from langgraph_amc.policy.variants import Variants


class BatchEngine:
    """Serves one causal language model and its tokenizer to any number of threads and event loops.

    Parameters
    ----------
    model, tokenizer: of Hugging Face transformers; the model is put in evaluation mode.
    max_batch: rows that run at once; further requests queue.
    device: where to run; ``None`` leaves the model where it is.
    cache_bytes: bound of the prefix store.
    running_bytes: bound of the running rows' cache; requests that would exceed it wait.
    prefill_tokens: padded tokens per prefill pass.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        device: str | torch.device | None = None,
        cache_bytes: int = 1 << 30,
        running_bytes: int = 4 << 30,
        prefill_tokens: int = 4096,
    ) -> None:
        if max_batch < 1:
            raise ConfigurationError(f"max_batch must be at least 1, got {max_batch}")
        self.model = (model if device is None else model.to(device)).eval()
        self.codec = TextCodec(tokenizer, self.model.generation_config)
        self.max_batch = max_batch
        self._decoder = Decoder(self.model, KVPool(probe(self.model), max_batch))
        self._decoder.check()
        self._store = PrefixStore(cache_bytes)
        limits = Limits(max_batch, running_bytes, prefill_tokens)
        self._batch = Batch(self._decoder, self._store, self.codec, limits)
        self._inbox: list[tuple[Job, int]] = []
        self._wake = threading.Condition()
        self._pauses = 0
        self._resting = False
        self._closed = False
        self._version = 0
        self._worker = threading.Thread(target=self._work, name="amc-batch-engine", daemon=True)
        self._worker.start()
        atexit.register(self.close)

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    @classmethod
    def from_path(cls, path: str | Path, *, device: str | None = None, **options: Any) -> BatchEngine:
        """Load a Hugging Face directory, one of peft's, or a hub id (safetensors only) and serve it.

        Raises ConfigurationError where there is no such model, or not all of it.
        """
        target = pick_device(device)
        model = load_model(path, dtype=serving_dtype(target))
        return cls(model, load_tokenizer(path), device=target, **options)

    @property
    def stats(self) -> EngineStats:
        """Totals so far."""
        return self._batch.stats

    @property
    def context_length(self) -> int:
        """Positions the model was built for."""
        return self._decoder.context_length

    def submit(self, request: GenerationRequest, on_text: OnText | None = None) -> Future[list[Generation]]:
        """Queue a request; the future yields its ``n`` samples, and cancelling it stops the work.

        Raises
        ------
        ContextOverflowError: the prompt fills the model's context.
        ConfigurationError: no chat template, token ids outside the vocabulary, or a variant that is not served.
        EngineClosedError: the engine has been closed.
        """
        if request.messages is not None:
            ids = array("q", self.codec.prompt(request.messages, request.tools))
        else:
            ids = array("q", request.prompt_ids or ())
        if not ids:
            raise ConfigurationError("the prompt is empty: give at least one token")
        if min(ids) < 0 or max(ids) >= self._decoder.vocabulary:
            raise ConfigurationError(f"prompt_ids must be in [0, {self._decoder.vocabulary})")
        room = self.context_length - len(ids)
        if room < 1:
            raise ContextOverflowError(len(ids), self.context_length)
        stop_ids, stop = self.codec.split_stops(request.stop)
        job = Job(
            request=request,
            prompt=ids,
            keys=block_keys(ids, request.variant),
            max_new=min(request.max_tokens or room, room),
            seed=fresh_seed() if request.seed is None else request.seed,
            future=Future(),
            on_text=on_text,
            stop_ids=stop_ids,
            stop=stop,
        )
        with self._wake:
            if self._closed:
                raise EngineClosedError
            self._check_served(request)
            self._inbox.extend((job, sample) for sample in range(request.n))
            self._wake.notify_all()
        return job.future

    def generate(self, request: GenerationRequest) -> list[Generation]:
        """Submit and wait."""
        return self.submit(request).result()

    async def agenerate(self, request: GenerationRequest, on_text: OnText | None = None) -> list[Generation]:
        """Submit and wait without blocking the event loop; cancelling the task stops the work."""
        return await asyncio.wrap_future(self.submit(request, on_text))

    @contextmanager
    def paused(self) -> Iterator[Any]:
        """Hold the engine between two steps while the model's weights are changed; yields the model."""
        with self._held():
            try:
                yield self.model
            finally:
                self.on_weights_changed()

    @contextmanager
    def serving(self, variants: Variants) -> Iterator[None]:
        """Answer requests that name a variant, in one batch with those that do not, as far as the variants mix.

        Requests for variants that are unfinished at the end fail with `VariantsEndedError`; their prefixes are
        forgotten, and the model is as before. The weights are not to be changed meanwhile.

        Raises
        ------
        ConfigurationError: the engine is serving variants already, or the model is not one for these.
        EngineClosedError: the engine has been closed.
        """
        with self._held():
            if self._closed:
                raise EngineClosedError
            if self._batch.variants is not None:
                raise ConfigurationError("the engine serves variants already: one generation at a time")
            variants.attach(self.model)
            self._batch.variants = variants
        try:
            yield
        finally:
            with self._held():
                with self._wake:  # from here on, no request can name a variant
                    self._batch.variants = None
                    late = [job for job, _ in self._inbox if job.request.variant is not None]
                try:
                    for job in late:
                        fail(job, VariantsEndedError())
                    self._batch.end_variants()
                finally:
                    variants.detach(self.model)

    @property
    def serves_variants(self) -> bool:
        """Whether requests may name a variant."""
        return self._batch.variants is not None

    def _check_served(self, request: GenerationRequest) -> None:
        variants = self._batch.variants
        if request.variant is None or (variants is not None and request.variant in variants.names):
            return
        served = "none" if variants is None else f"{len(variants.names)} others"
        raise ConfigurationError(f"the engine does not serve {request.variant} but {served}: see BatchEngine.serving")

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep the worker from touching the batch and the model, between two steps or after its last."""
        with self._wake:
            self._pauses += 1
            self._wake.wait_for(lambda: self._resting)
        if self._closed:
            self._worker.join()
        try:
            yield
        finally:
            with self._wake:
                self._pauses -= 1
                self._wake.notify_all()

    def on_weights_changed(self) -> None:
        """Forget every cached prefix. Rows that are running finish on their old keys and values."""
        with self._wake:
            self._version += 1
            self._wake.notify_all()

    def close(self) -> None:
        """Stop the worker; unfinished requests fail with `EngineClosedError`."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._worker.join()
        atexit.unregister(self.close)

    def _work(self) -> None:
        version = 0
        batch = self._batch
        with torch.inference_mode():
            while True:
                with self._wake:
                    self._resting = True
                    self._wake.notify_all()
                    self._wake.wait_for(lambda: self._closed or (not self._pauses and (self._inbox or batch.busy)))
                    batch.waiting.extend(self._inbox)
                    self._inbox.clear()
                    if self._closed:
                        break
                    self._resting = False
                    changed, version = version != self._version, self._version
                if changed:
                    batch.new_weights()
                try:
                    batch.turn()
                except Exception as error:  # whatever it was, nobody may wait for ever
                    batch.abandon(wrap_error(error))
        batch.abandon(EngineClosedError())
