"""The estimator against true gradients, for every option, within its own Monte Carlo error.

What is estimated. Shaping "none": the gradient of the smoothed reward J_sigma(x) = E J(x + sigma E), exactly: the
estimand is E[J(x + sigma E) E] / sigma, which for a quadratic is its gradient under any noise of unit variance, and for
a network is summed here over all outcomes of the noise (Rademacher) or found by Stein's identity (Gaussian). Shapings
"z" and "ranks": the direction of that gradient; for a linear reward under Gaussian noise also the length, sigma |g| /
std in the limit of many members, times sqrt(3 / pi) for ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from langgraph_amc.evolution.estimator import estimate, fixed_point
from langgraph_amc.evolution.noise import UNIT, integers_numpy, noise_key

SIGMA = 0.3
ROWS, COLUMNS = 3, 4


@dataclass(frozen=True)
class World:
    """Rewards of parameters [n, d] on each task: [n, tasks]; ``luck`` is the standard deviation of sampling."""

    rewards: Callable[[np.ndarray], np.ndarray]
    at: np.ndarray
    luck: float = 0.0
    missing: float = 0.0


def draw(kind, form, generations, pairs, size):
    """Directions [generations, pairs, size] of unit variance."""

    def values(stream, *shape):
        key = noise_key(5, 0, 0, f"{kind} {form}", stream)
        return integers_numpy(kind, key, int(np.prod(shape))).reshape(shape) * UNIT[kind]

    if form == "full":
        return values("full", generations, pairs, size)
    rank = int(form)
    a, b = values("A", generations, pairs, ROWS, rank), values("B", generations, pairs, COLUMNS, rank)
    return (np.einsum("gpmr,gpnr->gpmn", a, b) / rank**0.5).reshape(generations, pairs, size)


def steps(world, directions, *, sigma=SIGMA, seed=0, **options):
    """The estimate of each generation: mean over its pairs of coefficient times direction: [generations, size]."""
    rng = np.random.default_rng(seed)
    signs = (1, -1) if options["antithetic"] else (1,)
    found = np.empty((len(directions), directions.shape[2]))
    for i, generation in enumerate(directions):
        members = np.stack([world.at + s * sigma * e for e in generation for s in signs])
        rewards = world.rewards(members)
        rewards = rewards + world.luck * rng.normal(size=rewards.shape)
        rewards[rng.random(rewards.shape) < world.missing] = np.nan
        estimated = estimate(rewards, **options)
        integers, exponent = fixed_point(estimated.weights)
        found[i] = np.ldexp(np.array(integers, float), exponent) @ generation / len(generation)
    return found


def assert_unbiased(found, truth, errors=4.5):
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    assert (np.abs(mean - truth) <= errors * error + 1e-5 * np.abs(truth)).all(), (mean, truth, error)
    assert (error < 0.25 * np.abs(truth).max()).all(), "too noisy to show anything"


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def quadratic(luck=0.2, missing=0.0):
    """Three tasks of very different height, slope and curvature, and the gradient of their mean."""
    rng = np.random.default_rng(3)
    size = ROWS * COLUMNS
    heights, slopes = np.array([0.0, 1.0, -1.0]), rng.normal(size=(3, size))
    bends = rng.normal(size=(3, size, size)) * 0.3
    bends = bends + bends.transpose(0, 2, 1)
    at = rng.normal(size=size)

    def rewards(x):
        return heights + x @ slopes.T - 0.5 * np.einsum("ni,tij,nj->nt", x, bends, x)

    return World(rewards, at, luck, missing), (slopes - np.einsum("tij,j->ti", bends, at)).mean(axis=0)


@pytest.mark.parametrize("missing", [0.0, 0.2], ids=["complete", "missing"])
@pytest.mark.parametrize("form", ["full", "2"])
@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
@pytest.mark.parametrize("baseline", ["task", "none"])
@pytest.mark.parametrize("antithetic", [True, False], ids=["pairs", "independent"])
def test_gradient_of_a_smoothed_quadratic(antithetic, baseline, kind, form, missing):
    world, gradient = quadratic(missing=missing)
    directions = draw(kind, form, 800, 6, world.at.size)
    found = steps(world, directions, antithetic=antithetic, shaping="none", baseline=baseline) / SIGMA
    assert_unbiased(found, gradient)


def _network(x):
    """Rewards [n, 3] of a network with 2 inputs, 2 hidden units and 1 output on three inputs; x is [n, 9]."""
    inputs, targets = np.array([[1.0, -0.5], [0.3, 0.8], [-1.0, 1.0]]), np.array([0.5, -0.5, 1.0])
    hidden = np.tanh(np.einsum("tj,nij->nti", inputs, x[:, :4].reshape(-1, 2, 2)) + x[:, None, 4:6])
    return -((np.einsum("nti,ni->nt", hidden, x[:, 6:8]) + x[:, 8:9] - targets) ** 2)


AT = np.random.default_rng(4).normal(size=9) * 0.7


def _every_outcome(form):
    """All equally likely directions of Rademacher noise: [outcomes, 9]."""
    if form == "full":
        return np.array(list(itertools.product((1.0, -1.0), repeat=9)))
    bits = np.array(list(itertools.product((1.0, -1.0), repeat=4 + 5)))
    matrix = np.einsum("ni,nj->nij", bits[:, :2], bits[:, 2:4]).reshape(-1, 4)
    return np.concatenate([matrix, bits[:, 4:]], axis=1)


def _estimand(form, sigma):
    outcomes = _every_outcome(form)
    return (_network(AT + sigma * outcomes).mean(axis=1)[:, None] * outcomes).mean(axis=0) / sigma


def _draw_network(kind, form, generations, pairs):
    flat = draw(kind, "full", generations, pairs, 9)
    if form == "full":
        return flat
    matrix = np.einsum("gpi,gpj->gpij", flat[..., :2], flat[..., 2:4]).reshape(generations, pairs, 4)
    return np.concatenate([matrix, flat[..., 4:]], axis=2)


@pytest.mark.parametrize("form", ["full", "1"])
@pytest.mark.parametrize("baseline", ["task", "none"])
@pytest.mark.parametrize("antithetic", [True, False], ids=["pairs", "independent"])
def test_a_tiny_network_under_signs(antithetic, baseline, form):
    world = World(_network, AT, luck=0.1, missing=0.1)
    directions = _draw_network("rademacher", form, 1000, 6)
    found = steps(world, directions, antithetic=antithetic, shaping="none", baseline=baseline) / SIGMA
    assert_unbiased(found, _estimand(form, SIGMA))


@pytest.mark.parametrize("baseline", ["task", "none"])
@pytest.mark.parametrize("antithetic", [True, False], ids=["pairs", "independent"])
def test_a_tiny_network_under_gaussian_noise(antithetic, baseline):
    """Stein's identity: the mean of the network's own gradient, by back-propagation, over other noise."""
    rng = torch.Generator().manual_seed(0)
    x = torch.from_numpy(AT) + SIGMA * torch.randn(200_000, 9, generator=rng, dtype=torch.float64)
    x.requires_grad_(True)
    inputs = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-1.0, 1.0]], dtype=torch.float64)
    targets = torch.tensor([0.5, -0.5, 1.0], dtype=torch.float64)
    hidden = torch.tanh(torch.einsum("tj,nij->nti", inputs, x[:, :4].view(-1, 2, 2)) + x[:, None, 4:6])
    rewards = -((torch.einsum("nti,ni->nt", hidden, x[:, 6:8]) + x[:, 8:9] - targets) ** 2)
    np.testing.assert_allclose(rewards[:50].detach().numpy(), _network(x[:50].detach().numpy()))
    rewards.mean(dim=1).sum().backward()
    world = World(_network, AT, luck=0.1)
    directions = draw("gaussian", "full", 1000, 6, 9)
    found = steps(world, directions, antithetic=antithetic, shaping="none", baseline=baseline) / SIGMA
    assert_unbiased(found, x.grad.mean(dim=0).numpy(), errors=4.7)


def test_the_estimand_becomes_the_gradient_as_sigma_falls():
    step = 1e-6 * np.eye(9)
    gradient = (_network(AT + step) - _network(AT - step)).mean(axis=1) / 2e-6
    for form in ("full", "1"):
        assert cosine(_estimand(form, 0.01), gradient) > 0.9999
        np.testing.assert_allclose(_estimand(form, 0.01), gradient, atol=1e-3)


@pytest.mark.parametrize("population", [4, 12])
@pytest.mark.parametrize("shaping", ["z", "ranks"])
@pytest.mark.parametrize("antithetic", [True, False], ids=["pairs", "independent"])
def test_shaped_rewards_give_the_direction(antithetic, shaping, population):
    """A linear reward with luck: by symmetry the expectation is along the gradient, for any population."""
    slope = np.random.default_rng(6).normal(size=12)
    world = World(lambda x: (x @ slope)[:, None] * np.array([1.0, 0.5]) + np.array([0.0, 5.0]), np.zeros(12), luck=0.5)
    pairs = population // 2 if antithetic else population
    directions = draw("gaussian", "full", 12_000 // population, pairs, 12)
    found = steps(world, directions, antithetic=antithetic, shaping=shaping, baseline="task")
    mean = found.mean(axis=0)
    along = mean @ slope / (slope @ slope)
    assert along > 0
    assert_unbiased(found, along * slope)


@pytest.mark.parametrize(("shaping", "factor"), [("z", 1.0), ("ranks", (3 / np.pi) ** 0.5)])
@pytest.mark.parametrize("antithetic", [True, False], ids=["pairs", "independent"])
def test_length_of_shaped_steps_in_the_limit(antithetic, shaping, factor):
    slope = np.random.default_rng(7).normal(size=6)
    world = World(lambda x: (x @ slope)[:, None], np.zeros(6), luck=0.4)
    spread = (SIGMA**2 * slope @ slope + world.luck**2) ** 0.5
    directions = draw("gaussian", "full", 100, 400 if antithetic else 800, 6)
    found = steps(world, directions, antithetic=antithetic, shaping=shaping, baseline="task")
    truth = factor * SIGMA * slope / spread
    assert np.linalg.norm(found.mean(axis=0) - truth) < 0.02 * np.linalg.norm(truth)


@pytest.mark.parametrize(("shaping", "least"), [("z", 0.999), ("ranks", 0.98)])
@pytest.mark.parametrize("form", ["full", "1"])
def test_shaped_rewards_of_a_network_point_uphill(form, shaping, least):
    """Small sigma, many members. Two of nine weights make most of it, so ranks of signs bend it."""
    directions = _draw_network("rademacher", form, 400, 64)
    found = steps(World(_network, AT), directions, sigma=0.02, antithetic=True, shaping=shaping, baseline="task")
    assert cosine(found.mean(axis=0), _estimand(form, 0.02)) > least


def test_what_both_signs_share_cancels_and_what_all_members_share_too():
    """At a summit there is nothing but curvature: pairs see exactly zero. Baselines take off the tasks' heights."""
    summit = World(lambda x: -(x**2) @ np.ones((12, 2)) / 2 + np.array([3.0, 7.0]), np.zeros(12))
    options = {"shaping": "none", "baseline": "task"}
    assert not steps(summit, draw("gaussian", "full", 50, 4, 12), antithetic=True, **options).any()
    world, _ = quadratic(luck=0.0)
    single = steps(world, draw("rademacher", "full", 400, 8, 12), antithetic=False, **options)
    bare = steps(world, draw("rademacher", "full", 400, 8, 12), antithetic=False, shaping="none", baseline="none")
    assert single.var(axis=0).sum() < 0.7 * bare.var(axis=0).sum()
