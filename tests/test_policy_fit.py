"""Fits leave the sequence out, find what was put in, and say nothing where nothing is fitted."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import tiny_trace
from toy_traces import random_sequences, trace_of

from kdtree_cupy import policy_fit
from kdtree_cupy.policies import POLICIES
from kdtree_cupy.replay import acceptance
from kdtree_cupy.trace import bundled_traces, load_trace


@pytest.fixture(scope="module")
def sampled():
    trace = load_trace(bundled_traces()[1])
    return trace, trace.true_ranks()


def drawn_trace(temperature: float, seed: int = 0):
    """Return a trace whose tokens follow the drafter's rows at ``temperature`` (depth 1 only)."""
    rng = np.random.default_rng(seed)
    lengths, vocab = [400] * 6, 8
    total = sum(lengths)
    logits = rng.normal(size=(total, 1, vocab)) * 2
    rows = np.exp(logits)
    rows /= rows.sum(-1, keepdims=True)
    honest = rows[:, 0] ** (1 / temperature)
    honest /= honest.sum(-1, keepdims=True)
    tokens = np.zeros(total, int)
    draws = (np.cumsum(honest, 1) < rng.random(total)[:, None]).sum(1)
    tokens[1:] = draws[:-1]
    return trace_of(np.split(tokens, np.cumsum(lengths)[:-1]), rows)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6, 2.5])
def test_the_temperature_that_was_put_in_is_found(temperature):
    trace = drawn_trace(temperature)
    found = policy_fit.fit_temperatures(trace, trace.true_ranks())
    assert found.shape == (6, 1)
    assert np.abs(found / temperature - 1).max() < 0.12


def test_gains_of_an_honest_drafter_are_one():
    trace = drawn_trace(1.0)
    gains = policy_fit.fit_gains(trace, trace.true_ranks())
    assert gains.shape == (6, 1, 4)
    assert np.abs(gains[:, 0, 0] - 1).max() < 0.02


@pytest.mark.parametrize("name", policy_fit.FITS)
def test_a_sequence_does_not_see_itself(name):
    """Changing the text of sequence 2 changes no option that sequence 2 uses."""
    if name == "longrun":
        pytest.skip("its rate looks at no true token")
    rng = np.random.default_rng(0)
    sequences, rows = random_sequences(rng, (30, 25, 40, 20), 12, 4)
    other = [s.copy() for s in sequences]
    other[2][1:] = rng.integers(0, 12, other[2].size - 1)
    got = []
    for texts in (sequences, other):
        trace = trace_of(texts, rows, width=6)
        options, per_position = policy_fit.fit(name, trace, trace.true_ranks())
        assert (per_position["table_index"] == trace.sequence_of()).all()
        got.append(next(iter(options.values())))
    np.testing.assert_allclose(got[0][2], got[1][2], rtol=1e-12)  # total - own: rounding only
    if name != "fan_out":
        assert (got[0][0] != got[1][0]).any()


def test_nothing_to_fit():
    trace = tiny_trace()
    for name in set(POLICIES) - set(policy_fit.FITS):
        assert policy_fit.fit(name, trace, trace.true_ranks()) == ({}, {})


@pytest.mark.parametrize("name", POLICIES)
def test_fitted_policies_replay_small_traces(name):
    for trace in (tiny_trace(), tiny_trace(depth=1, width=1), tiny_trace(lengths=(2,))):
        options, per_position = policy_fit.fit(name, trace, trace.true_ranks())
        out = acceptance(trace, POLICIES[name], [0, 3, 20], options=options, per_position=per_position)
        assert (out.accepted >= 0).all() and (np.diff(out.nodes_by_depth[..., 1:].sum(2), axis=1) >= 0).all()


def test_calibration_helps_where_the_drafter_is_overconfident(sampled):
    """Numbers of the bundled trace at temperature 1; budgets exclude the root."""
    from kdtree_cupy.acceptance import tau
    from kdtree_cupy.replay import jump

    trace, ranks = sampled
    pooled = {}
    for name in ("ddtree", "calibrated", "conditioned"):
        options, per_position = policy_fit.fit(name, trace, ranks)
        out = acceptance(trace, POLICIES[name], [16, 64], options=options, per_position=per_position)
        pooled[name] = [round(tau(jump(trace, out.accepted[:, j])).pooled, 3) for j in (0, 1)]
    assert pooled == {"ddtree": [1.928, 2.196], "calibrated": [1.976, 2.238], "conditioned": [1.933, 2.205]}
    assert (np.median(policy_fit.fit_temperatures(trace, ranks), axis=0) > 1).all()
