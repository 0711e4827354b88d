"""Replay a tree policy on a recorded trace, exactly, without a model.

A deterministic tree is verified by matching the target's own token at each node, so a plain recording of the
target (greedy, or sampled at temperature T) tells what any policy would have accepted: exactly for T = 0, in
distribution for T > 0.  Replay *jumps*: a round at root t that accepts a drafts moves to t + a + 1.
Averaging over all positions instead overstates tau, because long accepts skip positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .certificate import certified_exact, outside_bound, rows_used
from .limits import MAX_BUDGET
from .trace import Trace
from .tree import DraftTree

Policy = Callable[..., DraftTree]
_CHUNK = 512  # positions per build: about 60 MB at budget 1024


class Acceptance(NamedTuple):
    """What a policy would do in a round started at each position, for each budget.

    Attributes
    ----------
    budgets : int64 [n]
    accepted : int16 [T, n]
        Drafts accepted, limited by the end of the sequence.
    nodes_by_depth : int16 [T, n, D + 1]
        Nodes per depth, the root at depth 0.
    surrogate : float64 [T, n]
        Sum of exp(score) over the drafted nodes: the number of accepted drafts the policy itself expects.
    certified : bool [T, n]
        The tree from K ranks is provably the tree from the whole vocabulary: policies with an attribute
        ``exact = True`` (ddtree) whose ``max_depth`` and ``max_rank`` are the same everywhere.
    """

    budgets: np.ndarray
    accepted: np.ndarray
    nodes_by_depth: np.ndarray
    surrogate: np.ndarray
    certified: np.ndarray


class Rounds(NamedTuple):
    """The rounds of a replay, in order; all int64 [R] but ``censored``, bool [R].

    Attributes
    ----------
    sequence, root : sequence of the round; position of its root in the trace.
    accepted : drafts accepted.
    tokens : tokens the round commits, ``min(accepted + 1, n - 1 - t)``: they sum to n - 1 per sequence.
    censored : the recording stopped (without a stop token) before position root + D.
    """

    sequence: np.ndarray
    root: np.ndarray
    accepted: np.ndarray
    tokens: np.ndarray
    censored: np.ndarray


def check_budgets(budgets: Sequence[int]) -> np.ndarray:
    """Return budgets as int64, sorted and without repeats; raise ``ValueError`` for one out of 0..1024."""
    array = np.asarray(list(budgets))
    if array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"budgets: got {list(budgets)!r}, wanted at least one integer in 0..{MAX_BUDGET}")
    bad = (array < 0) | (array > MAX_BUDGET)
    if bad.any():
        raise ValueError(f"budgets: got {int(array[bad][0])}, wanted 0..{MAX_BUDGET}")
    return np.unique(array.astype(np.int64))


def acceptance(
    trace: Trace,
    policy: Policy,
    budgets: Sequence[int],
    *,
    options: Mapping[str, Any] | None = None,
    per_position: Mapping[str, np.ndarray] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Acceptance:
    """Return what ``policy`` accepts at every position of ``trace``.

    Parameters
    ----------
    trace : Trace
    policy : callable
        See :mod:`kdtree_cupy.policies`.  ``nested`` policies are built once, at the largest budget.
    budgets : sequence of int
        Draft nodes, 0..1024.
    options : mapping, optional
        Further keyword arguments of the policy.
    per_position : mapping of str to array [T, ...], optional
        Keyword arguments that differ from position to position (for example ``table_index`` of ``static``).
    progress : callable, optional
        Called with the number of positions done since the last call.

    Raises
    ------
    ValueError
        A budget out of range.
    """
    wanted = check_budgets(budgets)
    total, depth = trace.tokens.size, trace.depth
    end = np.repeat(trace.sequence_offsets[1:].astype(np.int64), trace.lengths)
    out = Acceptance(
        budgets=wanted,
        accepted=np.zeros((total, wanted.size), np.int16),
        nodes_by_depth=np.zeros((total, wanted.size, depth + 1), np.int16),
        surrogate=np.zeros((total, wanted.size)),
        certified=np.zeros((total, wanted.size), bool),
    )
    for name, values in (per_position or {}).items():
        if len(values) != total:
            raise ValueError(f"per_position[{name!r}]: got {len(values)} values, wanted {total} (tokens)")
    limits = {name: (options or {}).get(name) for name in ("max_depth", "max_rank")}
    fixed = not limits.keys() & (per_position or {}).keys() and all(np.ndim(v) == 0 for v in limits.values())
    certify = getattr(policy, "exact", False) and fixed
    for start in range(0, total, _CHUNK):
        at = slice(start, min(start + _CHUNK, total))
        rows = np.ascontiguousarray(trace.draft_logprobs[at])
        ids = np.asarray(trace.draft_ids[at])
        extra = dict(options or {}) | {k: v[at] for k, v in (per_position or {}).items()}
        plan: list[tuple[int, Sequence[int]]] = [(int(b), [j]) for j, b in enumerate(wanted)]
        if getattr(policy, "nested", False):
            plan = [(int(wanted[-1]), range(wanted.size))]
        for largest, columns in plan:
            tree = _trim(policy(ids, rows, trace.tokens[at], largest, **extra))
            path = true_path(tree, trace.tokens, np.arange(at.start, at.stop), end[at], depth)
            _record(out, at, columns, tree, path)
            if certify:
                _certify(out, at, columns, tree, trace, **limits)
        if progress is not None:
            progress(at.stop - at.start)
    return out


def true_path(
    tree: DraftTree, tokens: np.ndarray, roots: np.ndarray, end: np.ndarray, depth: int
) -> np.ndarray:
    """Return the node at each depth of the target's own continuation, int64 [b, depth]; -1 once it is missed.

    Parameters
    ----------
    tree : DraftTree
        Trees of the rounds at ``roots``.
    tokens : int32 [T]
        Recorded tokens; ``tokens[root + d]`` is what the target chose at depth d of a matching path.
    roots, end : int64 [b]
        Position of each root, and end (exclusive) of its sequence.
    depth : int
        Depths to follow.
    """
    node = np.zeros(roots.size, np.int64)
    out = np.full((roots.size, depth), -1, np.int64)
    alive = tree.counts > 0
    real = np.arange(tree.num_nodes) < tree.counts[:, None]
    for d in range(1, depth + 1):
        alive = alive & (roots + d < end)
        live = np.flatnonzero(alive)
        if live.size == 0:
            break
        target = tokens[roots[live] + d]
        hit = (tree.parents[live] == node[live, None]) & (tree.tokens[live] == target[:, None]) & real[live]
        found = hit.any(1)
        node[live] = np.where(found, hit.argmax(1), 0)
        out[live[found], d - 1] = node[live[found]]
        alive[live[~found]] = False
    return out


def _trim(tree: DraftTree) -> DraftTree:
    """Drop the slots that no request uses (a chain of 15 in 1,025 slots)."""
    used = max(1, int(tree.counts.max(initial=1)))
    node_arrays = (
        array[:, :used] for array in (tree.tokens, tree.parents, tree.depths, tree.ranks, tree.scores)
    )
    return DraftTree(*node_arrays, tree.counts, tree.status)


def _record(out: Acceptance, at: slice, columns: Sequence[int], tree: DraftTree, path: np.ndarray) -> None:
    """Cut the tree at each budget: its first B nodes are the tree of budget B."""
    batch, nodes = tree.tokens.shape
    depth = out.nodes_by_depth.shape[2]
    slots = np.arange(nodes)
    real = slots < tree.counts[:, None]
    with np.errstate(under="ignore"):
        expected = np.cumsum(np.where(real & (slots > 0), np.exp(tree.scores), 0.0), axis=1)
    cell = np.arange(batch)[:, None] * depth + tree.depths
    counted = np.zeros((batch, depth), np.int64)
    done = 0
    for j in columns:
        stop = min(int(out.budgets[j]) + 1, nodes)
        part = real[:, done:stop]
        counted += np.bincount(cell[:, done:stop][part], minlength=batch * depth).reshape(batch, depth)
        done = stop
        out.nodes_by_depth[at, j] = counted
        out.surrogate[at, j] = expected[:, stop - 1]
        out.accepted[at, j] = ((path > 0) & (path < stop)).sum(1)


def _certify(
    out: Acceptance,
    at: slice,
    columns: Sequence[int],
    tree: DraftTree,
    trace: Trace,
    max_depth: int | None,
    max_rank: int | None,
) -> None:
    rest = None if trace.draft_next_logprob is None else trace.draft_next_logprob[at]
    rows, rest = rows_used(trace.draft_logprobs[at], rest, max_depth, max_rank)
    if rows.size == 0:
        return
    bound = outside_bound(rows, rest, trace.precision)
    for j in columns:
        budget = int(out.budgets[j])
        out.certified[at, j] = certified_exact(tree, rows, budget, trace.vocab_size, bound=bound)


def jump(trace: Trace, accepted: np.ndarray) -> Rounds:
    """Return the rounds that happen if a round at position t accepts ``accepted[t]`` drafts, int [T].

    Sequences of fewer than two tokens have no round.
    """
    steps = accepted.tolist()
    offsets = trace.sequence_offsets.tolist()
    sequence: list[int] = []
    root: list[int] = []
    for s in range(trace.sequences):
        t, stop = offsets[s], offsets[s + 1] - 1
        while t < stop:
            sequence.append(s)
            root.append(t)
            t += steps[t] + 1
    where, at = np.array(sequence, np.int64), np.array(root, np.int64)
    left = trace.sequence_offsets[1:].astype(np.int64)[where] - 1 - at  # tokens still to come, n - 1 - t
    taken = np.asarray(accepted, np.int64)[at]
    censored = (left < trace.depth) & ~trace.ended()[where]
    return Rounds(where, at, taken, np.minimum(taken + 1, left), censored)
