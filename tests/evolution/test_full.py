"""Members in place: the weights they should have, one at a time, and the model back bit for bit, whatever happens."""

import asyncio
import copy
import random

import pytest
import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution import full
from langgraph_amc.evolution.directions import dense
from langgraph_amc.evolution.full import Full
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.low_rank import LowRank
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.noise import UNIT
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import EngineError, GenerationRequest
from tests.evolution.models import gpt2, llama, lora, phi3
from tests.support.tiny_models import byte_tokenizer, tiny_model

DTYPES = (torch.float32, torch.bfloat16)


def generation(pairs=2, rank=None, sigma=0.02, kind="gaussian"):
    return Generation(3, 7, sigma, kind, rank, tuple(Member(p, s) for p in range(pairs) for s in (1, -1)))


def bits(model):
    return {name: tensor.clone().view(torch.uint8) for name, tensor in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [llama, gpt2, phi3])
@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_a_member_is_the_base_plus_its_noise_rounded_once(make, dtype, kind, monkeypatch):
    monkeypatch.setattr(full, "_CHUNK", 50)  # several chunks per matrix
    model = make(dtype)
    start = copy.deepcopy(model)
    before = bits(model)
    drawn = generation(kind=kind)
    variants = Full(layout(model), drawn)
    variants.attach(model)
    for member in [*drawn.members, drawn.members[0]]:
        variants.use([member, member])
        named = dict(model.named_parameters())
        for entry in layout(start).entries:
            noise = dense(drawn, member.pair, entry).view(entry.shape).float()
            base = entry.view(dict(start.named_parameters())[entry.parameter]).float()
            want = (base + noise * (member.sign * drawn.sigma * UNIT[kind])).to(dtype)
            assert torch.equal(entry.view(named[entry.parameter]), want), entry.name
    variants.use([None])
    assert same(before, bits(model))
    variants.use([drawn.members[1]])
    assert not same(before, bits(model))
    variants.detach(model)
    assert same(before, bits(model))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hundred_members_leave_no_trace(dtype):
    model = llama(dtype)
    with torch.no_grad():  # numbers that adding and taking off again would lose
        model.model.norm.weight[:4] = torch.tensor([-0.0, 1e-30, 1e30, float("inf")], dtype=dtype)
    before = bits(model)
    for _ in range(5):
        variants = Full(layout(model), generation(pairs=10))
        variants.attach(model)
        for member in variants.generation.members:
            variants.use([member])
        variants.detach(model)
    assert same(before, bits(model))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("failing", [1, 5, 12])
def test_an_error_in_the_middle_of_writing_is_undone(dtype, failing, monkeypatch):
    model = llama(dtype)
    before = bits(model)
    drawn = generation()
    variants = Full(layout(model), drawn)
    variants.attach(model)
    variants.use([drawn.members[3]])
    written, calls = full.perturb, []

    def breaks(*args):
        calls.append(args)
        if len(calls) == failing:
            raise KeyboardInterrupt
        written(*args)

    monkeypatch.setattr(full, "perturb", breaks)
    with pytest.raises(KeyboardInterrupt):
        variants.use([drawn.members[0]])
    assert not same(before, bits(model))
    monkeypatch.setattr(full, "perturb", written)
    variants.use([drawn.members[0]])  # what was half written is written whole
    half = bits(model)
    variants.detach(model)
    assert same(before, bits(model))
    again = Full(layout(model), drawn)
    again.attach(model)
    again.use([drawn.members[0]])
    assert same(half, bits(model))
    again.detach(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters_only(dtype):
    model = lora(dtype)
    before = bits(model)
    variants = Full(layout(model, "lora"), generation(rank=2))
    variants.attach(model)
    variants.use([Member(0, 1)])
    changed = {name for name, tensor in bits(model).items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    variants.detach(model)
    assert same(before, bits(model))


def test_one_member_at_a_time():
    model = llama()
    variants = Full(layout(model), generation())
    variants.attach(model)
    with pytest.raises(ConfigurationError, match="one at a time"):
        variants.use([Member(0, 1), None])
    with pytest.raises(ConfigurationError, match="not a member of generation 3"):
        variants.use([Member(5, 1)])
    variants.detach(model)
    with pytest.raises(ConfigurationError, match="sigma"):
        Full(layout(model), generation(sigma=float("inf")))


def requests(members, count=3, **options):
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 259) for _ in range(rng.randint(4, 30))] for _ in range(count)]
    options = {"max_tokens": 8, "temperature": 1.0} | options
    return [
        GenerationRequest(prompt_ids=ids, seed=number, variant=member, **options)
        for number, ids in enumerate(prompts)
        for member in members
    ]


def test_in_place_and_in_one_batch_give_the_same_rollouts():
    drawn = generation(rank=2, sigma=0.01)
    model = tiny_model()
    before = bits(model)
    engine = BatchEngine(model, byte_tokenizer(), max_batch=6)
    asked = requests([*drawn.members, None])
    plain = [engine.generate(r)[0].token_ids for r in requests([None])]
    told = []
    for kind in (LowRank, Full):
        with engine.serving(kind(layout(model), drawn)):
            told.append([f.result(60)[0].token_ids for f in [engine.submit(r) for r in asked]])
        assert same(before, bits(model))
    assert told[0] == told[1]
    assert told[0][4::5] == plain
    assert len(set(told[0])) > len(plain)
    engine.close()


def test_the_weights_change_only_when_nobody_runs(monkeypatch):
    model = tiny_model()
    engine = BatchEngine(model, byte_tokenizer(), max_batch=4)
    engine.codec.end_ids = frozenset()
    drawn = generation()
    variants = Full(layout(model), drawn)
    running = []
    write = Full._write
    monkeypatch.setattr(
        Full, "_write", lambda self, m: running.append((m, [r.variant for r in engine._batch._rows])) or write(self, m)
    )
    with engine.serving(variants):
        asked = requests(drawn.members)
        with engine.paused():
            futures = [engine.submit(r) for r in asked]
        [f.result(60) for f in futures]
    assert [member for member, _ in running] == list(drawn.members)
    assert all(rows == [] for _, rows in running)
    engine.close()


async def test_cancelled_in_the_middle_the_model_is_whole():
    model = tiny_model()
    before = bits(model)
    engine = BatchEngine(model, byte_tokenizer(), max_batch=4)
    engine.codec.end_ids = frozenset()

    async def generation_of_rollouts():
        with engine.serving(Full(layout(model), generation())):
            asked = requests(generation().members, max_tokens=400)
            await asyncio.gather(*[engine.agenerate(r) for r in asked])

    task = asyncio.create_task(generation_of_rollouts())
    while engine.stats.decode_steps < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert not same(before, bits(model))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert same(before, bits(model))
    assert engine.generate(requests([None])[0])
    assert same(before, bits(model))
    engine.close()


def test_an_error_while_serving_fails_the_member_and_leaves_the_model_whole(monkeypatch):
    model = tiny_model()
    before = bits(model)
    engine = BatchEngine(model, byte_tokenizer())
    drawn = generation()
    written, calls = full.perturb, []

    def breaks(target, source, drawn_, member, entry):
        calls.append(member)
        if member == drawn.members[1] and calls.count(member) == 4:
            raise RuntimeError("out of memory")
        written(target, source, drawn_, member, entry)

    monkeypatch.setattr(full, "perturb", breaks)
    with engine.serving(Full(layout(model), drawn)):
        with engine.paused():
            futures = [engine.submit(r) for r in requests(drawn.members, count=2)]
        for request, future in zip(requests(drawn.members, count=2), futures, strict=True):
            if request.variant == drawn.members[1]:
                with pytest.raises(EngineError, match="out of memory"):
                    future.result(60)
            else:
                assert future.result(60)
    assert same(before, bits(model))
    engine.close()


def test_closing_the_engine_puts_the_weights_back():
    model = tiny_model()
    before = bits(model)
    engine = BatchEngine(model, byte_tokenizer())
    engine.codec.end_ids = frozenset()
    drawn = generation()
    with engine.serving(Full(layout(model), drawn)):
        future = engine.submit(requests([drawn.members[0]], max_tokens=400)[0])
        while engine.stats.decode_steps < 3:
            pass
        engine.close()
        assert future.exception(30) is not None
    assert same(before, bits(model))
