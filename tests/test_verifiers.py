"""Verifiers: exact laws at one node, losslessness of whole runs, the optimality of matching, bad input."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import FLOAT64_SUM

from kdtree_cupy import verifiers as v
from kdtree_cupy.verifiers import sampling

SCIPY = ("transport",)
NAMES = [*v.RULES, "traversal"]
MODEL = v.random_model(1)


def need(name: str) -> None:
    if name in SCIPY:
        pytest.importorskip("scipy", reason="scipy (extra lab) is not installed: no linear programs")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Return p, q and k over at most 4 tokens, zeros among them."""
    size = draw(st.integers(1, 4))
    weights = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]), min_size=size, max_size=size)
    p, q = (np.array(draw(weights.filter(sum))) for _ in range(2))
    return p / p.sum(), q / q.sum(), draw(st.integers(1, 3))


@pytest.mark.parametrize("name", v.RULES)
@given(pair=pairs())
@settings(max_examples=20)
def test_one_node_emits_the_target(name, pair):
    need(name)
    p, q, k = pair
    law = v.exact_node(name, p, q, k)
    np.testing.assert_allclose(law.output, p, atol=1e-9)  # the linear program stops at about 1e-10
    assert -1e-9 <= law.acceptance <= 1 + 1e-9


@pytest.mark.parametrize("name", ["match", "match_iid", "rrs", "kseq", "transport"])
@given(pair=pairs())
@settings(max_examples=20)
def test_closed_form_is_the_enumeration(name, pair):
    need(name)
    p, q, k = pair
    assert v.ACCEPTANCE[name](p, q, k) == pytest.approx(v.exact_node(name, p, q, k).acceptance, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_sampled_form_without_replacement_is_near_the_enumeration(seed):
    p, q = np.random.default_rng(seed).dirichlet(np.ones(5), 2)
    got = v.ACCEPTANCE["rrs_without"](p, q, 3, draws=2000)
    assert got == pytest.approx(v.exact_node("rrs_without", p, q, 3).acceptance, abs=0.01)  # 4000 draws
    assert v.ACCEPTANCE["rrs_without"](p, q, 1) == pytest.approx(np.minimum(p, q).sum())


@given(pair=pairs())
@settings(max_examples=20)
def test_linear_program_is_the_subset_formula(pair):
    need("transport")
    p, q, k = pair
    subsets = itertools.product((False, True), repeat=p.size)
    brute = 1 + min(p[list(h)].sum() - q[list(h)].sum() ** k for h in map(np.array, subsets))
    assert v.subset_formula(p, q, k) == pytest.approx(brute, abs=FLOAT64_SUM)
    assert v.optimal_transport(p, q, k) == pytest.approx(brute, abs=1e-9)


@given(pair=pairs())
@settings(max_examples=20)
def test_without_replacement_never_draws_more_than_there_is(pair):
    p, q, _ = pair
    law = v.exact_node("rrs_without", p, q, 4)
    model = v.ToyModel((p[None], np.eye(p.size)), (q[None], np.eye(p.size)))
    walked = v.walk("rrs_without", model, 4, 4000)
    assert walked.accepted.mean() == pytest.approx(law.acceptance, abs=0.05)  # 4,000 draws
    assert v.ACCEPTANCE["rrs_without"](p, q, 4, draws=100) == pytest.approx(law.acceptance, abs=0.05)


@given(pair=pairs())
@settings(max_examples=20)
def test_order_of_the_iid_rules(pair):
    """K-SEQ reaches (1 - 1/e) of the optimum; transport is the optimum; one draft makes them all equal."""
    p, q, k = pair
    best = v.subset_formula(p, q, k)
    for name in ("match_iid", "rrs", "kseq"):
        assert v.ACCEPTANCE[name](p, q, k) <= best + 1e-9
    assert v.ACCEPTANCE["kseq"](p, q, k) >= (1 - np.exp(-1)) * best - 1e-9
    one = np.minimum(p, q).sum()
    for name in ("rrs", "rrs_without", "kseq", "transport"):
        assert v.ACCEPTANCE[name](p, q, 1) == pytest.approx(one, abs=1e-9)


def test_matching_is_optimal_on_a_deterministic_tree():
    """No lossless rule keeps more of a fixed tree: E[accepted] <= sum of p(u), which matching attains.

    The best any coupling of Y ~ p with the fixed set S can do at one node is p(S); here as a linear program
    over couplings whose drafts are S with certainty, and over two levels by enumeration.
    """
    need("transport")
    rng = np.random.default_rng(3)
    for _ in range(5):
        p = rng.dirichlet(np.ones(4))
        fixed = np.zeros(4)
        fixed[1] = 1.0  # q is a point mass: the drafts are the set {1}
        assert v.optimal_transport(p, fixed, 2) == pytest.approx(p[1], abs=1e-9)
    walked = v.walk("match", MODEL, 2, 200_000)
    best = [np.argsort(-q, axis=1, kind="stable")[:, :2] for q in MODEL.drafter]
    total = 0.0
    for x in best[0][0]:
        total += MODEL.target[0][0, x]
        total += MODEL.target[0][0, x] * MODEL.target[1][x, best[1][x]].sum()
    assert walked.accepted.mean() == pytest.approx(total, abs=0.006)  # 200,000 draws: 4 standard errors
    assert MODEL.joint(2).sum() == pytest.approx(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_million_draws_follow_the_target(name):
    need(name)
    test = v.losslessness(name, MODEL, 2, draws=1_000_000, seed=7)
    assert test.freedom == 26
    assert test.p_value > 1e-4, test


def biased(rng, p, q, row, k):
    """Accept as Leviathan does, but draw from p instead of the residual after a rejection."""
    drafted = sampling.draw(rng, q[row])
    take = rng.random(row.size) * sampling.pick(q[row], drafted) < sampling.pick(p[row], drafted)
    return np.where(take, drafted, sampling.draw(rng, p[row])), take


def greedy(rng, p, q, row, k):
    """Accept every draft."""
    return sampling.draw(rng, q[row]), np.ones(row.size, bool)


@pytest.mark.parametrize(("wrong", "draws"), [(biased, 1_000_000), (greedy, 100_000)])
def test_a_biased_verifier_is_caught(wrong, draws):
    test = v.losslessness(wrong, MODEL, 1, draws=draws)
    assert test.p_value < 1e-12, test


@pytest.mark.parametrize("name", ["match_iid", "rrs", "rrs_without", "kseq", "transport", "match"])
@pytest.mark.parametrize("k", [1, 2])
def test_monte_carlo_accepts_what_the_law_says(name, k):
    need(name)
    walked = v.walk(name, MODEL, k, 80_000, depth=1, seed=11)
    law = v.exact_node(name, MODEL.target[0][0], MODEL.drafter[0][0], k)
    assert walked.accepted.mean() == pytest.approx(law.acceptance, abs=0.007)  # 4 standard errors


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_traversal_is_exactly_lossless(seed, k):
    model = v.random_model(seed, vocab=2, depth=3)
    got = np.zeros(model.vocab**3)
    for run, mass in v.exact_traversal(model, k).items():
        tail = mass * np.ones(1)
        prefix = int("".join(map(str, run)), model.vocab)
        for table in model.target[len(run) :]:
            rows = prefix * tail.size + np.arange(tail.size)
            tail, prefix = (tail[:, None] * table[rows]).ravel(), prefix
        start = prefix * tail.size
        got[start : start + tail.size] += tail
    np.testing.assert_allclose(got, model.joint(3), atol=FLOAT64_SUM)


@pytest.mark.parametrize("seed", range(6))
def test_traversal_is_no_worse_than_the_token_level_on_a_chain(seed):
    model = v.random_model(seed, vocab=3, depth=4)
    runs = v.exact_traversal(model, 1)
    sequence_level = sum(mass * (len(run) - 1) for run, mass in runs.items())
    assert v.traverse(model, 1, 40_000, seed=seed).accepted.mean() == pytest.approx(sequence_level, abs=0.03)
    token_level, alive = 0.0, np.ones(1)
    for p, q in zip(model.target[:3], model.drafter[:3], strict=True):
        alive = (alive[:, None] * np.minimum(p, q)).ravel()
        token_level += alive.sum()
    assert sequence_level >= token_level - FLOAT64_SUM


def test_chi_square_tail_is_the_distribution_s():
    stats = pytest.importorskip("scipy.stats", reason="scipy (extra lab) is not installed")
    from kdtree_cupy.verifiers.losslessness import upper_gamma

    for freedom in (1, 2, 5, 26, 300):
        for x in (0.0, 0.1, 1.0, 5.0, 26.0, 60.0, 400.0):
            assert upper_gamma(freedom / 2, x / 2) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-9)


def test_temperature_zero_is_greedy_and_one_is_itself():
    p = np.array([[0.5, 0.3, 0.2], [0.2, 0.4, 0.4]])
    np.testing.assert_array_equal(v.tempered(p, 0), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(v.tempered(p, 1), p)
    assert v.tempered(p, 0.5)[0, 0] > 0.5 > v.tempered(p, 2)[0, 0]


P, Q = [0.5, 0.5], [0.4, 0.6]


@pytest.mark.parametrize("name", v.RULES)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((P, [0.4, 0.4, 0.2], 1), ValueError),
        (([0.5, 0.6], Q, 1), ValueError),
        ((P, [-0.4, 1.4], 1), ValueError),
        (([np.nan, 0.5], Q, 1), ValueError),
        ((P, Q, 0), ValueError),
        ((P, Q, 1.5), TypeError),
    ],
)
def test_bad_distributions_are_refused(name, arguments, error):
    for call in (partial(v.exact_node, name), v.ACCEPTANCE[name]):
        with pytest.raises(error, match=r"p|q|k"):
            call(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: v.exact_node("rss", P, Q, 1), "wanted one of match"),
        (lambda: v.exact_node("rrs", [P], [Q], 1), "one distribution"),
        (lambda: v.walk("rss", MODEL, 1, 10), "wanted one of match"),
        (lambda: v.walk("rrs", MODEL, 0, 10), "k 0"),
        (lambda: v.walk("rrs", MODEL, 1, 10, depth=3), "depth 3"),
        (lambda: v.traverse(MODEL, 0, 10), "k 0"),
        (lambda: v.traverse(MODEL, 1, 0), "draws: got 0"),
        (lambda: v.exact_traversal(MODEL, 1, depth=9), "depth 9"),
        (lambda: v.losslessness("rrs", MODEL, 1, draws=0), "draws: got 0"),
        (lambda: v.chi_square([1, 2], [0.5]), "one shape"),
        (lambda: v.random_model(0, vocab=1), "vocab 1"),
        (lambda: v.random_model(0, likeness=2), "likeness"),
        (lambda: v.tempered(P, -1), "temperature"),
    ],
)
def test_bad_calls_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_large_programs_are_refused():
    need("transport")
    with pytest.raises(ValueError, match="too many"):
        v.optimal_transport(np.full(50, 0.02), np.full(50, 0.02), 3)
