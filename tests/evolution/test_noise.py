"""Noise: the same bits from torch and NumPy, whole and in parts, for ever; and of the right distribution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.noise import PEAK, UNIT, integers, integers_numpy, noise_key

KINDS = ("rademacher", "gaussian")


@pytest.mark.parametrize("kind", KINDS)
@given(key=st.integers(0, 2**64 - 1), start=st.integers(0, 2**40), count=st.integers(0, 700), cut=st.integers(0, 700))
@settings(max_examples=60, deadline=None)
def test_torch_and_numpy_agree_on_every_part(kind, key, start, count, cut):
    whole = integers_numpy(kind, key, count, start=start)
    assert whole.dtype == np.int16
    assert whole.shape == (count,)
    cut = min(cut, count)
    parts = [integers(kind, key, cut, start=start), integers(kind, key, count - cut, start=start + cut)]
    assert torch.cat(parts).dtype == torch.int16
    np.testing.assert_array_equal(torch.cat(parts).numpy(), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_larger_than_one_are_seamless(kind):
    count = (1 << 19) + 77
    np.testing.assert_array_equal(integers(kind, 9, count, start=13).numpy(), integers_numpy(kind, 9, count, start=13))


def test_the_bits_never_change():
    """A history of last year has to replay: these numbers may not be edited."""
    key = noise_key(20261130, 3, 5, "model.layers.0.mlp.up_proj.weight", "A")
    assert key == 11759219605472959904
    assert integers("rademacher", key, 12, start=60).tolist() == [1, -1, 1, 1, -1, 1, -1, -1, 1, 1, 1, 1]
    assert integers("gaussian", key, 8, start=3).tolist() == [-92, 246, -474, -59, 102, 217, 191, -257]
    far = noise_key(0, 0, 0, "w", "full")
    assert far == 323618571044920284
    assert integers("gaussian", far, 4, start=10**12).tolist() == [44, 260, -153, -108]


@given(
    st.lists(st.tuples(*[st.integers(0, 99)] * 3, st.text(max_size=5), st.sampled_from(["A", "B", "full"])), max_size=9)
)
def test_keys_of_different_streams_differ(parts):
    assert len({noise_key(*p) for p in parts}) == len(set(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_distribution(kind):
    values = integers(kind, noise_key(1, 2, 3, "w", "full"), 400_000).double().numpy() * UNIT[kind]
    assert abs(values.mean()) < 4.5 / len(values) ** 0.5
    assert abs(values.var() - 1) < 4.5 * (2 / len(values)) ** 0.5
    assert np.abs(values).max() <= PEAK[kind] * UNIT[kind]
    if kind == "gaussian":  # a grid of 1/256 is seen by the test unless it is smoothed over
        smooth = values + (np.random.default_rng(0).random(len(values)) - 0.5) / 256
        assert scipy.stats.kstest(smooth, "norm").pvalue > 1e-3
    else:
        assert set(np.unique(values)) == {-1.0, 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_streams_are_uncorrelated(kind):
    """Along one stream at many lags, and across streams whose parts differ by one."""
    n = 1 << 16
    keys = [noise_key(s, g, p, name, "A") for s in (0, 1) for g in (0, 1) for p in (0, 1) for name in ("a", "b")]
    rows = np.stack([integers(kind, key, n).double().numpy() * UNIT[kind] for key in keys])
    across = rows @ rows.T / n - np.eye(len(rows))
    assert np.abs(across).max() < 5 / n**0.5
    for lag in (1, 2, 3, 4, 8, 16, 63, 64, 65, 256, 1024):
        assert abs((rows[0, lag:] * rows[0, :-lag]).mean()) < 5 / n**0.5, lag


def test_neighbouring_keys_give_unrelated_streams():
    rows = np.stack([integers("rademacher", key, 4096).double().numpy() for key in range(64)])
    across = rows @ rows.T / 4096 - np.eye(64)
    assert np.abs(across).max() < 5.5 / 4096**0.5


@pytest.mark.parametrize(("kind", "count", "start"), [("uniform", 1, 0), ("gaussian", -1, 0), ("rademacher", 1, -1)])
def test_bad_arguments(kind, count, start):
    with pytest.raises(ConfigurationError):
        integers(kind, 0, count, start=start)
    with pytest.raises(ConfigurationError):
        integers_numpy(kind, 0, count, start=start)
