"""TraceWriter: what is appended comes back, and no interruption loses or damages more than one sequence."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kdtree_cupy import kdtr
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.trace import load_trace
from kdtree_cupy.trace_writer import TraceWriter

HEADER = {"target": "toy", "drafter": "toy", "vocab_size": 50, "temperature": 0.0, "stop_tokens": [2]}
D, K, R = 3, 4, 2


def sequence(seed, n, dtype=np.float32, **more):
    """Return the arguments of one append."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((n, D, 50)), axis=2)[:, :, :K]
    logprobs = -np.sort(rng.exponential(2.0, (n, D, K)), axis=2)
    return {
        "tokens": rng.integers(0, 50, n),
        "draft_ids": ids,
        "draft_logprobs": logprobs.astype(dtype),
        **more,
    }


def with_everything(seed, n):
    rng = np.random.default_rng(100 + seed)
    out = sequence(seed, n, np.float16)
    return out | {
        "prompt_tokens": rng.integers(0, 50, 1 + seed),
        "target_ids": np.argsort(rng.random((n, 50)), axis=1)[:, :R],
        "target_logprobs": -np.sort(rng.exponential(1.0, (n, R)), axis=1).astype(np.float32),
        "draft_next_logprob": out["draft_logprobs"][:, :, -1] - np.float16(1),
    }


def assert_holds(path, sequences):
    """Assert that the trace holds exactly these sequences."""
    trace = load_trace(path)
    joined = {name: np.concatenate([s[name] for s in sequences]) for name in sequences[0]}
    assert trace.lengths.tolist() == [s["tokens"].size for s in sequences]
    np.testing.assert_array_equal(trace.tokens, joined["tokens"])
    np.testing.assert_array_equal(trace.draft_ids, joined["draft_ids"])
    np.testing.assert_array_equal(trace.draft_logprobs, joined["draft_logprobs"].astype(np.float32))
    for name in set(joined) - {"tokens", "draft_ids", "draft_logprobs", "draft_next_logprob"}:
        np.testing.assert_array_equal(trace.extra[name], joined[name])
    if "draft_next_logprob" in joined:
        np.testing.assert_array_equal(trace.draft_next_logprob, joined["draft_next_logprob"])
    assert not path.with_name(path.name + ".parts").exists()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return trace


@pytest.mark.parametrize("suffix", [".kdtr", ".npz", ".safetensors"])
def test_reloads_equal(tmp_path, suffix):
    path = tmp_path / f"run{suffix}"
    sequences = [sequence(s, n) for s, n in enumerate((5, 0, 1, 2, 7))]  # empty and one-token ones too
    with TraceWriter(path, HEADER) as writer:
        assert [writer.append(**s) for s in sequences] == [0, 1, 2, 3, 4]
        assert writer.sequences == 5
    trace = assert_holds(path, sequences)
    assert trace.header["schema"] == "kdtrace/1" and trace.header["stop_tokens"] == [2]
    assert trace.draft_ids.dtype == np.uint16


def test_optional_arrays_float16_and_vocabulary(tmp_path):
    path = tmp_path / "run.kdtr"
    sequences = [with_everything(s, n) for s, n in enumerate((4, 1, 3))]
    pieces = [b""] + [b" w%d" % i for i in range(1, 49)] + [b"\xc3"]
    with TraceWriter(path, HEADER, vocabulary=pieces) as writer:
        for one in sequences:
            writer.append(**one)
    trace = assert_holds(path, sequences)
    assert trace.extra["prompt_offsets"].tolist() == [0, 1, 3, 6]
    assert trace.precision > 2.0**-12  # float16 was noticed
    assert [trace.text(t) for t in (0, 1, 49)] == ["0", "' w1'", "'\\xc3'"]
    assert trace.decode([1, 0, 7]) == " w1<0> w7"


def test_large_vocabulary_takes_wide_ids(tmp_path):
    one = sequence(0, 3) | {"tokens": np.array([70000, 1, 2])}
    one["draft_ids"] = one["draft_ids"] + 70000
    with TraceWriter(tmp_path / "a.kdtr", HEADER | {"vocab_size": 128256}) as writer:
        writer.append(**one)
    assert load_trace(tmp_path / "a.kdtr").draft_ids.dtype == np.uint32


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from kdtree_cupy.trace_writer import TraceWriter
from test_trace_writer import HEADER, sequence
writer = TraceWriter({path!r}, HEADER)
for s in range(3):
    writer.append(**sequence(s, 4))
def die(*args):
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
{patch}
writer.{action}
"""


DIE_REMOVING = """from pathlib import Path
unlink = Path.unlink
Path.unlink = lambda path, *args: die() if path.name == "000001.kdtr" else unlink(path, *args)
"""  # parts half removed


@pytest.mark.parametrize(
    ("action", "patch", "kept"),
    [
        ("append(**sequence(3, 4))", "os.fsync = die", 3),  # before the part is whole
        ("append(**sequence(3, 4))", "from pathlib import Path; Path.replace = die", 3),
        ("append(**sequence(3, 4)); die()", "pass", 4),
        ("close()", "os.fsync = die", 3),  # while the trace is joined
        ("close()", "from pathlib import Path; Path.rename = die", 3),  # trace in place, parts still there
        ("close()", DIE_REMOVING, None),
    ],
)
def test_killed_process_loses_at_most_the_sequence_in_flight(tmp_path, action, patch, kept):
    path = tmp_path / "run.kdtr"
    code = KILLED.format(
        tests=str(Path(__file__).parent),
        path=str(path),
        action=action,
        patch=patch,
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL and "dying" in done.stdout, done.stderr
    if kept is None:  # the recording was over
        assert load_trace(path).sequences == 3
        with pytest.raises(FileExistsError, match="overwrite=True"):
            TraceWriter(path, HEADER)
        kept = 0
    with TraceWriter(path, HEADER, overwrite=kept == 0) as writer:
        assert writer.sequences == kept
        for s in range(kept, 6):
            writer.append(**sequence(s, 4))
    assert_holds(path, [sequence(s, 4) for s in range(6)])


def test_interrupt_keeps_the_parts_and_continues(tmp_path):
    path = tmp_path / "run.kdtr"
    with pytest.raises(KeyboardInterrupt), TraceWriter(path, HEADER) as writer:
        writer.append(**sequence(0, 4))
        raise KeyboardInterrupt
    assert not path.exists()
    with pytest.raises(ValueError, match="closed"):
        writer.append(**sequence(1, 4))
    with TraceWriter(path, HEADER) as writer:
        assert writer.sequences == 1
        writer.append(**sequence(1, 2))
    assert_holds(path, [sequence(0, 4), sequence(1, 2)])


@pytest.mark.parametrize("when", ["append", "close"])
def test_full_disk_leaves_everything_before_it(tmp_path, monkeypatch, when):
    path = tmp_path / "run.kdtr"
    writer = TraceWriter(path, HEADER)
    writer.append(**sequence(0, 4))

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            writer.append(**sequence(1, 4)) if when == "append" else writer.close()
    assert caught.value.errno == errno.ENOSPC
    assert not path.exists() and writer.sequences == 1
    writer.append(**sequence(1, 4))  # there is space again
    writer.close()
    writer.close()
    assert_holds(path, [sequence(0, 4), sequence(1, 4)])


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
