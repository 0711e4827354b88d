"""Importers: conventions converted and stated; nothing in a pickle runs; bad files are named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch_files
from tiny import tiny_arrays

from kdtree_cupy import importers, kdtr, study_report
from kdtree_cupy.cli import main
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.importers.torch_file import read_torch
from kdtree_cupy.policies import POLICIES
from kdtree_cupy.policies.fan_out import fan_out_caps

RUN = {
    "baseline": [[1, 1], [1]],
    "dflash": [[3, 5, 1], [2, 2]],
    "ddtree_tb16": [[4, 5], [2, 4]],
    "ddtree_tb64": [[9], [6]],
}


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.pt"
    torch_files.write(path, torch_files.run_value(RUN))
    return path


def put(tmp_path, value, name="r.json"):
    path = tmp_path / name
    text = "\n".join(map(json.dumps, value)) if name.endswith("l") else json.dumps(value)
    path.write_text(text)
    return path


def test_ddtree_run(run_file):
    runs = {m.name: m for m in importers.load_measured(run_file)}
    assert list(runs) == ["dflash", "ddtree_tb16", "ddtree_tb64"]
    assert (runs["dflash"].budget, runs["ddtree_tb16"].budget) == (None, 16)
    assert runs["dflash"].tau_pooled == pytest.approx(13 / 5)
    assert runs["dflash"].tau_mean == pytest.approx((3 + 2) / 2)  # mean over responses of their means
    assert runs["dflash"].counts.tolist() == [0, 1, 2, 1, 0, 1]
    assert "count the bonus" in runs["dflash"].convention
    assert runs["dflash"].facts["block_size"] == 16


def test_tensors_and_plain_values_come_back(run_file, tmp_path):
    response = read_torch(run_file)["responses"][0]["dflash"]
    np.testing.assert_array_equal(response.output_ids, np.arange(6).reshape(1, 6))
    assert response.time_per_output_token == 0.01
    value = {"f": torch_files.Tensor(np.float32([[1.5, -2]])), "n": {"a": [1, (2, "x")], "b": None}}
    torch_files.write(tmp_path / "v.pt", value)
    back = read_torch(tmp_path / "v.pt")
    assert back["n"] == {"a": [1, (2, "x")], "b": None}
    np.testing.assert_array_equal(back["f"], [[1.5, -2]])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_bytes(b"PK"), "not a readable torch file"),
        (lambda p: torch_files.write(p, torch_files.run_value(RUN), truncate=8), "storage 0"),
        (lambda p: torch_files.write(p, torch_files.run_value(RUN), compress=True), "compressed"),
        (lambda p: torch_files.write_zip(p, b"\x80\x02}q"), "not a readable torch file"),
        (lambda p: torch_files.write(p, [1, 2]), "not a DDTree run"),
        (lambda p: torch_files.write(p, {"responses": []}), "not a DDTree run"),
        (lambda p: torch_files.write(p, {"responses": [{"dflash": 3}]}), "no method with"),
        (lambda p: torch_files.write(p, torch_files.run_value({"dflash": [[-1]]})), "acceptance_lengths"),
        (lambda p: torch_files.write(p, torch_files.run_value({"dflash": [["a"]]})), "acceptance_lengths"),
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a folder"),
    ],
)
def test_bad_run_files_are_named(tmp_path, make, words):
    path = tmp_path / "bad.pt"
    make(path)
    with pytest.raises(KdtrError, match=words) as caught:
        importers.load_measured(path)
    assert "bad.pt" in str(caught.value)


def test_sglang_histogram_gets_its_bonus(tmp_path):
    """H[n] counts verify steps that accepted n drafts: [2, 0, 3] is 2 rounds of 1 token and 3 of 3."""
    responses = [
        {"text": "a", "meta_info": {"spec_verify_ct": 5, "spec_accept_histogram": [2, 0, 3]}},
        {"meta_info": {"spec_accept_histogram": [9], "spec_correct_drafts_histogram": [1]}},
    ]
    for name in ("r.json", "r.jsonl"):
        (one,) = importers.load_measured(put(tmp_path, responses, name))
        assert one.system == "SGLang" and "one was added" in one.convention
        assert one.tau_pooled == pytest.approx((2 * 1 + 3 * 3 + 1) / 6)
        assert one.tau_mean == pytest.approx((11 / 5 + 1) / 2)
        assert one.counts.tolist() == [0, 3, 0, 3]


@pytest.mark.parametrize("histogram", [{"0": 2, "2": 2}, [2, 0, 2]])
def test_vllm_and_aiperf_histograms(tmp_path, histogram):
    stats = {"mean_acceptance_length": 2.0, "acceptance_histogram": histogram, "num_spec_steps": 4}
    (one,) = importers.load_measured(put(tmp_path, {"metrics": {"speculative_decoding": stats}}))
    assert one.tau_pooled == 2.0 and one.rounds.tolist() == [4]
    stats["mean_acceptance_length"] = 1.0  # a file that does not count the bonus in its mean either
    with pytest.raises(KdtrError, match="unknown convention"):
        importers.load_measured(put(tmp_path, stats))


def test_answers_of_eagle_and_medusa(tmp_path):
    """idxs are indices of the last step: (9 + 1) + (4 + 1) rounds."""
    answers = [
        {"question_id": 1, "choices": [{"idxs": [9, 4], "new_tokens": [25, 11], "wall_time": [1.0, 1.0]}]},
        {"question_id": 2, "choices": [{"idxs": [1], "new_tokens": [6]}]},
    ]
    (one,) = importers.load_measured(put(tmp_path, answers, "vicuna.jsonl"))
    assert one.rounds.tolist() == [15, 2] and one.tokens.tolist() == [36, 6]
    assert one.tau_pooled == pytest.approx(42 / 17) and one.tau_mean == pytest.approx((36 / 15 + 3) / 2)
    assert one.counts is None and "idxs + 1" in one.convention


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "wanted responses of SGLang"),
        ([1, 2], "wanted responses of SGLang"),
        ({"spec_accept_histogram": "abc"}, "wanted counts"),
        ({"spec_accept_histogram": [1, -1]}, "wanted counts"),
        ({"spec_accept_histogram": [1.5]}, "wanted counts"),
        ({"acceptance_histogram": {"-1": 2}}, "wanted counts"),
        ({"acceptance_histogram": {"99999999": 2}}, "wanted counts"),
        ({"acceptance_histogram": {"a": 2}}, "wanted counts"),
        ({"spec_accept_histogram": [0, 0]}, "no request with a verify step"),
        ({"idxs": [1, 2], "new_tokens": [3]}, "as many"),
        ({"idxs": ["a"], "new_tokens": [3]}, "wanted numbers"),
    ],
)
def test_bad_json_is_named(tmp_path, value, words):
    with pytest.raises(KdtrError, match=words):
        importers.load_measured(put(tmp_path, value))


@pytest.mark.parametrize(
    ("text", "words"),
    [(b'{"a": 1}\n{"b": \n', "line 2"), (b"\xff\xfe\x00", "not UTF-8"), (b"[" * 100_000, "not JSON")],
    ids=["cut", "binary", "deep"],
)
def test_text_that_is_no_json(tmp_path, text, words):
    (tmp_path / "r.jsonl").write_bytes(text)
    with pytest.raises(KdtrError, match=words):
        importers.load_measured(tmp_path / "r.jsonl")


def test_jetspec_profile(tmp_path):
    """100 rounds; 80 paths reach depth 1 (60 at rank 0, 20 at rank 1), 30 of them depth 2."""
    counts = {"presence_counts": [[100, 100], [160, 160]], "accepted_counts": [[60, 20], [24, 6]]}
    table = (np.array(counts["accepted_counts"]) / counts["presence_counts"]).tolist()
    profile = importers.load_profile(put(tmp_path, {"depth_rank_accept": table, "meta": counts}))
    np.testing.assert_allclose(profile.conditional, [[0.6, 0.2], [0.3, 0.075]])
    assert fan_out_caps(profile.conditional, 0.1).tolist() == [2, 1]
    rows = np.log(np.float32([[[0.5, 0.4], [0.5, 0.4]]]))
    ids = np.zeros(rows.shape, np.int32)
    assert POLICIES["static"](ids, rows, [1], 3, table=profile.conditional).counts[0] == 4
    other = importers.load_profile(put(tmp_path, {"depth_rank_accept": table}))
    assert other.conditional is None and "expanded parents" in other.meaning


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "not a JetSpec profile"),
        ({"depth_rank_accept": [[1.5]]}, "outside"),
        ({"depth_rank_accept": [[0.5], [0.1, 0.2]]}, "one length"),
        ({"depth_rank_accept": [0.5]}, r"\[depth, rank\]"),
        (
            {"depth_rank_accept": [[0.5]], "meta": {"presence_counts": [[1]], "accepted_counts": [[2]]}},
            "do not fit",
        ),
    ],
)
def test_bad_profiles_are_named(tmp_path, value, words):
    with pytest.raises(KdtrError, match=words):
        importers.load_profile(put(tmp_path, value))


def test_overlays_in_the_study(tmp_path, run_file, capsys, monkeypatch):
    wanted = [f for f in study_report.FIGURES if f[0] in ("tau", "histogram")]
    monkeypatch.setattr(study_report, "FIGURES", wanted)
    trace = tmp_path / "t.kdtr"
    kdtr.write(trace, tiny_arrays(), {"vocab_size": 12})
    answers = put(tmp_path, [{"idxs": [9], "new_tokens": [25]}], "$eagle$.jsonl")
    command = ["study", str(trace), "--no-shootout", "-b", "4,8", "-o", str(tmp_path / "out")]
    assert main([*command, "--overlay", str(run_file), "--overlay", str(answers)]) == 0
    assert "DDTree ddtree_tb16: tau 3.750" in capsys.readouterr().out
    assert "Overlay: EAGLE/Medusa" in (tmp_path / "out" / "report.html").read_text()
    assert main([*command, "--overlay", str(tmp_path / "none.pt")]) == 2
    assert "no such file" in capsys.readouterr().err
