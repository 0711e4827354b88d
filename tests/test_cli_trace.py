"""kdtree trace info, validate and convert."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kdtree_cupy import convert, kdtr
from kdtree_cupy.cli import main

ARRAYS = ["draft_ids", "draft_logprobs", "sequence_offsets", "tokens"]


@pytest.fixture
def trace(tmp_path):
    """A small valid trace: two sequences, D = 2, K = 3; its header holds a terminal escape."""
    rng = np.random.default_rng(0)
    arrays = {
        "sequence_offsets": np.int32([0, 7, 12]),
        "tokens": rng.integers(0, 50, 12).astype(np.int32),
        "draft_ids": np.argsort(rng.random((12, 2, 50)), axis=-1)[..., :3].astype(np.uint16),
        "draft_logprobs": -np.sort(rng.random((12, 2, 3)).astype(np.float32), axis=-1),
    }
    path = tmp_path / "small.kdtr"
    kdtr.write(path, arrays, {"target": "a \x1b[31mred\x1b[0m model", "vocab_size": 50, "temperature": 0.0})
    return path


@pytest.fixture
def golden(tmp_path):
    """A sound KDTR file that is no trace."""
    path = tmp_path / "golden.kdtr"
    kdtr.write(path, {"path": np.int32([[0, 1, -1]]), "lse": np.float32(2.5)}, {"stage": "tree_accept"})
    return path


def damage(path) -> None:
    content = bytearray(path.read_bytes())
    content[-64] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".kdtr", ".npz", ".safetensors"])
def test_info_of_a_trace(trace, capsys, suffix):
    file = trace.with_name(f"copy{suffix}")
    assert main(["trace", "convert", str(trace), str(file)]) == 0
    capsys.readouterr()
    assert main(["trace", "info", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ARRAYS)
    assert "sequences: 2\n" in shown
    assert "\x1b" not in shown
    assert main(["trace", "info", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sorted(a["name"] for a in facts["arrays"]) == ARRAYS
    assert facts["header"]["vocab_size"] == 50
    assert (facts["trace"]["depth"], facts["trace"]["width"], facts["trace_fault"]) == (2, 3, None)


def test_info_of_other_arrays(golden, capsys):
    assert main(["trace", "info", str(golden), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["format"], facts["bytes"], facts["trace"]) == ("KDTR 1.0", golden.stat().st_size, None)
    shapes = {a["name"]: (a["dtype"], a["shape"], a["bytes"]) for a in facts["arrays"]}
    assert shapes == {"lse": ("float32", [], 4), "path": ("int32", [1, 3], 12)}
    assert all(a["offset"] % 64 == 0 and len(a["crc32"]) == 8 for a in facts["arrays"])
    assert main(["trace", "info", str(golden)]) == 0
    shown = capsys.readouterr().out
    assert "path  int32    [1, 3]  12 B" in shown
    assert "stage: tree_accept" in shown
    kdtr.write(golden, {})
    assert main(["trace", "info", str(golden)]) == 0
    assert capsys.readouterr().out.endswith("KDTR 1.0, 0 arrays, 64 B\nheader: empty\n")


def test_info_says_what_is_wrong_with_a_trace(trace, capsys):
    file = kdtr.read(trace)
    kdtr.write(trace, {**file.arrays, "tokens": np.full(12, 50, np.int32)}, file.header)
    assert main(["trace", "info", str(trace)]) == 0
    assert "as a trace it is not valid: " in capsys.readouterr().out


def test_validate_a_trace(trace, golden, capsys):
    assert main(["trace", "validate", str(trace)]) == 0
    assert capsys.readouterr().out == f"{trace}: valid trace: 2 sequences, 12 tokens, D = 2, K = 3\n"
    assert main(["trace", "validate", str(trace), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["valid"], facts["kind"], facts["summary"]["tokens"]) == (True, "trace", 12)
    assert main(["trace", "validate", str(golden)]) == 2
    assert "is missing: not a draft trace" in capsys.readouterr().err
    assert main(["trace", "validate", str(golden), "--container"]) == 0
    assert capsys.readouterr().out == f"{golden}: sound: 2 arrays, 16 B of data\n"


def test_validate_finds_damage(trace, golden, capsys):
    for file, array in ((trace, "tokens"), (golden, "path")):
        damage(file)
        assert main(["trace", "validate", str(file), "--container"]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"array '{array}': bytes" in shown.err
        assert main(["trace", "validate", str(file), "--container", "--json"]) == 2
        facts = json.loads(capsys.readouterr().out)
        assert facts["valid"] is False
        assert f"array '{array}'" in facts["error"]


def test_validate_finds_faults_of_the_schema(trace, capsys):
    file = kdtr.read(trace)
    for name, value, words in (
        ("tokens", np.full(12, 50, np.int32), "tokens[0] = 50"),
        ("draft_logprobs", np.zeros((12, 2, 4), np.float32), "draft_logprobs"),
        ("sequence_offsets", np.int32([0, 7, 13]), "sequence_offsets"),
    ):
        kdtr.write(trace.with_name("bad.kdtr"), {**file.arrays, name: value}, file.header)
        assert main(["trace", "validate", str(trace.with_name("bad.kdtr"))]) == 2
        assert words in capsys.readouterr().err


def test_convert(trace, capsys):
    target = trace.with_name("out.npz")
    assert main(["trace", "convert", str(trace), str(target)]) == 0
    assert capsys.readouterr().out.startswith(f"{target}: ")
    assert main(["trace", "convert", str(trace), str(target)]) == 2
    assert capsys.readouterr().err == f"Error: {target}: exists already (--force or force=True replaces it)\n"
    assert main(["trace", "convert", str(target), str(trace), "--force"]) == 0
    header, arrays = convert.read_arrays(target)
    assert (header, sorted(arrays)) == (kdtr.read(trace).header, ARRAYS)


def test_limit_of_an_archive(trace, tmp_path, capsys):
    np.savez_compressed(tmp_path / "big.npz", x=np.zeros(1 << 20, np.uint8))
    for command in (["info"], ["validate"], ["convert"]):
        extra = [str(tmp_path / "out.kdtr")] if command == ["convert"] else []
        arguments = ["trace", *command, str(tmp_path / "big.npz"), *extra, "--max-bytes", "1000K"]
        assert main(arguments) == 2
        assert "the limit is 1024000; if you trust the file" in capsys.readouterr().err
    assert main(["trace", "info", str(tmp_path / "big.npz"), "--max-bytes", "2MiB"]) == 0


@pytest.mark.parametrize("command", ["info", "validate"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.kdtr", None, "missing.kdtr: no such file"),
        ("empty.kdtr", b"", "empty.kdtr: is empty"),
        ("image.kdtr", b"\x89PNG\r\n\x1a\n" + bytes(40), "is no KDTR file but a PNG image"),
        ("image.npz", b"\x89PNG\r\n\x1a\n" + bytes(40), "is no .npz file but a PNG image"),
        ("text.txt", b"hello", "suffix '.txt', wanted one of .kdtr, .npz, .safetensors"),
        (".", None, "is a folder, wanted a file"),
    ],
)
def test_files_of_other_kinds(tmp_path, capsys, command, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["trace", command, str(tmp_path / name)]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.startswith("Error: ")
    assert len(shown.splitlines()) == 1
