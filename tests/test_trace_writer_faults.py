"""TraceWriter: what it refuses, and that a refusal leaves the recording as it was."""

import numpy as np
import pytest
from test_trace_writer import HEADER, sequence

from kdtree_cupy import kdtr
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.trace_writer import TraceWriter


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 51}, "header field 'vocab_size': got 51, but the recording in .* with 50"),
        ({"seed": 1}, "header field 'seed': got 1, but .* started with nothing"),
        ({"width": 4}, "header field 'width': got 4"),
    ],
)
def test_another_header_is_refused(tmp_path, change, message):
    path = tmp_path / "run.kdtr"
    writer = TraceWriter(path, HEADER)
    writer.append(**sequence(0, 4))
    writer._parts.release()
    with pytest.raises(ValueError, match=message):
        TraceWriter(path, HEADER | change)
    with pytest.raises(ValueError, match="vocab_bytes: differs"):
        TraceWriter(path, HEADER, vocabulary=[b"x"] * 50)
    with TraceWriter(path, HEADER) as writer:  # the refusals left everything as it was
        assert writer.sequences == 1


def test_layout_is_that_of_the_first_sequence(tmp_path):
    writer = TraceWriter(tmp_path / "run.kdtr", HEADER)
    writer.append(**sequence(0, 4))
    half = sequence(1, 4, np.float16)
    with pytest.raises(
        ValueError, match=r"sequence 1: draft_logprobs: got float16 \[n, 3, 4\], wanted float32"
    ):
        writer.append(**half)
    narrow = sequence(1, 4)
    narrow["draft_ids"], narrow["draft_logprobs"] = (
        narrow["draft_ids"][:, :2],
        narrow["draft_logprobs"][:, :2],
    )
    with pytest.raises(ValueError, match=r"draft_ids: got uint16 \[n, 2, 4\], wanted uint16 \[n, 3, 4\]"):
        writer.append(**narrow)
    with pytest.raises(ValueError, match=r"prompt_tokens: got int32 \[n\], wanted no such array"):
        writer.append(**sequence(1, 4, prompt_tokens=np.array([1])))
    assert writer.sequences == 1


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("draft_logprobs", (2, 1, 3), np.nan, r"sequence 1: draft_logprobs\[2, 1, 3\] = nan is not a number"),
        ("draft_logprobs", (0, 0, 0), 0.5, r"sequence 1: draft_logprobs\[0, 0, 0\] = 0.5 is above 0"),
        ("draft_ids", (1, 2, 0), 50, r"sequence 1: draft_ids\[1, 2, 0\] = 50, wanted 0..49"),
        ("tokens", (3,), -1, r"sequence 1: tokens\[3\] = -1, wanted 0..49"),
    ],
)
def test_bad_values_are_named_and_not_stored(tmp_path, name, at, value, message):
    writer = TraceWriter(tmp_path / "run.kdtr", HEADER)
    writer.append(**sequence(0, 4))
    bad = sequence(1, 4)
    bad[name][at] = value
    with pytest.raises(KdtrError, match=message):
        writer.append(**bad)
    assert writer.sequences == 1


def test_wrong_kinds_of_arrays(tmp_path):
    writer = TraceWriter(tmp_path / "run.kdtr", HEADER)
    with pytest.raises(KdtrError, match="'draft_logprobs': got float64, wanted float32"):
        writer.append(**sequence(0, 4, np.float64))
    with pytest.raises(KdtrError, match=r"'draft_ids': got shape \(3, 3, 4\), wanted \[4, depth, width\]"):
        writer.append(**sequence(0, 4) | {"draft_ids": sequence(0, 3)["draft_ids"]})
    with pytest.raises(KdtrError, match="target_ids and target_logprobs: one without the other"):
        writer.append(**sequence(0, 4, target_ids=np.zeros((4, 2), int)))
    with pytest.raises(ValueError, match="no sequence was appended"):
        writer.close()


def test_foreign_or_damaged_folders_are_refused(tmp_path):
    path = tmp_path / "run.kdtr"
    with pytest.raises(ValueError, match=r"suffix '\.bin'"):
        TraceWriter(tmp_path / "run.bin", HEADER)
    with pytest.raises(KdtrError, match="'vocab_size': got 0"):
        TraceWriter(path, HEADER | {"vocab_size": 0})
    assert not list(tmp_path.iterdir())
    writer = TraceWriter(path, HEADER)
    for s in range(3):
        writer.append(**sequence(s, 4))
    with pytest.raises(OSError, match="another writer is recording there"):
        TraceWriter(path, HEADER)
    writer._parts.release()
    folder = tmp_path / "run.kdtr.parts"
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(KdtrError, match=r"notes.txt: is no part of a recording"):
        TraceWriter(path, HEADER)
    (folder / "notes.txt").unlink()
    data = bytearray((folder / "000002.kdtr").read_bytes())
    data[-100] ^= 1
    (folder / "000002.kdtr").write_bytes(data)
    with pytest.raises(KdtrError, match=r"000002.kdtr.* corrupt"):
        TraceWriter(path, HEADER)
    (folder / "000001.kdtr").unlink()
    with pytest.raises(KdtrError, match=r"000001.kdtr: is missing"):
        TraceWriter(path, HEADER)


def test_many_parts_stay_in_order(tmp_path):
    writer = TraceWriter(tmp_path / "run.kdtr", HEADER)
    writer.append(**sequence(0, 4))
    part = kdtr.read(writer._parts.folder / "000000.kdtr", mmap=False).arrays
    writer._parts.count = 999_999
    for _ in range(2):
        writer._parts.add("here", part)
    names = sorted(entry.name for entry in writer._parts.folder.iterdir())
    assert names == ["000000.kdtr", "1000000.kdtr", "999999.kdtr", "header.kdtr", "lock"]
