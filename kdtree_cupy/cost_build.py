"""Cost tables of a large MLA model from measured kernels: attention and tree work timed, the rest from bytes.

A verify step of n draft nodes is 61 layers of attention over prefix and tree (measured), the tree's own work
(top-k, build, target tokens, accept, commit: measured) and everything else of the model, which nobody here
can run: its weights' bytes over the measured copy bandwidth, with the experts that n + 1 tokens are expected
to touch.  The table says which part is which; it leaves out communication and every inefficiency of the rest.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .cost_model import Model
from .errors import KdtrError

NOTE = (
    "Only attention (one layer x 61) and tree stages are measured. The rest of the model and the drafter "
    "(5 dense layers) are weight bytes over the copy bandwidth: no communication, no kernel inefficiency. "
    "Tree work is part of verify_ms, because it depends on n."
)
TREE_STAGES = ("topk_logprob", "tree_build", "target_token", "tree_accept", "kv_commit")


@dataclass
class Measurements:
    """Times in microseconds that tables of results hold, batch 1.

    Parameters
    ----------
    attention : dict
        (heads, rows, prefix) to time of one layer.
    tree : dict
        Stage to {budget: time}.
    bandwidth : list of float
        Bytes per microsecond of a large copy, as the tables say.
    gpu : str
    sources : list of str
        Names and commits of the files.
    """

    attention: dict[tuple[int, int, int], float] = field(default_factory=dict)
    tree: dict[str, dict[int, float]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)
    gpu: str = ""
    sources: list[str] = field(default_factory=list)

    def keep(self, stage: str, budget: int, us: float) -> None:
        """Note a stage's time; the slowest of several (a cold cache) counts."""
        known = self.tree.setdefault(stage, {})
        known[budget] = max(us, known.get(budget, 0.0))


def read_measurements(paths: Iterable[Path]) -> Measurements:
    """Read tables of ``kdtree bench`` and of the scripts in ``benchmarks``.

    Raises
    ------
    KdtrError
        A file is none of them, or two are of different GPUs.
    """
    found = Measurements()
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise KdtrError(f"{path}: no rows")
        head = set(rows[0])
        if {"us_median", "q_len", "backend"} <= head:
            _own(found, path, rows)
        elif {"H", "q", "prefix", "us"} <= head:
            _attention(found, rows)
        elif {"stage", "version", "us_median"} <= head:
            for row in rows:
                if row["batch"] == "1" and row["version"] != "1":
                    found.keep(row["stage"], int(row["budget"]), float(row["us_median"]))
        elif {"stage", "shape", "us"} <= head:
            _shapes(found, rows)
        else:
            raise KdtrError(f"{path}: no table of results that is known here")
        gpus = {row["gpu"] for row in rows if row["gpu"] and not row["gpu"].startswith("none")}
        if len(gpus | ({found.gpu} if found.gpu else set())) > 1:
            raise KdtrError(f"{path}: measured on {', '.join(sorted(gpus))}, the others on {found.gpu}")
        found.gpu = found.gpu or next(iter(gpus), "")
        commits = dict.fromkeys(row.get("commit") or row.get("git") or "unknown" for row in rows)
        found.sources.append(f"{path.name} (commit {', '.join(commits)})")
    return found


def _own(found: Measurements, path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    for row in rows:
        if row["backend"] != "cuda" or int(float(row["batch"])) != 1:
            continue
        us = float(row["us_median"])
        if row["stage"] == "verify_attn" and row["dtype"] == "bfloat16":
            key = int(row["heads"]), int(row["q_len"]), int(row["prefix"])
            found.attention[key] = max(us, found.attention.get(key, 0.0))
        elif row["stage"] in TREE_STAGES:
            budget = row["width"] if row["stage"] == "topk_logprob" else row["budget"]
            found.keep(row["stage"], int(budget), us)
    side = path.with_suffix(".json")
    if side.exists():
        for one in json.loads(side.read_text(encoding="utf-8"))["machine"].values():
            if "ceilings" in one:
                found.bandwidth.append(float(one["ceilings"]["bytes_per_us"]))


def _attention(found: Measurements, rows: Sequence[Mapping[str, str]]) -> None:
    for row in rows:
        if row.get("provider") != "kdtree_cupy" or row["b"] != "1" or row.get("variant") or not row["us"]:
            continue
        if row.get("dtype", "bfloat16") != "bfloat16":
            continue
        key = int(row["H"]), int(row["q"]), int(row["prefix"])
        found.attention[key] = max(float(row["us"]), found.attention.get(key, 0.0))
        if row.get("copy_tb_s"):
            found.bandwidth.append(1e6 * float(row["copy_tb_s"]))


def _shapes(found: Measurements, rows: Sequence[Mapping[str, str]]) -> None:
    for row in rows:
        if row.get("provider") != "kdtree_cupy" or row.get("right") == "False":
            continue
        us, shape = float(row["us"]), row["shape"]
        if (
            row["stage"] == "topk_logprob"
            and (m := re.match(r"1x\d+x\d+ k=(\d+)", shape))
            and "bf" in row["dtype"]
        ):
            found.keep("topk_logprob", int(m[1]), us)
        elif row["stage"] == "target_token" and (m := re.match(r"1x(\d+)x\d+ t=0 ", shape)):
            found.keep("target_token", int(m[1]) - 1, us)
        elif row["stage"] == "kv_commit" and re.match(r"61 layers 1x", shape):
            found.keep("kv_commit", 64, us)


def tree_work(found: Measurements, budgets: np.ndarray) -> np.ndarray:
    """Return ms of all tree stages at ``budgets``: linear between, flat beyond what was measured.

    Raises
    ------
    KdtrError
        A stage was not measured at all.
    """
    total = np.zeros(budgets.size)
    for stage in TREE_STAGES:
        known = sorted(found.tree.get(stage, {}).items())
        if not known:
            raise KdtrError(f"{stage}: no measurement at batch 1 in {', '.join(found.sources)}")
        x, y = (np.array(values, float) for values in zip(*known, strict=True))
        us = np.interp(budgets, x, y)
        if stage == "target_token":  # one pass over N rows: beyond what was measured in proportion to them
            us *= (budgets + 1) / (np.clip(budgets, x[0], x[-1]) + 1)
        total += us
    return total / 1e3


def build_table(
    found: Measurements, name: str, *, heads: int, gpus: int = 8, model: Model | None = None
) -> dict[str, Any]:
    """Return a cost table as the JSON of :mod:`kdtree_cupy.cost`, with its ``parts`` beside.

    Parameters
    ----------
    found : Measurements
        With attention at one row (a step without drafts) and at some node counts, at the same prefixes.
    name : str
    heads : int
        Query heads of one GPU: fewer than the model's are tensor parallel over ``gpus``.
    gpus : int
    model : Model, optional

    Raises
    ------
    KdtrError
        The measurements of attention do not fill a grid, or a stage is missing.
    """
    model = model or Model()
    keys = [(rows, prefix) for h, rows, prefix in found.attention if h == heads]
    most = max((sum(1 for _, p in keys if p == prefix) for _, prefix in keys), default=0)
    full = [p for p in {p for _, p in keys} if 2 * sum(1 for _, q in keys if q == p) > most]
    contexts = sorted(p for p in full if p > 0 and (1, p) in keys)  # others have a few rows only
    rows = sorted(r for r in {r for r, _ in keys} if all((r, c) in keys for c in contexts))
    if len(rows) < 3 or len(contexts) < 2 or rows[0] != 1:
        got = f"attention with {heads} heads at {len(rows)} row counts and {len(contexts)} prefixes"
        raise KdtrError(f"{name}: {got}, wanted at least 3 (1 among them) and 2")
    nodes = np.array(rows) - 1  # 0: the root alone
    per_us = float(np.median(found.bandwidth)) if found.bandwidth else 4.26e6
    layer = np.array([[found.attention[heads, r, c] for r in rows] for c in contexts]) * model.layers / 1e3
    share = {"gpus": gpus, "split_attention": heads < model.heads}
    rest = np.array([model.bytes_read(r, **share) for r in rows]) / per_us / 1e3
    tree = tree_work(found, nodes)
    parts = {"attention_ms": layer, "model_ms": rest, "tree_ms": tree}
    verify = parts["attention_ms"] + parts["model_ms"] + parts["tree_ms"]
    split = f"{heads} of {model.heads} heads a GPU" if heads < model.heads else "all heads on each GPU"
    return {
        "name": name, "kind": "measured", "hardware": f"{gpus} x {found.gpu}",
        "model": f"Kimi K2 sizes, {split}, measured at batch 1",
        "source": f"attention and tree stages measured: {'; '.join(found.sources)}",
        "note": NOTE,
        "nodes": nodes.tolist(), "contexts": contexts, "verify_ms": np.round(verify, 5).tolist(),
        "ar_ms": np.round(layer[:, 0] + rest[0], 5).tolist(),
        "draft_ms": round(model.drafter_bytes() / gpus / per_us / 1e3, 5), "build_ms": 0.0, "commit_ms": 0.0,
        "bytes_per_us": round(per_us, 1), "heads": heads, "gpus": gpus,
        "default_context": min(contexts, key=lambda c: abs(c - 8192)),
        "parts": {key: np.round(value, 5).tolist() for key, value in parts.items()},
    }  # fmt: skip
