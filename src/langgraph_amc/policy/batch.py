"""The running batch: which rows are in, how they join and leave, and one token for each of them per turn.

One thread owns a batch. Rows are contiguous in the pool: new ones join at the end, and when one leaves, the
last one takes its place.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import replace

import torch

from langgraph_amc.policy.forward import Decoder
from langgraph_amc.policy.generation import (
    EngineError,
    EngineStats,
    FinishReason,
    Generation,
    Job,
    Limits,
    Row,
    VariantsEndedError,
)
from langgraph_amc.policy.kv import KVPool
from langgraph_amc.policy.prefix import BLOCK, PrefixStore
from langgraph_amc.policy.sampling import Sampler, stream
from langgraph_amc.policy.text import TextCodec
from langgraph_amc.policy.variants import Variants

_WORTH_WAITING = 16
"""Tokens of a shared prefix for which a request waits one round, and for which a prompt is stored early."""
_BROKEN = -1
"""Version of a row whose cache must not be stored."""


class Batch:
    """Rows that run together, and the samples that wait to join them."""

    def __init__(self, decoder: Decoder, store: PrefixStore, codec: TextCodec, limits: Limits) -> None:
        self.waiting: deque[tuple[Job, int]] = deque()
        self.stats = EngineStats()
        self.variants: Variants | None = None
        self._decoder = decoder
        self._pool: KVPool = decoder.pool
        self._store = store
        self._codec = codec
        self._limits = limits
        self._rows: list[Row] = []
        self._joining: list[Row] = []
        self._sampler: Sampler | None = None
        self._version = 0
        self._last: Hashable | None = None

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._rows or self.waiting)

    def new_weights(self) -> None:
        """Forget every stored prefix; rows that are running finish but are not stored."""
        self._version += 1
        self._store.clear()

    def end_variants(self) -> None:
        """Fail whoever waits for something else than the model as it is, and forget its prefixes."""
        for row in self._rows:
            if row.variant is not None:
                row.version = _BROKEN
                fail(row.job, VariantsEndedError())
        for job, _ in self.waiting:
            if job.request.variant is not None:
                fail(job, VariantsEndedError())
        self._store.forget_variants()

    def turn(self) -> None:
        """Let rows in, then advance everybody by one token."""
        self._drop([row for row in self._rows if row.job.dead])
        while admitted := self._admit():
            self._joining = admitted
            for group in self._groups(admitted):
                self._prefill(group)
            self._joining = []
        if self._rows:
            self._decode()

    def abandon(self, error: EngineError) -> None:
        """Fail everything that waits or runs, and start from a clean slate."""
        jobs = [job for job, _ in self.waiting] + [row.job for row in self._joining + self._rows]
        self.waiting.clear()
        self._rows.clear()
        self._joining = []
        self._sampler = None
        self._store.clear()
        for job in jobs:
            fail(job, error)

    def _admit(self) -> list[Row]:
        """Take what fits and need not wait for a prefix that is just being computed."""
        if len(self._rows) >= self._limits.rows:
            return []
        admitted: list[Row] = []
        left: deque[tuple[Job, int]] = deque()
        coming: set[int] = set()
        length = max((row.need for row in self._rows), default=0)
        in_turn = self.variants is not None and not self.variants.mixes
        if in_turn:
            self._last = self._whose_turn()
        for job, sample in self.waiting:
            need = max(length, len(job.prompt) + job.max_new)
            if job.dead:
                continue
            others_turn = in_turn and job.request.variant != self._last
            if others_turn or not self._fits(len(self._rows) + len(admitted), need):
                left.append((job, sample))
                continue
            # The last token is always computed: its logits are what sampling starts from.
            source, known = self._store.match(job.prompt, job.keys, job.request.variant)
            known = min(known, len(job.prompt) - 1)
            ahead = max((i + 1 for i, key in enumerate(job.keys) if key in coming), default=0) * BLOCK
            if ahead - known >= _WORTH_WAITING:
                left.append((job, sample))
                continue
            coming.update(job.keys[known // BLOCK :])
            length = need
            row = Row(job, sample, stream(job.seed, sample), array("q", job.prompt), known, known)
            row.source, row.version = (source if known else None), self._version
            admitted.append(row)
        self.waiting = left
        return admitted

    def _whose_turn(self) -> Hashable | None:
        """The variant to serve where only one can be: the one that runs, else the last one while it is asked for."""
        if self._rows:
            return self._rows[0].variant
        asked = [job.request.variant for job, _ in self.waiting if not job.dead]
        return self._last if self._last in asked or not asked else asked[0]

    def _fits(self, running: int, need: int) -> bool:
        """Whether one more row fits, where the longest may come to use ``need`` positions."""
        if running == 0:
            return True
        nbytes = (running + 1) * need * self._pool.shape.token_bytes
        return running < self._limits.rows and nbytes <= self._limits.running_bytes

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Rows of like suffix length together, at most `prefill_tokens` padded tokens a group."""
        group: list[Row] = []
        for row in sorted(rows, key=lambda r: len(r.ids) - r.cached):
            if group and (len(group) + 1) * (len(row.ids) - row.cached) > self._limits.prefill_tokens:
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
            self._use(group)
            logits = self._decoder.prefill(
                first,
                [row.ids[row.cached :] for row in group],
                [row.cached for row in group],
                self._limits.prefill_tokens,
            )
        except Exception as error:
            for row in group:
                fail(row.job, wrap_error(error))
            return
        s = self.stats
        self.stats = replace(
            s,
            samples=s.samples + len(group),
            variant_samples=s.variant_samples + sum(row.variant is not None for row in group),
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
            self._use(rows)
            logits = self._decoder.decode([row.ids[-1] for row in rows], [row.cached for row in rows])
        except Exception as error:
            for row in rows:
                fail(row.job, wrap_error(error))
            self._drop(list(rows))
            return
        for row in rows:
            row.cached += 1
        s = self.stats
        self.stats = replace(s, decode_steps=s.decode_steps + 1, largest_batch=max(s.largest_batch, len(rows)))
        self._advance(range(len(rows)), logits)

    def _use(self, rows: Sequence[Row]) -> None:
        if self.variants is not None:
            self.variants.use([row.variant for row in rows])

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
                fail(row.job, EngineError("the model returned NaN or infinite logits: check its weights"))
                self._pool.clear(self._rows.index(row))
                self._store.forget(row.variant)
                row.version = _BROKEN
                done.append(row)
                continue
            row.ids.append(token)
            if self._finish(row, token):
                done.append(row)
        s = self.stats
        self.stats = replace(s, generated_tokens=s.generated_tokens + len(rows))
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
            text = self._codec.decode(row.new[:-1])
        if job.stop and (text is not None or self._codec.may_complete(token, job.stop)):
            cut = self._codec.find_stop(row.new, job.stop)
            text = text if cut is None else cut
        if text is None and count >= job.max_new:
            text, reason = self._codec.decode(row.new), "length"
        if job.on_text is not None:
            settled = text if text is not None else self._codec.settled(row.new, job.stop)
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
        row.source = self._store.insert(row.ids[: row.cached], data, nbytes, replaces=row.source, variant=row.variant)

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


def wrap_error(error: Exception) -> EngineError:
    wrapped = EngineError(f"the model failed on this batch: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _deliver(job: Job) -> None:
    if len(job.results) == job.request.n:
        with suppress(InvalidStateError):  # cancelled, or delivered with a sibling sample
            job.future.set_result([job.results[i] for i in range(job.request.n)])


def fail(job: Job, error: Exception) -> None:
    with suppress(InvalidStateError):  # done already: cancelled, or a sibling sample failed first
        job.future.set_exception(error)
