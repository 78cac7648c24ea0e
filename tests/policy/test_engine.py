"""The batch engine against transformers itself: same logits, same greedy text, and rows that do not interact."""

import asyncio
import random
import threading
from concurrent.futures import CancelledError

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.forward import Decoder
from langgraph_amc.policy.generation import (
    ContextOverflowError,
    EngineClosedError,
    EngineError,
    GenerationRequest,
)
from langgraph_amc.policy.kv import KVPool, probe
from tests.support.tiny_models import byte_tokenizer, tiny_model

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
EOS = 2


def random_ids(rng, low, high):
    return [rng.randrange(3, 259) for _ in range(rng.randint(low, high))]


def reference_logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0, -1]


def reference_greedy(model, prompt, count):
    """Greedy continuation by `generate`, and the smallest lead of a chosen token over the runner-up."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top = torch.stack(out.logits).squeeze(1).topk(2).values
    return tuple(out.sequences[0, len(prompt) :].tolist()), float((top[:, 0] - top[:, 1]).min())


@pytest.mark.parametrize("kind", [*KINDS, "sliding"])
def test_logits_of_ragged_batches_equal_transformers(kind):
    changes = {"sliding_window": 6} if kind == "sliding" else {}
    if kind == "sliding":
        kind = "mistral"
    model = tiny_model(kind, **changes)

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**31))
    def run(seed):
        rng = random.Random(seed)
        pool = KVPool(probe(model), max_rows=16)
        with torch.inference_mode():
            decoder = Decoder(model, pool)
            rows = []
            for _ in range(4):
                # New rows: some from nothing, some cloned from a prefix of a running row.
                new = []
                for _ in range(rng.randint(1, 3)):
                    prefix = []
                    if rows and rng.random() < 0.6:
                        parent = rng.randrange(len(rows))
                        prefix = rows[parent][: rng.randint(1, len(rows[parent]) - 1)]
                        data = pool.snapshot(parent, len(prefix))
                    new.append((prefix, data if prefix else None, random_ids(rng, 1, 30)))
                first = len(rows)
                pool.reserve(first + len(new), max(len(p) + len(s) for p, _, s in new) + 1)
                for slot, (prefix, data, _) in enumerate(new, first):
                    if prefix:
                        pool.load(slot, data, len(prefix))
                suffixes = [torch_array(s) for _, _, s in new]
                logits = decoder.prefill(first, suffixes, [len(p) for p, _, _ in new], rng.choice([7, 4096]))
                rows += [p + s for p, _, s in new]
                for row, got in zip(rows[first:], logits, strict=True):
                    torch.testing.assert_close(got, reference_logits(model, row), atol=1e-4, rtol=1e-4)
                if len(rows) > 2 and rng.random() < 0.5:  # a row leaves, the last one takes its place
                    gone = rng.randrange(len(rows) - 1)
                    pool.move(len(rows) - 1, gone, len(rows[-1]))
                    rows[gone] = rows.pop()
                for _ in range(rng.randint(1, 3)):
                    tokens = [rng.randrange(3, 259) for _ in rows]
                    pool.reserve(len(rows), max(map(len, rows)) + 1)
                    logits = decoder.decode(tokens, [len(row) for row in rows])
                    for row, token, got in zip(rows, tokens, logits, strict=True):
                        row.append(token)
                        torch.testing.assert_close(got, reference_logits(model, row), atol=1e-4, rtol=1e-4)

    run()


def torch_array(ids):
    from array import array

    return array("q", ids)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_generate_with_reuse_and_queueing(kind, make_engine):
    engine = make_engine(kind, max_batch=5)
    rng = random.Random(0)
    prompts = [random_ids(rng, 1, 50) for _ in range(12)]
    prompts += [p + random_ids(rng, 1, 9) for p in prompts[:6]] + prompts[:3]
    futures = [engine.submit(GenerationRequest(prompt_ids=p, max_tokens=10, temperature=0)) for p in prompts]
    clear = 0
    for prompt, future in zip(prompts, futures, strict=True):
        want, lead = reference_greedy(engine.model, prompt, 10)
        if lead > 1e-3:  # rounding decides ties
            clear += 1
            assert future.result(30)[0].token_ids == want
    assert clear >= 15
    assert engine.stats.largest_batch == 5
    assert engine.stats.reused_tokens > 0


def test_a_conversation_and_its_clones_reuse_their_prefix(make_engine):
    engine = make_engine()
    prompt = list(range(3, 103))
    parent = engine.generate(GenerationRequest(prompt_ids=prompt, max_tokens=8, seed=1))[0]
    assert parent.reused_tokens == 0
    before = engine.stats
    longer = prompt + list(parent.token_ids[:-1]) + [50, 51, 52]
    futures = [engine.submit(GenerationRequest(prompt_ids=longer, max_tokens=4, seed=i)) for i in range(6)]
    clones = [f.result(30)[0] for f in futures]
    assert min(c.reused_tokens for c in clones) >= len(longer) - 3
    assert engine.stats.prefilled_tokens - before.prefilled_tokens <= 6 * 3
    assert len({c.token_ids for c in clones}) > 1


def test_several_samples_prefill_once_and_are_distinct(make_engine):
    engine = make_engine()
    prompt = list(range(3, 203))
    samples = engine.generate(GenerationRequest(prompt_ids=prompt, max_tokens=6, seed=5, n=8))
    assert len(samples) == 8
    assert len({s.token_ids for s in samples}) > 1
    assert engine.stats.prefilled_tokens <= 200 + 8


def test_requests_that_share_a_prefix_compute_it_once(make_engine):
    engine = make_engine(max_batch=8)
    system = list(range(3, 103))
    with engine.paused():  # all arrive before the engine looks
        futures = [
            engine.submit(GenerationRequest(prompt_ids=[*system, 110 + i, 120, 121], max_tokens=2, seed=i))
            for i in range(8)
        ]
    [f.result(30) for f in futures]
    assert engine.stats.prefilled_tokens <= 103 + 7 * 11


def test_samples_depend_on_the_seed_only_never_on_the_batch(make_engine):
    requests = [
        GenerationRequest(
            prompt_ids=random_ids(random.Random(i), 5, 40),
            max_tokens=12,
            temperature=0.5 + i % 3 / 2,
            top_p=(1.0, 0.8)[i % 2],
            seed=1000 + i,
            n=1 + i % 2,
        )
        for i in range(10)
    ]
    alone = make_engine(max_batch=1)
    crowd = make_engine(max_batch=16)
    futures = [crowd.submit(r) for r in requests]
    for request, future in zip(requests, futures, strict=True):
        want = [g.token_ids for g in alone.generate(request)]
        assert [g.token_ids for g in future.result(30)] == want
    other = alone.generate(GenerationRequest(prompt_ids=requests[0].prompt_ids, max_tokens=12, seed=1))
    assert other[0].token_ids != alone.generate(requests[0])[0].token_ids


def test_no_seed_means_fresh_samples(make_engine):
    engine = make_engine()
    texts = {engine.generate(GenerationRequest(prompt_ids=[5, 6, 7], max_tokens=12))[0].token_ids for _ in range(6)}
    assert len(texts) > 1


def test_stop_string_cuts_the_text_and_ends_generation(make_engine):
    engine = make_engine()
    request = GenerationRequest(prompt_ids=[40, 41, 42], max_tokens=40, seed=3)
    full = engine.generate(request)[0]
    for start, length in ((4, 1), (7, 3)):
        stop = full.text[start : start + length]
        got = engine.generate(
            GenerationRequest(prompt_ids=[40, 41, 42], max_tokens=40, seed=3, stop=(stop, "never there"))
        )[0]
        assert got.text == full.text[: full.text.index(stop)]
        assert got.finish_reason == "stop"
        assert len(got.token_ids) < len(full.token_ids)
        assert got.token_ids == full.token_ids[: len(got.token_ids)]


def test_a_special_token_can_be_a_stop_string(make_engine):
    engine = make_engine()
    request = GenerationRequest(prompt_ids=[40], max_tokens=60, seed=0, n=60, stop=("<|im_start|>",))
    outs = engine.generate(request)
    assert all(1 not in out.token_ids[:-1] for out in outs)
    assert any(out.token_ids[-1] == 1 for out in outs)


def test_end_of_sequence_and_length(make_engine):
    engine = make_engine()
    outs = engine.generate(GenerationRequest(prompt_ids=[40], max_tokens=60, seed=0, n=40))
    for out in outs:
        assert EOS not in out.token_ids[:-1]
        assert (out.finish_reason == "stop") == (out.token_ids[-1] == EOS)
        assert "<|im_end|>" not in out.text
        if out.finish_reason == "length":
            assert len(out.token_ids) == 60
    assert {out.finish_reason for out in outs} == {"stop", "length"}


def test_context_overflow_is_a_typed_error_and_the_rest_is_capped(make_engine):
    engine = make_engine(changes={"max_position_embeddings": 64})
    with pytest.raises(ContextOverflowError, match="shorten") as caught:
        engine.submit(GenerationRequest(prompt_ids=[5] * 64))
    assert caught.value.prompt_tokens == caught.value.limit == 64
    engine.codec.end_ids = frozenset()
    out = engine.generate(GenerationRequest(prompt_ids=[5] * 60, max_tokens=100, seed=0))[0]
    assert (len(out.token_ids), out.finish_reason) == (4, "length")


def test_bad_requests_are_refused_before_they_reach_the_batch(make_engine):
    engine = make_engine()
    for bad in (
        lambda: GenerationRequest(),
        lambda: GenerationRequest(prompt_ids=[5], temperature=float("nan")),
        lambda: GenerationRequest(prompt_ids=[5], temperature=-1),
        lambda: GenerationRequest(prompt_ids=[5], top_p=0),
        lambda: GenerationRequest(prompt_ids=[5], max_tokens=0),
        lambda: GenerationRequest(prompt_ids=[5], n=0),
        lambda: GenerationRequest(prompt_ids=[5], stop=("",)),
        lambda: engine.submit(GenerationRequest(prompt_ids=[])),
        lambda: engine.submit(GenerationRequest(prompt_ids=[259])),
        lambda: engine.submit(
            GenerationRequest(messages=[{"role": "user", "content": "x"}], tools=[{"type": "function"}])
        ),
    ):
        with pytest.raises(ConfigurationError):
            bad()


def test_a_failing_forward_pass_fails_its_batch_and_the_engine_lives_on(make_engine):
    engine = make_engine()
    good = GenerationRequest(prompt_ids=list(range(5, 30)), max_tokens=5, temperature=0)
    want = engine.generate(good)
    broken = engine.model.model.norm
    engine.model.model.norm = None
    with pytest.raises(EngineError, match="NoneType"):
        engine.generate(good)
    engine.model.model.norm = broken
    assert [g.token_ids for g in engine.generate(good)] == [g.token_ids for g in want]


def test_nan_logits_fail_the_request_and_leave_nothing_behind(make_engine):
    engine = make_engine()
    request = GenerationRequest(prompt_ids=list(range(5, 60)), max_tokens=5, temperature=0)
    want = engine.generate(request)[0].token_ids
    weight = engine.model.model.layers[0].mlp.down_proj.weight
    kept = weight.detach().clone()
    with engine.paused(), torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="check its weights"):
        engine.generate(request)
    with engine.paused(), torch.no_grad():
        weight.copy_(kept)
    assert engine.generate(request)[0].token_ids == want


def test_changed_weights_take_effect_on_cached_prompts(make_engine):
    engine = make_engine()
    prompt = list(range(5, 60))
    request = GenerationRequest(prompt_ids=prompt, max_tokens=8, temperature=0)
    before = engine.generate(request)[0]
    other = tiny_model(seed=9)
    with engine.paused() as model:
        model.load_state_dict(other.state_dict())
    after = engine.generate(request)[0]
    assert after.reused_tokens == 0
    assert after.token_ids == reference_greedy(other, prompt, 8)[0]
    assert after.token_ids != before.token_ids


def test_the_store_respects_its_bound(make_engine):
    engine = make_engine(cache_bytes=100_000)
    for i in range(30):
        engine.generate(GenerationRequest(prompt_ids=[3 + i, *range(5, 60)], max_tokens=4, seed=i))
        assert engine._store.nbytes <= 100_000
    assert 0 < len(engine._store) < 30


def test_running_bytes_queue_what_does_not_fit(make_engine):
    engine = make_engine(max_batch=8)
    small = make_engine(max_batch=8, running_bytes=engine._decoder.pool.shape.token_bytes * 120)
    requests = [GenerationRequest(prompt_ids=[5 + i] * 20, max_tokens=20, seed=i) for i in range(8)]
    want = [engine.generate(r)[0].token_ids for r in requests]
    futures = [small.submit(r) for r in requests]
    assert [f.result(30)[0].token_ids for f in futures] == want
    assert small.stats.largest_batch <= 3


async def test_cancelling_one_waiter_leaves_the_others(make_engine):
    engine = make_engine(max_batch=4)
    engine.codec.end_ids = frozenset()
    requests = [GenerationRequest(prompt_ids=[5 + i] * 10, max_tokens=400, seed=i) for i in range(4)]
    tasks = [asyncio.create_task(engine.agenerate(r)) for r in requests]
    while engine.stats.decode_steps < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert [len(d[0].token_ids) for d in (done[0], done[2], done[3])] == [400] * 3
    assert engine.stats.generated_tokens < 4 * 400


def test_closing_fails_what_is_unfinished():
    engine = BatchEngine(tiny_model(), byte_tokenizer(), max_batch=1)
    engine.codec.end_ids = frozenset()
    futures = [engine.submit(GenerationRequest(prompt_ids=[5 + i], max_tokens=500)) for i in range(3)]
    engine.close()
    for future in futures:
        with pytest.raises((EngineClosedError, CancelledError)):
            future.result(10)
    with pytest.raises(EngineClosedError):
        engine.submit(GenerationRequest(prompt_ids=[5]))


def test_many_threads_at_once(make_engine):
    engine = make_engine(max_batch=16)
    prompts = [random_ids(random.Random(i % 20), 5, 40) for i in range(160)]
    results = [None] * len(prompts)

    def work(start):
        for i in range(start, len(prompts), 8):
            request = GenerationRequest(prompt_ids=prompts[i], max_tokens=1 + i % 9, seed=i % 20)
            results[i] = engine.submit(request).result(60)[0].token_ids

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i, ids in enumerate(results):
        longest = max((results[j] for j in range(i % 20, len(prompts), 20)), key=len)
        assert ids == longest[: len(ids)]
    assert engine.stats.samples == 160
    assert not engine._batch._rows


def test_text_streams_in_pieces_that_add_up(make_engine):
    engine = make_engine()
    for seed in range(10):
        pieces = []
        request = GenerationRequest(prompt_ids=[40, 41], max_tokens=30, seed=seed, stop=("ab", "\n"))
        out = engine.submit(request, lambda _, text, pieces=pieces: pieces.append(text)).result(30)[0]
        assert "".join(pieces) == out.text


def test_models_the_engine_cannot_serve_are_refused():
    tokenizer = byte_tokenizer()
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ConfigurationError, match="rope_type"):
        BatchEngine(tiny_model(rope_parameters=rope), tokenizer)
    mamba = tiny_model("mamba", state_size=4)
    with pytest.raises(ConfigurationError, match="plain keys and values"):
        BatchEngine(mamba, tokenizer)
