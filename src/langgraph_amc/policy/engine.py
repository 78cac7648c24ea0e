"""The batch engine: one worker thread that generates for all particles and tasks together.

Continuous batching over a ragged cache (`kv`): each decode step advances every running row by one token,
rows join and leave between steps. A row starts from the longest prefix that any earlier row left in the
prefix store (`prefix`), so a clone inherits its parent's keys and values; requests that arrive together and
share a prefix wait one round for the first of them to compute it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.forward import Decoder, pick_device
from langgraph_amc.policy.generation import (
    ContextOverflowError,
    EngineClosedError,
    EngineError,
    FinishReason,
    Generation,
    GenerationRequest,
    Job,
    OnText,
    Row,
    fresh_seed,
)
from langgraph_amc.policy.kv import KVPool, probe
from langgraph_amc.policy.prefix import BLOCK, PrefixStore, block_keys
from langgraph_amc.policy.sampling import Sampler, stream
from langgraph_amc.policy.text import TextCodec

_WORTH_WAITING = 16
"""Tokens of a shared prefix for which a request waits one round, and for which a prompt is stored early."""
_BROKEN = -1
"""Version of a row whose cache must not be stored."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Running totals of one engine, in tokens, rows and forward passes."""

    samples: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    prefills: int = 0
    decode_steps: int = 0
    largest_batch: int = 0


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
        self._running_bytes = running_bytes
        self._prefill_tokens = prefill_tokens
        self._pool = KVPool(probe(self.model), max_batch)
        self._decoder = Decoder(self.model, self._pool)
        self._store = PrefixStore(cache_bytes)
        self._rows: list[Row] = []
        self._sampler: Sampler | None = None
        self._queue: deque[tuple[Job, int]] = deque()
        self._wake = threading.Condition()
        self._pauses = 0
        self._resting = False
        self._closed = False
        self._version = 0
        self._stats = EngineStats()
        self._worker = threading.Thread(target=self._work, name="amc-batch-engine", daemon=True)
        self._worker.start()
        atexit.register(self.close)

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    @classmethod
    def from_path(cls, path: str | Path, *, device: str | None = None, **options: Any) -> BatchEngine:
        """Load a Hugging Face directory or hub id (safetensors only) and serve it."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        target = pick_device(device)
        # bfloat16 without hardware support is several times slower than float32 on a CPU.
        dtype = torch.float32 if target.type == "cpu" else "auto"
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, use_safetensors=True)
        return cls(model, AutoTokenizer.from_pretrained(str(path)), device=target, **options)

    # -- for callers, any thread ------------------------------------------------------------------

    @property
    def stats(self) -> EngineStats:
        """Totals so far."""
        return self._stats

    @property
    def context_length(self) -> int:
        """Positions the model was built for."""
        return self._decoder.context_length

    def submit(self, request: GenerationRequest, on_text: OnText | None = None) -> Future[list[Generation]]:
        """Queue a request; the future yields its ``n`` samples, and cancelling it stops the work.

        Raises
        ------
        ContextOverflowError: the prompt fills the model's context.
        ConfigurationError: no chat template, or token ids outside the vocabulary.
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
            keys=block_keys(ids),
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
            self._queue.extend((job, sample) for sample in range(request.n))
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
        with self._wake:
            self._pauses += 1
            self._wake.wait_for(lambda: self._resting or self._closed)
        try:
            yield self.model
        finally:
            self.on_weights_changed()
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

    # -- worker -----------------------------------------------------------------------------------

    def _work(self) -> None:
        version = 0
        with torch.inference_mode():
            while True:
                with self._wake:
                    self._resting = True
                    self._wake.notify_all()
                    self._wake.wait_for(
                        lambda: self._closed or (not self._pauses and (self._queue or self._rows))
                    )
                    if self._closed:
                        break
                    self._resting = False
                    if version != self._version:
                        version = self._version
                        self._store.clear()
                try:
                    self._turn()
                except Exception as error:  # whatever it was, nobody may wait for ever
                    self._abandon(_wrap(error))
        self._abandon(EngineClosedError())

    def _turn(self) -> None:
        """One round: let rows in, then advance everybody by one token."""
        self._drop([row for row in self._rows if row.job.dead])
        while admitted := self._admit():
            for group in self._groups(admitted):
                self._prefill(group)
        if self._rows:
            self._decode()

    def _abandon(self, error: EngineError) -> None:
        """Fail everything that is queued or running and start from a clean slate."""
        with self._wake:
            jobs = [job for job, _ in self._queue] + [row.job for row in self._rows]
            self._queue.clear()
        self._rows.clear()
        self._sampler = None
        self._store.clear()
        for job in jobs:
            _fail(job, error)

    def _admit(self) -> list[Row]:
        """Take from the queue what fits and need not wait for a prefix that is just being computed."""
        with self._wake:
            waiting, self._queue = self._queue, deque()
            version = self._version
        admitted: list[Row] = []
        left: list[tuple[Job, int]] = []
        coming: set[int] = set()
        length = max((row.need for row in self._rows), default=0)
        token_bytes = self._pool.shape.token_bytes
        for job, sample in waiting:
            if job.dead:
                continue
            running = len(self._rows) + len(admitted)
            need = max(length, len(job.prompt) + job.max_new)
            if running >= self.max_batch or (
                running and (running + 1) * need * token_bytes > self._running_bytes
            ):
                left.append((job, sample))
                continue
            # The last token is always computed: its logits are what sampling starts from.
            source, known = self._store.match(job.prompt, job.keys)
            known = min(known, len(job.prompt) - 1)
            ahead = max((i + 1 for i, key in enumerate(job.keys) if key in coming), default=0) * BLOCK
            if ahead - known >= _WORTH_WAITING:
                left.append((job, sample))
                continue
            coming.update(job.keys[known // BLOCK :])
            length = need
            row = Row(job, sample, stream(job.seed, sample), array("q", job.prompt), known, known)
            row.source, row.version = (source if known else None), version
            admitted.append(row)
        with self._wake:
            self._queue.extendleft(reversed(left))
        return admitted

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Rows of like suffix length together, at most `prefill_tokens` padded tokens a group."""
        group: list[Row] = []
        for row in sorted(rows, key=lambda r: len(r.ids) - r.cached):
            if group and (len(group) + 1) * (len(row.ids) - row.cached) > self._prefill_tokens:
                yield group
                group = []
            group.append(row)
        if group:
            yield group

    def _prefill(self, group: list[Row]) -> None:
        first = len(self._rows)
        counts = [len(row.ids) - row.cached for row in group]
        try:
            self._pool.reserve(first + len(group), max(len(row.ids) for row in group) + 1)
            for slot, row in enumerate(group, first):
                if row.cached:
                    self._pool.load(slot, row.source.data, row.cached)
            logits = self._decoder.prefill(
                first,
                [row.ids[row.cached :] for row in group],
                [row.cached for row in group],
                self._prefill_tokens,
            )
        except Exception as error:
            for row in group:
                _fail(row.job, _wrap(error))
            return
        s = self._stats
        self._stats = replace(
            s,
            samples=s.samples + len(group),
            prompt_tokens=s.prompt_tokens + sum(len(row.ids) for row in group),
            prefilled_tokens=s.prefilled_tokens + sum(counts),
            reused_tokens=s.reused_tokens + sum(row.cached for row in group),
            prefills=s.prefills + 1,
        )
        self._rows.extend(group)
        self._sampler = None
        for slot, (row, count) in enumerate(zip(group, counts, strict=True), first):
            row.cached = len(row.ids)
            if count >= _WORTH_WAITING:
                self._keep(slot, row)
        self._advance(range(first, len(self._rows)), logits)

    def _decode(self) -> None:
        rows = self._rows
        try:
            self._pool.reserve(len(rows), max(row.cached for row in rows) + 1)
            logits = self._decoder.decode([row.ids[-1] for row in rows], [row.cached for row in rows])
        except Exception as error:
            for row in rows:
                _fail(row.job, _wrap(error))
            self._drop(list(rows))
            return
        for row in rows:
            row.cached += 1
        s = self._stats
        self._stats = replace(
            s, decode_steps=s.decode_steps + 1, largest_batch=max(s.largest_batch, len(rows))
        )
        self._advance(range(len(rows)), logits)

    def _advance(self, slots: range, logits: torch.Tensor) -> None:
        """Sample one token for each of these rows and retire those that are done."""
        rows = [self._rows[slot] for slot in slots]
        everyone = len(rows) == len(self._rows)
        sampler = self._sampler if everyone else None
        if sampler is None:
            requests = [row.job.request for row in rows]
            sampler = Sampler([r.temperature for r in requests], [r.top_p for r in requests], logits.device)
            if everyone:
                self._sampler = sampler
        logits = logits.float()
        finite = logits.sum(-1) < torch.inf  # false for NaN; a model may rule tokens out with -inf
        if not bool(finite.all()):
            logits = torch.where(finite.unsqueeze(1), logits, 0.0)
        tokens = sampler(logits, [row.rng.random() for row in rows])
        done: list[Row] = []
        for row, token, good in zip(rows, tokens, finite.tolist(), strict=True):
            if not good:
                _fail(row.job, EngineError("the model returned NaN or infinite logits: check its weights"))
                self._pool.clear(self._rows.index(row))
                self._store.clear()
                row.version = _BROKEN
                done.append(row)
                continue
            row.ids.append(token)
            if self._finish(row, token):
                done.append(row)
        s = self._stats
        self._stats = replace(s, generated_tokens=s.generated_tokens + len(rows))
        if done:
            self._drop(done)
        # Last: whoever continues this result finds its cache stored.
        for row in done:
            _deliver(row.job)

    def _finish(self, row: Row, token: int) -> bool:
        """Whether the row is done; if so, its sample is among its job's results."""
        job = row.job
        count = len(row.ids) - len(job.prompt)
        reason: FinishReason = "stop"
        text: str | None = None
        if token in job.stop_ids:
            text = self.codec.decode(row.new[:-1])
        if job.stop and (text is not None or self.codec.may_complete(token, job.stop)):
            cut = self.codec.find_stop(row.new, job.stop)
            text = text if cut is None else cut
        if text is None and count >= job.max_new:
            text, reason = self.codec.decode(row.new), "length"
        if job.on_text is not None:
            settled = text if text is not None else self.codec.settled(row.new, job.stop)
            if len(settled) > row.sent:
                job.on_text(row.sample, settled[row.sent :])
                row.sent = len(settled)
        if text is None:
            return False
        job.results[row.sample] = Generation(text, tuple(row.new), reason, len(job.prompt), row.reused)
        return True

    def _keep(self, slot: int, row: Row) -> None:
        """Store the row's cache for whoever continues it, unless the weights have changed meanwhile."""
        if row.version != self._version:
            return
        data = self._pool.snapshot(slot, row.cached)
        nbytes = row.cached * self._pool.shape.token_bytes
        row.source = self._store.insert(row.ids[: row.cached], data, nbytes, replaces=row.source)

    def _drop(self, rows: list[Row]) -> None:
        """Take rows out; the last rows move into the gaps, so that the batch stays contiguous."""
        for row in reversed(rows):  # from the end, where no gap opens
            slot = self._rows.index(row)
            self._keep(slot, row)
            last = self._rows.pop()
            if last is not row:
                self._pool.move(len(self._rows), slot, last.cached)
                self._rows[slot] = last
            self._sampler = None


def _wrap(error: Exception) -> EngineError:
    wrapped = EngineError(f"the model failed on this batch: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _deliver(job: Job) -> None:
    if len(job.results) == job.request.n:
        with suppress(InvalidStateError):  # cancelled, or delivered with a sibling sample
            job.future.set_result([job.results[i] for i in range(job.request.n)])


def _fail(job: Job, error: Exception) -> None:
    with suppress(InvalidStateError):  # done already: cancelled, or a sibling sample failed first
        job.future.set_exception(error)
