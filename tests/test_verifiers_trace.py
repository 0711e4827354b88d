"""Rules replayed on recorded traces: masses against the closed forms, matching against ranks, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import tiny_trace
from tolerances import FLOAT64_SUM

from kdtree_cupy import verifiers as v
from kdtree_cupy.acceptance import tau_pooled
from kdtree_cupy.replay import jump
from kdtree_cupy.trace import bundled_traces, load_trace
from kdtree_cupy.verifiers import on_trace


@pytest.fixture(scope="module")
def sampled():
    return load_trace(bundled_traces()[1])


@pytest.mark.parametrize("rule", on_trace.RULES)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_masses_add_up_to_the_acceptance(rule, k):
    p, q = np.random.default_rng(k).dirichlet(np.ones(6), (2, 40))
    mass = on_trace.accepted_mass(rule, p, q, k)
    np.testing.assert_allclose(mass.sum(-1), v.ACCEPTANCE[rule](p, q, k), atol=FLOAT64_SUM)
    assert (mass <= p + FLOAT64_SUM).all() and (mass >= 0).all()


@pytest.mark.parametrize("rule", on_trace.RULES)
def test_masses_are_what_monte_carlo_accepts(rule):
    model = v.random_model(4, vocab=4, depth=2)
    walked = v.walk(rule, model, 2, 200_000, depth=1, seed=1)
    won = walked.tokens[walked.accepted == 1, 0]
    share = np.bincount(won, minlength=4) / 200_000
    wanted = on_trace.accepted_mass(rule, model.target[0][0], model.drafter[0][0], 2)
    np.testing.assert_allclose(share, wanted, atol=0.005)  # 4 standard errors


@pytest.mark.parametrize("path", [0, 1])
def test_matching_on_a_trace_is_the_k_ary_tree(path):
    """The best k at every node, matched: the leading true ranks below k, if the target's list has them."""
    trace = load_trace(bundled_traces()[path])
    ranks = trace.true_ranks()
    for k in (1, 4):
        accepted = np.logical_and.accumulate((ranks >= 0) & (ranks < k), axis=1).sum(1)
        got = on_trace.replay_rule(trace, "match", k)
        assert got.missing_share < 0.07
        assert tau_pooled(got.rounds) == pytest.approx(tau_pooled(jump(trace, accepted)), abs=0.02)


def test_rules_on_the_sampled_trace(sampled):
    """Four drafts a node: the best four and rejection are close; with one draft rejection is ahead."""
    tau = {r: np.mean([tau_pooled(on_trace.replay_rule(sampled, r, 4, seed=s).rounds) for s in range(5)])
           for r in on_trace.RULES}  # fmt: skip
    assert tau["match_iid"] < tau["rrs"] < tau["kseq"] * 1.02
    assert {r: round(float(x), 2) for r, x in tau.items()} == {
        "match": 1.95, "match_iid": 1.64, "rrs": 1.90, "kseq": 1.91,
    }  # fmt: skip
    one = {r: tau_pooled(on_trace.replay_rule(sampled, r, 1).rounds) for r in ("match", "rrs")}
    assert one["rrs"] > one["match"]


def test_bad_calls(sampled):
    with pytest.raises(ValueError, match="wanted one of match"):
        on_trace.replay_rule(sampled, "transport", 2)
    with pytest.raises(ValueError, match="k: got 0"):
        on_trace.replay_rule(sampled, "rrs", 0)
    with pytest.raises(ValueError, match="no target_ids"):
        on_trace.replay_rule(tiny_trace(), "rrs", 2)
    with pytest.raises(ValueError, match="p"):
        on_trace.accepted_mass("rrs", [0.5, 0.6], [0.5, 0.5], 1)
