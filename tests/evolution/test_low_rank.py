"""Low-rank members in one batch against weights that are written out, and everything back as it was afterwards."""

import copy
import math
import random
from array import array

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.directions import dense, factors
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.low_rank import LowRank
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.noise import UNIT
from langgraph_amc.evolution.perturbation import matrices
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.forward import Decoder
from langgraph_amc.policy.generation import EngineError, GenerationRequest
from langgraph_amc.policy.kv import KVPool, probe
from tests.evolution.models import gpt2, llama, lora, phi3
from tests.support.tiny_models import byte_tokenizer, tiny_model

MODELS = {
    "llama": lambda dtype: llama(dtype, tied=False),
    "llama, tied": llama,
    "gpt2, Conv1D and biases": gpt2,
    "phi3, fused": phi3,
    "qwen2, biases": lambda dtype: tiny_model("qwen2", vocab=40).to(dtype),
    "qwen3, norms of heads": lambda dtype: tiny_model("qwen3", vocab=40).to(dtype),
}
FORMS = {"wide": 10**6, "grouped": 0}


def generation(pairs=3, rank=1, sigma=0.05, kind="rademacher", seed=1):
    return Generation(2, seed, sigma, kind, rank, tuple(Member(p, s) for p in range(pairs) for s in (1, -1)))


def written_out(model, member, drawn, scope="all"):
    """A copy of the model whose weights are the member's: W + s (sigma / sqrt r) A B^T, in float32."""
    other = copy.deepcopy(model)
    if member is None:
        return other
    named = dict(other.named_parameters(remove_duplicate=False))
    unit = UNIT[drawn.kind]
    with torch.no_grad():
        for entry in layout(other, scope).entries:
            if entry.kind == "vector":
                change = dense(drawn, member.pair, entry).float() * unit
            else:
                a, b = factors(drawn, member.pair, entry)
                change = (a.float() * unit) @ (b.float() * unit).T / math.sqrt(drawn.rank)
            view = entry.view(named[entry.parameter])
            view.copy_(view.float() + member.sign * drawn.sigma * change)
    return other


def logits_of(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0, -1]


def everything(model):
    """Parameters and buffers, and what each module has of its own in its instance."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return state, {name: set(module.__dict__) for name, module in model.named_modules()}


def assert_unchanged(model, before):
    state, own = everything(model)
    assert own == before[1]
    for name, tensor in state.items():
        assert torch.equal(tensor.view(torch.uint8), before[0][name].view(torch.uint8)), name


def ragged(model, variants, members, rng, *, steps=3, tokens=40):
    """Prefill rows of different length in two portions, then decode: yields (ids of each row, its logits)."""
    pool = KVPool(probe(model), max_rows=len(members))
    decoder = Decoder(model, pool)
    rows = [[rng.randrange(3, tokens) for _ in range(rng.randint(1, 9))] for _ in members]
    half = rng.randint(1, len(members))
    with torch.inference_mode():
        pool.reserve(len(members), 20)
        for first, last in ((0, half), (half, len(members))):
            if first < last:
                variants.use(members[first:last])
                suffixes = [array("q", ids) for ids in rows[first:last]]
                found = decoder.prefill(first, suffixes, [0] * (last - first), rng.choice([3, 4096]))
                yield from zip(members[first:last], map(tuple, rows[first:last]), found, strict=True)
        for _ in range(steps):
            new = [rng.randrange(3, tokens) for _ in members]
            variants.use(members)
            found = decoder.decode(new, [len(ids) for ids in rows])
            for ids, token in zip(rows, new, strict=True):
                ids.append(token)
            yield from zip(members, map(tuple, rows), found, strict=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_equal_the_weights_written_out(name, form, monkeypatch):
    monkeypatch.setattr("langgraph_amc.evolution.low_rank.WIDE", FORMS[form])
    model = MODELS[name](torch.float32)
    before = everything(model)

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**31), st.sampled_from([1, 2, 5]), st.sampled_from(["rademacher", "gaussian"]))
    def run(seed, rank, kind):
        rng = random.Random(seed)
        drawn = generation(rng.randint(1, 3), rank, kind=kind, seed=seed)
        members = [rng.choice([None, *drawn.members]) for _ in range(rng.randint(1, 7))]
        explicit = {m: written_out(model, m, drawn) for m in {*members, None}}
        variants = LowRank(layout(model), drawn)
        variants.attach(model)
        try:
            for member, ids, got in ragged(model, variants, members, rng):
                want = logits_of(explicit[member], ids)
                torch.testing.assert_close(got, want, atol=3e-5, rtol=3e-5)
                if member is not None:
                    assert (want - logits_of(explicit[None], ids)).abs().max() > 1e-3
        finally:
            variants.detach(model)
        assert_unchanged(model, before)

    run()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_equal_the_weights_written_out_in_bfloat16(name, form, monkeypatch):
    monkeypatch.setattr("langgraph_amc.evolution.low_rank.WIDE", FORMS[form])
    model = MODELS[name](torch.bfloat16)
    exact = copy.deepcopy(model).float()
    before = everything(model)
    rng = random.Random(5)
    drawn = generation(rank=2)
    members = [*drawn.members, None]
    variants = LowRank(layout(model), drawn)
    explicit = {m: written_out(exact, m, drawn) for m in members}
    narrow = {m: written_out(model, m, drawn) for m in members}
    variants.attach(model)
    found = list(ragged(model, variants, members, rng))
    variants.detach(model)
    assert_unchanged(model, before)
    rounding, error, effect = [], [], []
    for member, ids, got in found:
        want = logits_of(explicit[member], ids)
        rounding.append((logits_of(narrow[member], ids) - want).abs().mean())
        error.append((got - want).abs().mean())
        effect.append((want - logits_of(exact, ids)).abs().mean())
    # about as near to exact arithmetic as weights written out in bfloat16 are, and far nearer than the effect
    assert torch.stack(error).mean() < 2 * torch.stack(rounding).mean()
    assert torch.stack(error).mean() < torch.stack(effect).mean() / 10


def test_gains_move_below_the_precision_of_their_type():
    model = llama(torch.bfloat16)
    drawn = generation(pairs=1, sigma=1e-3)
    whole = layout(model)
    vectors = tuple(entry for entry in whole.entries if entry.kind == "vector")
    named = dict(model.named_parameters())
    assert all(torch.equal(named[e.parameter] + 1e-3, named[e.parameter] - 1e-3) for e in vectors[:1])
    variants = LowRank(type(whole)(whole.scope, vectors, whole.frozen), drawn)
    variants.attach(model)
    rows = [*drawn.members, None, None]
    variants.use(rows)
    with torch.inference_mode():
        ids, positions = torch.arange(3, 15).repeat(4, 1), torch.arange(12).repeat(4, 1)
        plus, minus, base, again = model(input_ids=ids, position_ids=positions).logits
    variants.detach(model)
    assert torch.equal(base, again)
    assert not torch.equal(plus, base)
    assert not torch.equal(minus, base)
    assert not torch.equal(plus, minus)


def test_adapters_only():
    model = lora()
    before = everything(model)
    drawn = generation(rank=2)
    variants = LowRank(layout(model, "lora"), drawn)
    explicit = {m: written_out(model, m, drawn, "lora") for m in (*drawn.members, None)}
    variants.attach(model)
    for member, ids, got in ragged(model, variants, list(explicit), random.Random(2)):
        torch.testing.assert_close(got, logits_of(explicit[member], ids), atol=3e-5, rtol=3e-5)
    variants.detach(model)
    assert_unchanged(model, before)


def test_linear_layers_only():
    model = llama(tied=True)
    drawn = generation(rank=2)
    variants = LowRank(layout(model, "linear"), drawn)
    explicit = {m: written_out(model, m, drawn, "linear") for m in (*drawn.members, None)}
    variants.attach(model)
    for member, ids, got in ragged(model, variants, list(explicit), random.Random(2)):
        torch.testing.assert_close(got, logits_of(explicit[member], ids), atol=3e-5, rtol=3e-5)
    variants.detach(model)


def test_without_a_member_the_model_is_the_same_to_the_bit():
    model = tiny_model("gpt2", vocab=40)
    ids = torch.arange(12).view(2, 6)
    positions = torch.arange(6).repeat(2, 1)
    with torch.inference_mode():
        want = model(input_ids=ids, position_ids=positions).logits
    variants = LowRank(layout(model), generation())
    variants.attach(model)
    for rows in ([None, None], [Member(0, 1), None], [None, None]):
        variants.use(rows)
        with torch.inference_mode():
            got = model(input_ids=ids, position_ids=positions).logits
        assert torch.equal(got, want) == (rows == [None, None])
    variants.detach(model)


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_answers_every_member_as_its_own_model_would(form, monkeypatch):
    monkeypatch.setattr("langgraph_amc.evolution.low_rank.WIDE", FORMS[form])
    model = tiny_model()
    before = everything(model)
    drawn = generation(pairs=2, rank=2, sigma=0.02)
    explicit = {m: written_out(model, m, drawn) for m in (*drawn.members, None)}
    rng = random.Random(4)
    asked = [
        GenerationRequest(
            prompt_ids=[rng.randrange(3, 259) for _ in range(rng.randint(10, 40))],
            max_tokens=12,
            seed=number,
            temperature=number % 3 / 2,
            variant=member,
        )
        for number in range(6)
        for member in explicit
    ]
    rng.shuffle(asked)
    want = {}
    for member, one in explicit.items():
        engine = BatchEngine(one, byte_tokenizer(), max_batch=1)
        for request in asked:
            if request.variant == member:
                plain = GenerationRequest(
                    prompt_ids=request.prompt_ids, max_tokens=12, seed=request.seed, temperature=request.temperature
                )
                want[id(request)] = engine.generate(plain)[0].token_ids
        engine.close()
    engine = BatchEngine(model, byte_tokenizer(), max_batch=7)
    with engine.serving(LowRank(layout(model), drawn)):
        for turn in range(2):  # the second time from cached prefixes
            futures = [engine.submit(request) for request in asked]
            got = [future.result(60)[0] for future in futures]
            assert [g.token_ids for g in got] == [want[id(request)] for request in asked]
            assert turn == 0 or min(g.reused_tokens for g in got) > 0
    assert len({want[id(r)] for r in asked if r.seed == 1}) > 1
    assert_unchanged(model, before)
    engine.close()


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_go_bad_stay_in_their_row(form, monkeypatch):
    monkeypatch.setattr("langgraph_amc.evolution.low_rank.WIDE", FORMS[form])
    model = tiny_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[200] = float("nan")
        model.lm_head.weight[200] = 0.0
    engine = BatchEngine(model, byte_tokenizer())
    drawn = generation(pairs=2)
    with engine.serving(LowRank(layout(model), drawn)):
        good = [GenerationRequest(prompt_ids=[9, 8, 7], max_tokens=6, temperature=0, variant=m) for m in drawn.members]
        want = [engine.generate(request)[0].token_ids for request in good]
        with engine.paused():
            bad = engine.submit(GenerationRequest(prompt_ids=[9, 200], variant=drawn.members[0]))
            futures = [engine.submit(request) for request in good]
        assert [future.result(30)[0].token_ids for future in futures] == want
        with pytest.raises(EngineError, match="NaN"):
            bad.result(30)
    engine.close()


def test_members_that_are_not_of_the_generation_are_refused():
    model = llama()
    variants = LowRank(layout(model), generation(pairs=1))
    assert Member(1, 1) not in variants.names
    variants.attach(model)
    for stranger in (Member(1, 1), "a", 3):
        with pytest.raises(ConfigurationError, match="not a member of generation 2"):
            variants.use([stranger])
    variants.detach(model)


@pytest.mark.parametrize(
    "changes", [{"rank": None}, {"rank": 0}, {"sigma": 0.0}, {"sigma": float("nan")}, {"pairs": 0}]
)
def test_generations_that_perturb_nothing_are_refused(changes):
    with pytest.raises(ConfigurationError, match=r"rank|sigma|member"):
        LowRank(layout(llama()), generation(**changes))


class Doubled(torch.nn.Linear):
    """Not x W^T + b."""

    def forward(self, x):
        return 2 * super().forward(x)


class Gathers(torch.nn.Module):
    """A vector that is not used element by element."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size))

    def forward(self, x):
        return x * self.weight.softmax(0).cumsum(0)[-1] + self.weight.flatten().flip(0)[: x.shape[-1]]


def broken(kind):
    model = llama(tied=False)
    layer = model.model.layers[1]
    if kind == "doubled":
        layer.mlp.up_proj = Doubled(16, 24, bias=False)
    elif kind == "unused":
        model.extra = torch.nn.Linear(4, 4)
    elif kind == "flat":
        inner = layer.mlp.down_proj
        layer.mlp.down_proj = torch.nn.Sequential(torch.nn.Flatten(0, 1), inner, torch.nn.Unflatten(0, (-1, 2)))
    else:
        layer.input_layernorm = Gathers(16)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("doubled", r"up_proj is a Doubled, which has a formula of its own"),
        ("unused", r"extra takes no part"),
        ("flat", r"down_proj.1 is given all tokens in one row"),
        ("gathers", r"input_layernorm \(Gathers\) does not use its vectors element by element"),
    ],
)
def test_what_cannot_be_perturbed_per_row_is_refused_by_name(kind, message):
    model = broken(kind)
    before = everything(model)
    with pytest.raises(ConfigurationError, match=message):
        LowRank(layout(model), generation()).attach(model)
    assert_unchanged(model, before)


def test_projections_of_one_input_share_their_first_product(monkeypatch):
    model = llama()
    calls = []
    first = matrices.Wide.first
    monkeypatch.setattr(matrices.Wide, "first", lambda self, x, rows: calls.append(self.parts) or first(self, x, rows))
    variants = LowRank(layout(model), generation())
    variants.attach(model)
    variants.use([Member(0, 1)])
    with torch.inference_mode():
        model(input_ids=torch.tensor([[3, 4]]), position_ids=torch.tensor([[0, 1]]))
    # per layer: queries, keys and values; output; gate and up; down. Then the head.
    assert calls == [3, 1, 2, 1] * 2 + [1]
    assert variants._live.x is None
    variants.detach(model)
