"""Do two recordings of the same prompts agree? Tokens, the drafter's ranks, the target's log-probs.

    python benchmarks/compare_traces.py OLD.npz NEW.kdtr [OLD NEW ...] --out wide_traces.json

Compares tokens sequence by sequence up to the first that differs, and over the common positions and ranks the
drafter's ids and log-probs and the target's.  A drafter whose weights were rounded in between gives slightly
other log-probs, and then neighbours of nearly equal log-prob change places: ``same_rank`` counts ids at their
old rank, ``same_set`` ids that are among the old ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kdtree_cupy.timing import machine
from kdtree_cupy.trace import load_trace


def common(old, new):
    """Return the positions of both traces that follow the same text, and sequences that are the same."""
    places, equal = [], 0
    for s in range(old.sequences):
        a, b = (one.tokens[one.sequence_offsets[s] : one.sequence_offsets[s + 1]] for one in (old, new))
        size = min(a.size, b.size)
        differing = np.flatnonzero(a[:size] != b[:size])
        equal += a.size == b.size and not differing.size
        count = int(differing[0]) if differing.size else size
        starts = (int(one.sequence_offsets[s]) for one in (old, new))
        places.append(np.stack([start + np.arange(count) for start in starts], axis=1))
    return np.concatenate(places), equal


def shares(old_ids, new_ids, old_lp, new_lp):
    """Return how many ids keep their rank or stay in the set, and the differences of log-probs by rank."""
    width = old_ids.shape[-1]
    old_ids, new_ids = (ids.astype(np.int64).reshape(-1, width) for ids in (old_ids, new_ids[..., :width]))
    row = np.arange(len(old_ids))[:, None] << 32
    inside = np.isin((row + new_ids).ravel(), (row + old_ids).ravel())
    gap = np.abs(old_lp.astype(float) - new_lp[..., :width])
    return {
        "same_rank": float((old_ids == new_ids).mean()),
        "same_set": float(inside.mean()),
        "same_first": float((old_ids[:, 0] == new_ids[:, 0]).mean()),
        "largest_logprob_difference": float(gap.max()),
        "mean_logprob_difference": float(gap.mean()),
    }


def compare(old_path, new_path):
    """Return the comparison of two files."""
    old, new = load_trace(old_path), load_trace(new_path)
    if old.sequences != new.sequences:
        raise SystemExit(f"{new_path}: {new.sequences} sequences, {old_path} has {old.sequences}")
    places, equal = common(old, new)
    a, b = places.T
    row = {"trace": Path(old_path).stem, "new_bytes": Path(new_path).stat().st_size}
    row |= {"old_width": old.draft_ids.shape[-1], "new_width": new.draft_ids.shape[-1]}
    row |= {"sequences": old.sequences, "equal_sequences": equal}
    row |= {"tokens": len(old.tokens), "equal_tokens": len(a)}
    pairs = {"drafter": ("draft_ids", "draft_logprobs"), "target": ("target_ids", "target_logprobs")}
    for name, (ids, logprobs) in pairs.items():
        one, other = (
            [np.asarray(getattr(t, field, None) if hasattr(t, field) else t.extra[field]) for t in (old, new)]
            for field in (ids, logprobs)
        )
        row[name] = shares(one[0][a], one[1][b], other[0][a], other[1][b])
    return row


def main():
    """Compare pairs; print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path, metavar="OLD NEW")
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--gpu", action="store_true", help="recorded on this machine's GPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if len(options.traces) % 2:
        parser.error("traces come in pairs, OLD NEW")
    rows = [compare(*options.traces[i : i + 2]) for i in range(0, len(options.traces), 2)]
    for row in rows:
        print(json.dumps(row))
    if options.out:
        stamp = machine("cuda" if options.gpu else "numpy")
        stamp |= {"commit": options.commit, "dirty": "0"} if options.commit else {}
        text = json.dumps({"machine": stamp, "traces": rows}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
