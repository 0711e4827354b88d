"""Token-identical validation of the SGLang bridge on recorded rounds.

Sequences of a trace are decoded again, several at a time, through the bridge: trees of the recorded drafter,
target tokens from the record, greedy walk.  The tokens that come out must be the recorded ones, and each
round's tree and walk must be the references'.  Where ``sgl_kernel`` is installed its own kernels run on the
very tensors, and must agree in every element.

    python benchmarks/validate_sglang.py --device cuda --nodes 32 --sequences 8
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from kdtree_cupy import masks, tree_accept, tree_build
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.sglang_bridge import build_ddtree, verify_tree_greedy
from kdtree_cupy.trace import Trace, bundled_traces, load_trace

NUMPY = KernelLibrary(backend="numpy")


class Replay:
    """Sequences of a trace, each with the position of its root; decoded round by round."""

    def __init__(self, trace: Trace, device: str, nodes: int, sequences: int, mode: int) -> None:
        starts, ends = trace.sequence_offsets[:-1], trace.sequence_offsets[1:]
        use = np.flatnonzero(ends - starts >= 2)[:sequences]
        self.trace, self.device, self.nodes, self.mode = trace, device, nodes, mode
        self.start, self.end = starts[use].astype(np.int64), ends[use].astype(np.int64)
        self.root = self.start.copy()
        self.decoded: list[list[int]] = [[int(trace.tokens[s])] for s in self.start]
        self.rounds = 0
        self.theirs = sgl_kernel()

    def run(self) -> None:
        """Decode until all sequences have ended; raises ``SystemExit`` at the first difference."""
        while (active := np.flatnonzero(self.root < self.end - 1)).size:
            self.round(active)
        for i, tokens in enumerate(self.decoded):
            recorded = self.trace.tokens[self.start[i] : self.end[i]]
            require(np.array_equal(tokens[: recorded.size], recorded), f"sequence {i}: other tokens")

    def round(self, active: np.ndarray) -> None:
        """Build, check, verify and commit one round of the sequences that go on."""
        roots, batch, n = self.root[active], active.size, self.nodes
        put = lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(self.device)  # noqa: E731
        ids = self.trace.draft_ids[roots].astype(np.int32)
        rows = self.trace.draft_logprobs[roots].astype(np.float32)
        bonus, lengths = self.trace.tokens[roots].astype(np.int64), roots - self.start[active]
        out = build_ddtree(
            put(bonus), put(ids), put(rows), put(lengths), int(lengths.sum()), n, self.mode
        )  # fmt: skip
        budgets = np.full(batch, n - 1, np.int32)
        tree = tree_build(ids, rows, bonus.astype(np.int32), budgets, num_nodes=n, library=NUMPY).tree
        check_tree(out, tree, lengths, n)
        depth = np.minimum(roots[:, None] + 1 + tree.depths, self.end[active, None] - 1)
        targets = self.trace.tokens[depth].astype(
            np.int64
        )  # right on the recorded path, which is what counts
        written = self.verify(out, put(targets), batch)
        wanted = tree_accept(tree, targets.astype(np.int32), max_depth=self.trace.depth, library=NUMPY)
        count, index, predicts = written[2] + 1, written[1], written[0]
        require(np.array_equal(count, wanted.path_length), "verify_tree_greedy: another number of drafts")
        path = np.where(wanted.path >= 0, wanted.path + n * np.arange(batch)[:, None], -1)
        require(np.array_equal(index, path), "verify_tree_greedy: another path")
        for i, b in enumerate(active):
            self.decoded[b] += predicts[index[i, : count[i]]].tolist()
            self.root[b] += count[i]
        self.rounds += batch

    def verify(self, out: Any, targets: torch.Tensor, batch: int) -> list[np.ndarray]:
        """Run the bridge's verifier, and SGLang's on the same tensors where it is installed."""
        n, width, found = self.nodes, self.trace.depth + 1, []
        for function in (verify_tree_greedy, *([self.theirs] if self.theirs else [])):
            written = [
                torch.full(shape, -1, dtype=torch.int32, device=self.device)
                for shape in ((batch * n,), (batch, width), (batch,))
            ]
            function(*written, out.draft_tokens.view(batch, n), *out[2:5], targets)
            found.append([x.cpu().numpy() for x in written])
        for one, other in zip(found[0], found[-1], strict=True):
            require(np.array_equal(one, other), "verify_tree_greedy: sgl_kernel writes other values")
        return found[0]


def check_tree(out: Any, tree: Any, lengths: np.ndarray, n: int) -> None:
    """Require positions, tokens, links and mask of the references."""
    batch = lengths.size
    got = [x.cpu().numpy() for x in out]
    require(np.array_equal(got[1].reshape(batch, n), lengths[:, None] + tree.depths), "positions differ")
    require(np.array_equal(got[5].reshape(batch, n), tree.tokens), "tokens of the tree differ")
    for name, one, other in zip(("index", "child", "sibling"), got[2:5], masks.retrieve(tree), strict=True):
        require(np.array_equal(one, other), f"retrieve: {name} differs")
    visible = masks.bool_mask(tree)
    if got[0].dtype == bool and got[0].size == visible.size:
        require(np.array_equal(got[0].reshape(visible.shape), visible), "mask differs")
    elif got[0].dtype == bool:
        rows = [
            np.concatenate([np.ones((n, at), bool), visible[b]], axis=1).ravel()
            for b, at in enumerate(lengths)
        ]
        require(np.array_equal(got[0], np.concatenate(rows)), "full mask differs")


def require(fact: bool, message: str) -> None:
    """Stop with a message unless ``fact``."""
    if not fact:
        sys.exit(f"DIFFERENT: {message}")


def sgl_kernel() -> Any:
    """Return SGLang's own verifier, or None where it is not installed or has no GPU."""
    if importlib.util.find_spec("sgl_kernel") is None or not torch.cuda.is_available():
        return None
    import sgl_kernel

    return sgl_kernel.verify_tree_greedy


@click.command()
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="cpu", help="Of torch.")
@click.option("--nodes", type=click.IntRange(1, 1025), default=32, help="num_verify_tokens, root included.")
@click.option("--sequences", type=click.IntRange(1), default=8, help="Decoded at a time.")
@click.option("--mode", type=click.IntRange(0, 2), default=0, help="tree_mask_mode.")
def main(trace: Path | None, device: str, nodes: int, sequences: int, mode: int) -> None:
    """Decode recorded sequences through the bridge; exit code 1 at the first difference."""
    replay = Replay(load_trace(trace or bundled_traces()[0]), device, nodes, sequences, mode)
    replay.run()
    tokens = sum(map(len, replay.decoded))
    beside = (
        "sgl_kernel beside" if replay.theirs else "sgl_kernel is not installed: bridge and references only"
    )
    click.echo(
        f"token-identical: {len(replay.decoded)} sequences, {tokens} tokens in {replay.rounds} rounds "
        f"(n = {nodes}, mask mode {mode}, {device}); {beside}"
    )


if __name__ == "__main__":
    main()
