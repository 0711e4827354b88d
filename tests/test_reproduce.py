"""Published numbers: every one agrees, and a number that does not is noticed."""

from __future__ import annotations

import json

import pytest

from kdtree_cupy import positional, published
from kdtree_cupy import reproduce as module
from kdtree_cupy.cli import main
from kdtree_cupy.reproduce import CHECKS, Row, reproduce


@pytest.mark.parametrize("name", CHECKS)
def test_published_numbers_agree(name):
    rows = reproduce(name)
    assert rows
    wrong = [f"{row.name}: published {row.published}, ours {row.ours}" for row in rows if not row.agrees]
    assert not wrong, "\n".join(wrong)


def test_only_what_hangs_on_unknown_input_is_a_bound():
    bounds = [row.name for row in reproduce("all") if isinstance(row.ours, list) and row.note]
    assert bounds == [
        *(f"sequoia: F(128), {levels} levels" for levels in (3, 4, 5)),
        *(f"caddtree: context {context}: tokens/s" for context in (1000, 4000, 8000)),
    ]


def test_headline_numbers():
    rows = {row.name: row for row in reproduce("all")}
    assert rows["sequoia: demo tree: speedup"].published == 2.045921
    assert rows["leviathan: acceptance 0.8, 4 drafts: tokens"].published == 3.3616
    assert rows["traversal: sequence level"].published == 0.667
    assert rows["ddtree: Fig. 3: best budget"].ours == 512
    assert rows["caddtree: context 1000: best budget"].ours == 128
    assert rows["medusa: 7b: E[len] of mc_sim_7b_63"].published == 2.34


@pytest.mark.parametrize(
    ("row", "agrees"),
    [
        (Row("x", 0.667, 2 / 3, 3), True),
        (Row("x", 0.667, 0.6676, 3), False),
        (Row("x", [1, 2], [1, 2], 0), True),
        (Row("x", [1, 2], [2, 1], 0), False),
        (Row("x", 1.5, [1.0, 2.0], 1), True),
        (Row("x", 2.2, [1.0, 2.0], 1), False),
    ],
)
def test_agreement_means_the_printed_digits(row, agrees):
    assert row.agrees is agrees


def test_json(capsys):
    assert main(["reproduce", "sequoia", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"name", "published", "ours", "digits"} <= set(rows[0])
    assert len(rows) == len(reproduce("sequoia"))


def test_a_number_that_differs_is_named(capsys, monkeypatch):
    monkeypatch.setitem(module.CHECKS, "leviathan", lambda: iter([Row("tokens", 3.3616, 3.4, 4)]))
    assert main(["reproduce", "leviathan"]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERS" in shown and "0 of 1" in shown


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reproduce("medusaa"), "wanted all or one of ddtree"),
        (lambda: published.load("nothing"), "wanted one of caddtree"),
        (lambda: published.medusa_choices("mc_sim"), "wanted one of mc_sim_7b_63"),
        (lambda: positional.grow_greedily([[0.5, 1.5]], 3), "values in"),
        (lambda: positional.grow_greedily([0.5], -1), "nodes: got -1"),
        (lambda: positional.depth_table([[0.5]], 4, 4), "vector: got shape"),
        (lambda: positional.depth_table([0.5], 0, 4), "nodes 0"),
        (lambda: positional.best_tree(positional.depth_table([0.5], 8, 3), 8, 3), "do not fit"),
        (lambda: positional.hardware_optimum(positional.depth_table([0.5], 4, 4), {2: 1.0}, 0.1), "1 node"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_name_on_the_command_line(capsys):
    assert main(["reproduce", "sequoya"]) == 2
    assert "wanted all or one of" in capsys.readouterr().err
