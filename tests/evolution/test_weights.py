"""Updates: faithful in float32 for every type of number, exact in any order, bounded, and told apart by a hash."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution import weights as weights_module
from langgraph_amc.evolution.asktell import State, Update, ask, tell
from langgraph_amc.evolution.directions import dense, factors, is_low_rank, unit_of
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.layout import LayoutMismatchError, layout, parameters_of
from langgraph_amc.evolution.masters import Master
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.weights import Weights
from tests.evolution import models
from tests.evolution.runs import rewards_of

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def updates(strategy: Strategy, count: int) -> list[Update]:
    state, found = State(), []
    for number in range(count):
        update, state = tell(strategy, state, ask(strategy, state), rewards_of(strategy, number))
        found.append(update)
    return found


def bits(model) -> bytes:
    return b"".join(p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in model.parameters())


@given(
    arrays(
        np.float32, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.floats(-(2.0**126), 2.0**126, width=32)
    )
)
def test_bfloat16_and_its_lower_half_are_the_float32(values):
    wanted = torch.from_numpy(values.copy())
    served = torch.zeros(values.shape, dtype=torch.bfloat16)
    master = Master(served)
    assert master.write(0, len(values), wanted)
    np.testing.assert_array_equal(master.read(0, len(values)).numpy().view(np.int32), values.view(np.int32))
    nearest = wanted.to(torch.bfloat16).float()  # ties apart, what is served is the nearest number
    assert ((served.float() - wanted).abs() <= (nearest - wanted).abs()).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_masters_of_parts_and_transposed_views(dtype, transposed):
    held = torch.randn(6, 4).to(dtype)
    before = held.clone()
    view = (held.T if transposed else held)[1:3]
    master = Master(view)
    torch.testing.assert_close(master.read(0, 2), view.float(), rtol=0, atol=0)
    tiny = torch.full((1, view.shape[1]), 1e-5)
    wanted = (master.read(1, 2).double() + 40 * 1e-5).float()
    for _ in range(40):
        master.write(1, 2, master.read(1, 2) + tiny)
    torch.testing.assert_close(master.read(1, 2), wanted, rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(master.read(0, 1), view[:1].float(), rtol=0, atol=0)
    outside = torch.ones_like(held, dtype=torch.bool)
    (outside.T if transposed else outside)[1:3] = False
    assert torch.equal(held[outside], before[outside])


def test_other_types_are_refused():
    with pytest.raises(ConfigurationError, match="float64"):
        Weights(models.llama(torch.float64), layout(models.llama()))


@pytest.mark.parametrize("rank", [None, 1, 3])
@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
@pytest.mark.parametrize("make", [models.llama, models.gpt2, models.phi3])
def test_a_step_is_the_sum_of_its_directions(make, noise, rank):
    strategy = Strategy(population=8, sigma=0.05, noise=noise, rank=rank)
    (update,) = updates(strategy, 1)
    model = make()
    found = layout(model)
    weights = Weights(model, found)
    before = {e.name: weights.master(e).double() for e in found.entries}
    weights.apply(update)
    squares = 0.0
    for entry in found.entries:
        change = torch.zeros(entry.shape, dtype=torch.float64)
        for pair, q in enumerate(update.coefficients):
            if is_low_rank(entry, rank):
                a, b = factors(update.generation, pair, entry)
                direction = a.double() @ b.double().T
            else:
                direction = dense(update.generation, pair, entry).double().view(entry.shape)
            change += q * update.scale * unit_of(entry, noise, rank) * direction
        after = entry.view(parameters_of(model, [entry])[entry.parameter]).double()
        torch.testing.assert_close(after, before[entry.name] + change, rtol=2e-7, atol=1e-9)
        squares += float(change.pow(2).sum())
    # 3,000 weights, 4 directions: the root mean square is near what is expected of it
    assert math.sqrt(squares / found.numel) == pytest.approx(update.rms, rel=0.15)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("make", [models.llama, models.gpt2])
def test_bfloat16_is_updated_as_faithfully_as_float32(make, rank):
    """Steps far below what bfloat16 resolves: 15 of them move it exactly as they move a float32 model."""
    half = make(torch.bfloat16)
    whole = make(torch.bfloat16).float()
    small, large = Weights(half, layout(half)), Weights(whole, layout(whole))
    assert small.hash() == large.hash()
    start = bits(half)
    for update in updates(Strategy(population=8, sigma=4e-4, rank=rank, seed=4), 15):
        small.apply(update)
        large.apply(update)
        assert small.hash() == large.hash()
    assert bits(half) != start
    for ours, exact in zip(half.parameters(), whole.parameters(), strict=True):
        ulp = exact.abs().clamp_min(1e-38).log2().floor().exp2() * 2**-8
        assert ((ours.float() - exact).abs() <= ulp * 1.0001).all()
    assert small.extra_bytes == 2 * small.layout.numel
    assert large.extra_bytes == 0


def test_float16_keeps_its_masters():
    half = models.llama(torch.float16)
    whole = models.llama(torch.float16).float()
    small, large = Weights(half, layout(half)), Weights(whole, layout(whole))
    for update in updates(Strategy(population=4, sigma=1e-4), 10):
        small.apply(update)
        large.apply(update)
    assert small.hash() == large.hash()
    assert small.extra_bytes == 4 * small.layout.numel
    for ours, exact in zip(half.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, exact.half())


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_do_not_matter(chunk, monkeypatch):
    strategy = Strategy(population=6, sigma=0.01, rank=2, noise="gaussian", decay=0.1)
    hashes = []
    for size in (1 << 18, chunk):
        monkeypatch.setattr(weights_module, "_CHUNK", size)
        model = models.gpt2(torch.bfloat16)
        weights = Weights(model, layout(model), anchor="copy")
        for update in updates(strategy, 2):
            weights.apply(update)
        hashes.append(weights.hash())
    assert hashes[0] == hashes[1]


def test_the_hash_sees_every_bit_and_reading_changes_none():
    model = models.llama(torch.bfloat16)
    weights = Weights(model, layout(model))
    start, before = bits(model), weights.hash()
    for _ in range(3):
        assert weights.hash() == before
    assert bits(model) == start
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        flat = parameter.data.view(-1).view(torch.int16)
        at = int(torch.randint(len(flat), (), generator=generator))
        flat[at] ^= 1
        assert weights.hash() != before
        flat[at] ^= 1
        assert weights.hash() == before


def test_zero_updates_leave_the_weights_alone():
    model = models.llama(torch.bfloat16)
    weights = Weights(model, layout(model))
    strategy = Strategy(population=4, sigma=0.1)
    update, _ = tell(strategy, State(), ask(strategy, State()), np.full((4, 2), 0.5))
    start, before = bits(model), weights.hash()
    weights.apply(update)
    assert bits(model) == start
    assert weights.hash() == before


def test_only_the_scope_moves():
    model = models.llama(tied=False)
    weights = Weights(model, layout(model, "linear"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for update in updates(Strategy(population=4, sigma=0.1), 1):
        weights.apply(update)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {e.parameter for e in weights.layout.entries}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [models.llama, models.gpt2])
def test_decay_goes_back_and_both_anchors_agree(make, dtype, tmp_path):
    make(dtype).save_pretrained(tmp_path)
    strategy = Strategy(population=4, sigma=0.01, decay=0.5)
    hashes, runs = set(), []
    for anchor in ("copy", tmp_path, str(tmp_path)):
        model = make(dtype)
        weights = Weights(model, layout(model), anchor=anchor)
        for update in updates(strategy, 3):
            weights.apply(update)
        hashes.add(weights.hash())
        runs.append(weights)
    assert len(hashes) == 1
    entry = runs[0].layout.entries[0]
    began = Weights(make(dtype), runs[0].layout).master(entry)
    nothing = Update(**{**fields_of(updates(strategy, 1)[0]), "coefficients": (0, 0)})
    away = float((runs[0].master(entry) - began).norm())
    runs[0].apply(nothing)
    assert float((runs[0].master(entry) - began).norm()) == pytest.approx(away / 2, rel=1e-4)


def fields_of(update: Update) -> dict:
    return {name: getattr(update, name) for name in Update.__slots__}


def test_anchors_that_cannot_be(tmp_path):
    model = models.llama()
    (update,) = updates(Strategy(population=4, sigma=0.01, decay=0.1), 1)
    with pytest.raises(ConfigurationError, match="anchor"):
        Weights(model, layout(model)).apply(update)
    with pytest.raises(ConfigurationError, match="safetensors"):
        Weights(model, layout(model), anchor=tmp_path)
    models.llama(seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(LayoutMismatchError, match="not as in"):
        Weights(model, layout(model), anchor=tmp_path / "other")
    models.gpt2().save_pretrained(tmp_path / "foreign")
    with pytest.raises(LayoutMismatchError, match="no tensor"):
        Weights(model, layout(model), anchor=tmp_path / "foreign")


def test_weights_that_leave_their_range():
    model = models.llama(torch.float16)
    (update,) = updates(Strategy(population=4, sigma=1.0, alpha=1e6), 1)
    with pytest.raises(WeightsError, match="trust region"):
        Weights(model, layout(model)).apply(update)


def test_sums_that_would_not_be_exact_are_refused():
    model = models.llama()
    update = fields_of(updates(Strategy(population=4, sigma=0.1, noise="gaussian"), 1)[0])
    with pytest.raises(ConfigurationError, match="exactly"):
        Weights(model, layout(model)).apply(Update(**{**update, "coefficients": (1 << 34, 0)}))
