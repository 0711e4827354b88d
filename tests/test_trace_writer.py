"""TraceWriter: what is appended comes back, and no interruption loses or damages more than one sequence."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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


def test_a_block_whose_close_fails_lets_go_of_the_recording(tmp_path, monkeypatch):
    path = tmp_path / "run.kdtr"

    def gone(fd):
        raise OSError(errno.EIO, "disk gone")

    with pytest.raises(OSError, match="gone"), TraceWriter(path, HEADER) as writer:
        writer.append(**sequence(0, 4))
        monkeypatch.setattr(os, "fsync", gone)
    monkeypatch.undo()
    TraceWriter(path, HEADER).close()
    assert_holds(path, [sequence(0, 4)])


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
