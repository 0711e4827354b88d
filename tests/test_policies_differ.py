"""Where each policy differs from ddtree, pinned; and the setting that makes it ddtree again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from oracles import all_paths
from policy_cases import arguments, case, paths_of
from strategies import random_table

from kdtree_cupy import positional, published
from kdtree_cupy.policies import POLICIES, chain, ddtree
from kdtree_cupy.policies.caddtree import expected_by_budget, round_costs
from kdtree_cupy.policies.calibrated import tempered_rows
from kdtree_cupy.policies.fan_out import fan_out_caps
from kdtree_cupy.policies.longrun import long_run_rate

ROWS = np.log(np.float32([[[0.6, 0.3, 0.05], [0.46, 0.25, 0.17], [0.8, 0.1, 0.05]]]))
"""One request, three depths, three ranks: ddtree's first nodes are 0, 1, 00, 000, 01, 10."""


def build(name, budget, rows=ROWS, **options):
    """Return the rank paths as strings of digits."""
    tree = POLICIES[name](*arguments(rows), budget, **options)
    return ["".join(map(str, path)) for path in paths_of(tree)]


def same_as_ddtree(name, **options):
    for seed, budget in itertools.product(range(4), (1, 7, 30)):
        rows = random_table(seed, 4, 5, 6)
        got, wanted = (
            POLICIES[n](*arguments(rows), budget, **o) for n, o in ((name, options), ("ddtree", {}))
        )
        for b in range(4):
            assert paths_of(got, b) == paths_of(wanted, b)


def test_ddtree_itself():
    assert build("ddtree", 6) == ["0", "1", "00", "000", "01", "10"]


def test_kary_is_level_by_level():
    assert build("kary", 6) == ["0", "1", "00", "01", "10", "11"]
    assert build("kary", 3, fan_out=1) == build("chain", 3)


def test_accum_logp_admits_all_children_at_once():
    assert build("accum_logp", 6) == ["0", "1", "2", "00", "01", "02"]
    mass = [
        np.exp(case(n, 6, 9)(*arguments(random_table(1, 8, 6, 9)), 12).scores[:, 1:]).sum()
        for n in ("accum_logp", "ddtree")
    ]
    assert mass[0] < mass[1]


def test_edge_keeps_eight_ranks_and_float32():
    flat = np.full((1, 1, 20), np.log(0.05), np.float32)
    assert len(build("edge", 20, flat)) == 8 and len(build("ddtree", 20, flat)) == 20
    differs = 0
    for seed in range(40):
        rows = np.tile(
            random_table(seed, 1, 1, 8), (1, 4, 1)
        )  # equal rows: sums tie in float32, not in float64
        differs += build("edge", 100, rows) != build("ddtree", 100, rows)
    assert differs > 0
    same_as_ddtree("edge")


def test_depth_bonus_goes_deeper_and_stops_early():
    assert build("depth_bonus", 3) == ["0", "00", "000"]  # a budget of D: the chain
    assert build("depth_bonus", 4, bonus=0.2)[:3] == ["0", "00", "000"]
    peaked = np.log(np.float32([[[0.97, 0.01, 0.005]] * 3])).reshape(1, 3, 3)
    assert len(build("depth_bonus", 12, peaked)) < 12 == len(build("ddtree", 12, peaked))
    assert max(int(c) for path in build("depth_bonus", 4) for c in path) <= 1  # K = 2 for B // D = 1


def test_padding_fills_the_rows_that_the_floor_left():
    peaked = np.log(np.float32([[[0.97, 0.01, 0.005]] * 3])).reshape(1, 3, 3)
    short, full = build("depth_bonus", 5, peaked), build("padded", 5, peaked)
    assert full[: len(short)] == short
    assert full[len(short) :] == ["1", "2"][: 5 - len(short)] and len(full) > len(short)
    assert build("padded", 4, base=ddtree) == build("ddtree", 4)


def test_spine_comes_first():
    rows = random_table(2, 1, 5, 6)
    assert build("spine", 4, rows) == ["0", "00", "000", "0000"]
    got, wanted = build("spine", 12, rows), build("ddtree", 12, rows)
    assert got[:5] == ["0" * d for d in range(1, 6)]
    off = [path for path in wanted if set(path) != {"0"}]
    assert got[5:] == off[:7]
    assert "00000" not in build("ddtree", 5, rows)


def test_fan_out_caps_ranks_by_depth():
    assert build("fan_out", 6, caps=[1, 3, 1]) == ["0", "00", "000", "01", "010", "02"]
    same_as_ddtree("fan_out", caps=[6] * 5)
    assert fan_out_caps([[0.5, 0.2, 0.001], [0.001, 0.9, 0.9]]).tolist() == [2, 1]
    with pytest.raises(ValueError, match="threshold"):
        fan_out_caps([[0.5]], 2.0)


def test_medusa_is_its_list_whatever_the_rows_say():
    rows = random_table(4, 2, 5, 12)
    for b in range(2):
        assert paths_of(POLICIES["medusa"](*arguments(rows), 63), b) == published.medusa_choices(
            "mc_sim_7b_63"
        )
    assert len(build("medusa", 200, rows[:1])) == 63
    accuracy = np.array([[0.6, 0.2, 0.1]] * 3)
    grown = ["".join(map(str, p)) for p in positional.grow_greedily(accuracy, 9)]
    assert build("medusa", 9, accuracy=accuracy) == grown
    assert len(build("medusa", 25, random_table(0, 1, 5, 12), choices="eagle_25")) == 25


def test_sequoia_is_one_shape_and_looks_past_a_dip():
    shapes = {tuple(build("sequoia", 9, random_table(s, 1, 4, 3), vector=[0.6, 0.2, 0.1])) for s in range(5)}
    assert len(shapes) == 1
    assert "2" in build("sequoia", 3, vector=[0.3, 0.0, 0.29], levels=2)
    vector = np.array(published.load("sequoia")["acceptance_counts"]) / 667
    rows = random_table(0, 1, 12, 16)
    assert build("sequoia", 3, rows, vector=vector) == ["0", "00", "000"]  # the published demo tree
    times = {int(n): t for n, t in published.load("sequoia")["target_time"].items()}
    best = build("sequoia", 31, rows, vector=vector, levels=10, target_time=times, draft_time=0.3)
    assert best == ["0", "00", "000"]  # and the size that its optimiser chose


def test_beam_cuts_what_it_did_not_carry_on():
    same_as_ddtree("beam", top_k=64)
    rows = random_table(1, 1, 6, 16)
    got, wanted = set(build("beam", 120, rows, top_k=3)), set(build("ddtree", 120, rows))
    assert max(int(p[0]) for p in got) <= 2 < max(int(p[0]) for p in wanted)
    assert max(np.unique([len(p) for p in got], return_counts=True)[1]) <= 9  # top_k squared


def test_opt_tree_stops_where_a_layer_gains_too_little():
    same_as_ddtree("opt_tree", threshold=0.0)
    rows = random_table(0, 1, 6, 8)
    deep, shallow = build("ddtree", 30, rows), build("opt_tree", 30, rows, threshold=0.5)
    assert max(map(len, shallow)) < max(map(len, deep))
    assert max(map(len, build("opt_tree", 30, rows, threshold=9.0))) == 1


def test_calibration_spreads_an_overconfident_drafter():
    same_as_ddtree("calibrated", temperatures=[1.0] * 5)
    hot = build("calibrated", 6, temperatures=[3.0, 3.0, 3.0])
    assert sum(len(p) == 1 for p in hot) > sum(len(p) == 1 for p in build("ddtree", 6))
    rows = random_table(0, 1, 5, 8)
    warm = tempered_rows(rows, np.full(5, 2.0))
    assert (np.diff(warm) <= 0).all() and (warm <= 0).all() and (np.exp(warm).sum(-1) < 1.0 + 1e-6).all()


def test_conditioning_avoids_what_follows_a_second_choice():
    same_as_ddtree("conditioned", gains=np.ones((5, 4)))
    gains = np.tile([1.0, 0.1, 0.1, 0.1], (3, 1))
    assert build("conditioned", 6, gains=gains) == ["0", "1", "00", "000", "01", "02"]


@pytest.mark.parametrize("context", [1, 1000, 4000, 8000])
@pytest.mark.parametrize("seed", range(3))
def test_caddtree_stop_is_the_full_scan_for_convex_costs(seed, context):
    rows = random_table(seed, 20, 8, 16)
    tree = ddtree(*arguments(rows), 512)
    theta = (1 + expected_by_budget(tree)) / round_costs("caddtree-a800-8b", 512, context)
    stopped = POLICIES["caddtree"](*arguments(rows), 512, context=context)
    best = theta[np.arange(20), stopped.counts - 1]
    assert (best >= theta.max(1) * (1 - 5e-3)).all()  # the printed curves are convex up to their rounding
    if context == 8000:
        assert (stopped.counts < tree.counts).all()


def test_caddtree_stops_short_at_a_step_and_longrun_does_not():
    from kdtree_cupy.cost import CostTable

    nodes = np.array([1.0, 2, 3, 64])
    times = np.array([[1.0, 2.0, 2.0, 2.0]])  # the second node starts a new tile; the others in it are free
    steps = CostTable("steps", "measured", "", "", "", "", nodes, np.zeros(1), times, np.array([1.0]))
    rows = np.log(np.full((1, 8, 2), 0.5, np.float32))
    assert POLICIES["caddtree"](*arguments(rows), 64, cost=steps).counts[0] == 2
    assert POLICIES["longrun"](*arguments(rows), 64, cost=steps, rate=1.5).counts[0] == 65


def test_one_price_for_all_rounds_beats_each_round_s_own_ratio():
    rows = np.concatenate([random_table(s, 10, 8, 16) for s in range(4)])
    phi = expected_by_budget(ddtree(*arguments(rows), 256))
    costs = round_costs("caddtree-a800-8b", 256, 8000)
    rate = long_run_rate(phi, costs)
    ratios = []
    for name, options in (("longrun", {"rate": rate}), ("caddtree", {})):
        tree = POLICIES[name](*arguments(rows), 256, context=8000, **options)
        n = tree.counts - 1
        ratios.append((1 + phi[np.arange(len(rows)), n]).sum() / costs[n].sum())
    assert ratios[0] == pytest.approx(rate)
    assert ratios[0] > ratios[1]
    fixed = ((1 + phi).sum(0) / (len(rows) * costs)).max()
    assert rate >= fixed
    with pytest.raises(ValueError, match="costs"):
        long_run_rate(phi, costs[:-1])


def test_no_policy_of_the_same_rows_has_more_mass_than_ddtree():
    """Proposition 2: at equal B nothing beats the B best paths in expected acceptance."""
    rows = random_table(6, 3, 4, 5)
    for budget in (4, 11, 30):
        best = [np.exp(-np.array([c for c, _ in all_paths(r)][:budget])).sum() for r in rows]
        for name in POLICIES:
            tree = case(name, 4, 5)(*arguments(rows), budget)
            for b in range(3):
                mass = sum(
                    np.exp(sum(float(rows[b, d, r]) for d, r in enumerate(p))) for p in paths_of(tree, b)
                )
                assert mass <= best[b] + 1e-9, name
    assert paths_of(chain(*arguments(rows), 4)) == [(0,) * d for d in range(1, 5)]
