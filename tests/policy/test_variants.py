"""Variants in the batch engine: several in one batch, prefixes apart, errors and endings that touch nobody else."""

import asyncio
import itertools
import random
import threading
from array import array
from contextlib import suppress

import litellm
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.context import RolloutNoise, current_member, rollout_noise
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.generation import (
    EngineClosedError,
    EngineError,
    GenerationRequest,
    VariantsEndedError,
)
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.prefix import PrefixStore, block_keys

load_litellm()


class Tilted:
    """Every variant adds a multiple of a fixed direction to the hidden states that enter the second layer."""

    def __init__(self, amounts, mixes=True):
        self.amounts = dict(amounts)
        self.names = self.amounts.keys()
        self.mixes = mixes
        self.used = []
        self.attached = False
        self.rows = ()

    def attach(self, model):
        self.attached = True
        generator = torch.Generator().manual_seed(5)
        direction = torch.randn(model.config.hidden_size, generator=generator)

        def tilt(_, args):
            amounts = torch.tensor([self.amounts.get(row, 0.0) for row in self.rows])
            return (args[0] + amounts.view(-1, 1, 1) * direction, *args[1:])

        self.hook = model.model.layers[1].register_forward_pre_hook(tilt)

    def detach(self, model):
        self.hook.remove()
        self.attached = False

    def use(self, rows):
        assert self.attached
        self.rows = tuple(rows)
        self.used.append(self.rows)
        if not self.mixes:
            assert len(set(rows)) == 1


def prompts(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(3, 259) for _ in range(rng.randint(5, 40))] for _ in range(count)]


def request(ids, variant=None, **options):
    options = {"max_tokens": 10, "temperature": 0} | options
    return GenerationRequest(prompt_ids=ids, variant=variant, **options)


AMOUNTS = {"a": 1.5, "b": -1.5, "c": 0.0}


@pytest.mark.parametrize("mixes", [True, False])
def test_every_row_is_answered_by_its_variant_whoever_shares_the_batch(make_engine, mixes):
    alone, crowd = make_engine(max_batch=1), make_engine(max_batch=6)
    asked = [request(ids, variant, seed=i, temperature=i % 2) for i, ids in enumerate(prompts(5)) for variant in "abc"]
    asked += [request(r.prompt_ids, None, seed=r.seed, temperature=r.temperature) for r in asked[:3]]
    random.Random(1).shuffle(asked)
    plain = [alone.generate(request(r.prompt_ids, seed=r.seed, temperature=r.temperature)) for r in asked]
    variants = Tilted(AMOUNTS, mixes)
    with alone.serving(Tilted(AMOUNTS)):
        want = [alone.generate(r)[0].token_ids for r in asked]
    with crowd.serving(variants):
        got = [future.result(30)[0].token_ids for future in [crowd.submit(r) for r in asked]]
    assert got == want
    same = [g == p[0].token_ids for g, p in zip(got, plain, strict=True)]
    assert all(s for s, r in zip(same, asked, strict=True) if r.variant in (None, "c"))
    assert not any(s for s, r in zip(same, asked, strict=True) if r.variant in ("a", "b"))
    assert (max(len(set(rows)) for rows in variants.used) > 1) == mixes
    assert crowd.stats.variant_samples == 15


def test_variants_that_do_not_mix_are_served_one_after_the_other(make_engine):
    engine = make_engine(max_batch=4)
    variants = Tilted(AMOUNTS, mixes=False)
    with engine.serving(variants):
        with engine.paused():
            futures = [engine.submit(request(ids, v, max_tokens=3)) for ids in prompts(6) for v in ("a", "b", None)]
        [f.result(30) for f in futures]
    turns = [rows[0] for rows in variants.used]
    assert len([1 for one, other in itertools.pairwise(turns) if one != other]) == 2


def test_prefixes_are_reused_within_a_variant_only_and_forgotten_with_it(make_engine):
    engine = make_engine()
    ids = list(range(3, 103))
    engine.generate(request(ids))
    with engine.serving(Tilted(AMOUNTS)):
        first = [engine.generate(request(ids, v))[0] for v in ("a", "b", None, "a")]
        assert [g.reused_tokens for g in first] == [0, 0, 99, 99]
        assert first[0].token_ids == first[3].token_ids
        longer = [*ids, *first[0].token_ids, 7, 8]
        assert engine.generate(request(longer, "a"))[0].reused_tokens >= len(ids) + 9
        assert engine.generate(request(longer, "b"))[0].reused_tokens == 100
    assert {entry.variant for entry in engine._store._entries.values()} == {None}
    with engine.serving(Tilted(AMOUNTS)):
        again = [engine.generate(request(ids, v))[0] for v in ("a", None)]
        assert [g.reused_tokens for g in again] == [0, 99]
        assert again[0].token_ids == first[0].token_ids


def test_requests_that_arrive_together_share_a_prefix_within_their_variant(make_engine):
    engine = make_engine(max_batch=8)
    system = list(range(3, 103))
    with engine.serving(Tilted(AMOUNTS)):
        with engine.paused():
            futures = [engine.submit(request([*system, 110 + i, 120], "ab"[i % 2], max_tokens=2)) for i in range(8)]
        [f.result(30) for f in futures]
    assert engine.stats.prefilled_tokens <= 2 * (102 + 3 * 11)


def test_what_is_not_served_is_refused(make_engine):
    engine = make_engine()
    with pytest.raises(ConfigurationError, match="but none"):
        engine.submit(request([5], "a"))
    with engine.serving(Tilted(AMOUNTS)):
        with pytest.raises(ConfigurationError, match="does not serve z but 3 others"):
            engine.submit(request([5], "z"))
        with pytest.raises(ConfigurationError, match="one generation at a time"), engine.serving(Tilted({})):
            pass
        engine.generate(request([5], "a"))
    with pytest.raises(ConfigurationError, match="but none"):
        engine.submit(request([5], "a"))


def test_variants_that_do_not_fit_the_model_leave_the_engine_as_it_was(make_engine):
    engine = make_engine()

    class Refuses(Tilted):
        def attach(self, model):
            raise ConfigurationError("not this model")

    with pytest.raises(ConfigurationError, match="not this model"), engine.serving(Refuses(AMOUNTS)):
        pass
    assert not engine.serves_variants
    with engine.serving(Tilted(AMOUNTS)):
        engine.generate(request([5], "a"))


def test_numbers_that_go_bad_fail_only_the_rows_of_their_variant(make_engine):
    engine = make_engine(max_batch=8)
    asked = prompts(6, seed=3)
    with engine.serving(Tilted(AMOUNTS)):
        want = [engine.generate(request(ids, "a"))[0].token_ids for ids in asked]
    with engine.serving(Tilted(AMOUNTS | {"bad": float("nan")})):
        with engine.paused():
            futures = [engine.submit(request(ids, v)) for ids in asked for v in ("a", "bad")]
        assert [f.result(30)[0].token_ids for f in futures[::2]] == want
        for future in futures[1::2]:
            with pytest.raises(EngineError, match="NaN"):
                future.result(30)
        held = {entry.variant for entry in engine._store._entries.values()}
        assert "a" in held
        assert "bad" not in held


async def test_cancelling_one_members_request_leaves_the_others(make_engine):
    engine = make_engine(max_batch=4)
    engine.codec.end_ids = frozenset()
    variants = Tilted(AMOUNTS)
    with engine.serving(variants):
        asked = [request(ids, v, max_tokens=300) for ids, v in zip(prompts(4), "abca", strict=True)]
        tasks = [asyncio.create_task(engine.agenerate(r)) for r in asked]
        before = engine.stats.decode_steps
        while engine.stats.decode_steps < before + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert "b" not in variants.used[-1]
        for one in (0, 2, 3):
            assert done[one][0].token_ids == engine.generate(asked[one])[0].token_ids


@pytest.mark.parametrize("mixes", [True, False])
def test_leaving_ends_what_is_unfinished_and_lets_the_rest_go_on(make_engine, mixes):
    engine = make_engine(max_batch=4)
    engine.codec.end_ids = frozenset()
    plain = request(list(range(5, 30)), max_tokens=200)
    want = engine.generate(plain)[0].token_ids
    variants = Tilted(AMOUNTS, mixes)
    with engine.serving(variants):
        futures = [engine.submit(plain)] if mixes else []
        futures += [engine.submit(request(ids, v, max_tokens=400)) for ids, v in zip(prompts(5), "abcab", strict=True)]
        before = engine.stats.decode_steps
        while engine.stats.decode_steps < before + 5:
            pass
    calls = len(variants.used)
    own = futures[1:] if mixes else futures
    assert all(isinstance(f.exception(30), VariantsEndedError) for f in own)
    if mixes:
        assert futures[0].result(30)[0].token_ids == want
    assert engine.generate(plain)[0].token_ids == want
    assert len(variants.used) == calls
    assert not variants.attached
    assert all(entry.variant is None for entry in engine._store._entries.values())


def test_closing_the_engine_while_a_generation_is_served(make_engine):
    engine = make_engine(max_batch=2)
    engine.codec.end_ids = frozenset()
    variants = Tilted(AMOUNTS)
    with suppress(EngineClosedError), engine.serving(variants):
        futures = [engine.submit(request(ids, v, max_tokens=400)) for ids, v in zip(prompts(4), "abca", strict=True)]
        closer = threading.Thread(target=engine.close)
        closer.start()
        for future in futures:
            with pytest.raises(EngineClosedError):
                future.result(30)
        with pytest.raises(EngineClosedError):
            engine.submit(request([5], "a"))
        raise EngineClosedError
    closer.join(30)
    assert not closer.is_alive()
    assert not variants.attached
    with pytest.raises(EngineClosedError), engine.serving(variants):
        pass


sequences = st.lists(st.integers(0, 1), min_size=8, max_size=40).map(lambda x: array("q", x))


@given(st.lists(st.tuples(sequences, st.sampled_from([None, "a", "b", 0])), max_size=12), sequences)
def test_the_store_never_crosses_variants(stored, wanted):
    store = PrefixStore(1 << 20)
    for ids, variant in stored:
        store.insert(ids, (bytes(ids), variant), len(ids), variant=variant)
    for variant in (None, "a", "b", 0):
        entry, length = store.match(wanted, block_keys(wanted, variant), variant)
        own = [ids for ids, owner in stored if owner == variant and type(owner) is type(variant)]
        common = max(
            (
                next((i for i in range(min(len(x), len(wanted))) if x[i] != wanted[i]), min(len(x), len(wanted)))
                for x in own
            ),
            default=0,
        )
        assert length == (common if common >= 8 else 0)
        assert entry is None or entry.data[1] == variant
    store.forget("a")
    assert {e.variant for e in store._entries.values()} == {v for _, v in stored} - {"a"}
    store.forget_variants()
    assert {e.variant for e in store._entries.values()} <= {None}


async def test_the_local_provider_sends_the_member_and_the_rollouts_own_noise(model_path):
    model, engine = f"amc-local/{model_path}", get_engine(model_path)

    async def rollout(member, key):
        current_member.set(member)
        rollout_noise.set(RolloutNoise(key))
        said = []
        for turn in range(3):
            # another prompt for every member: the noise must not depend on it
            messages = [{"role": "user", "content": f"turn {turn} of {member} in {key}"}]
            out = await litellm.acompletion(model, messages, max_tokens=6)
            said.append(out.choices[0].message.content)
        return said

    seeds, submit = [], engine.submit
    engine.submit = lambda r, on_text=None: seeds.append((r.variant, r.seed)) or submit(r, on_text)
    try:
        keys = [(0, "task", 0), (0, "task", 1), (1, "task", 0)]
        with engine.serving(Tilted(AMOUNTS)):
            before = engine.stats.variant_samples
            first = await asyncio.gather(*[asyncio.create_task(rollout(m, k)) for m in (None, *"ab") for k in keys])
            assert engine.stats.variant_samples - before == 18
            by_member = {m: sorted(s for v, s in seeds if v == m) for m in (None, "a", "b")}
            assert by_member[None] == by_member["a"] == by_member["b"]
            assert len(set(by_member["a"])) == 9
            again = await asyncio.gather(*[asyncio.create_task(rollout(m, k)) for m in (None, *"ab") for k in keys])
            assert again == first
        # an engine that serves no generation, such as a judge's, answers as it is
        seeds.clear()
        await asyncio.create_task(rollout("a", keys[0]))
        assert {v for v, _ in seeds} == {None}
    finally:
        del engine.submit
