"""The explorer as one page: data and a small program in a file, no server, no outside link."""

from __future__ import annotations

import base64
import codecs
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .. import style
from ..files import atomic_file
from ..policy_fit import fit
from ..report_parts import render
from ..tree_svg import EDGE, INK, SOFT
from ..version import __version__
from .model import MOST_POSITIONS, Explorer, Setting, first_sequences
from .show import interesting

POLICIES = ("chain", "ddtree", "static", "calibrated")
"""Policies that the page's program knows: each is best-first search on rows of its own."""

MOST_TOKENS = 480
"""Positions of each trace on the page by default: its first sequences, about 3 KB a position."""


MOST_BYTES = 6 << 20
"""Rows of each trace on the page at most, in bytes, whatever number of tokens is asked for."""


def write_page(
    explorer: Explorer, path: str | os.PathLike[str], *, tokens: int = MOST_TOKENS, command: str = ""
) -> Path:
    """Write the page; return its path.

    Parameters
    ----------
    explorer : Explorer
        Its traces, cost tables and budgets go onto the page.
    path : path-like
        The ``.html`` file; appears when it is complete.
    tokens : int
        Positions of each trace: its first whole sequences, one at least; :data:`MOST_BYTES` may cut them.
    command : str
        Shown at the bottom.

    Raises
    ------
    ValueError
        ``tokens`` < 1.
    OSError
        The file cannot be written.

    Notes
    -----
    A trace's strings are data of the page, shown as text and never read as HTML; a content security policy
    forbids the page to load anything.
    """
    if tokens < 1:
        raise ValueError(f"tokens: got {tokens}, wanted at least 1")
    names = [trace.name for trace in explorer.traces]
    from markupsafe import Markup  # of Jinja

    data = json.dumps(page_data(explorer, tokens), separators=(",", ":"), allow_nan=False)
    safe = Markup(data.replace("<", "\\u003c"))  # no tag can end the element that holds the data
    context = {"names": names, "data": safe, "version": __version__, "command": command or "kdtree explore"}
    target = Path(path)
    with atomic_file(target) as handle:
        handle.write(render("explore.html.j2", context, html=True).encode())
    return target


def page_data(explorer: Explorer, tokens: int) -> dict[str, Any]:
    """Return what the page's program reads, ready for ``json.dumps``."""
    start = interesting(explorer, Setting(budget=16 if 16 in explorer.budgets else int(explorer.budgets[0])))
    traces = [_trace(explorer, i, tokens) for i in range(len(explorer.traces))]
    colours = {"ink": INK, "soft": SOFT, "edge": EDGE, "line": style.LIGHT, "tint": "#f4f6f8"}
    colours |= {"blue": style.BLUE, "orange": style.ORANGE}
    return {
        "traces": traces,
        "budgets": explorer.budgets.tolist(),
        "policies": list(POLICIES),
        "policy_labels": {name: style.policy_label(name) for name in POLICIES},
        "policy_colours": {name: style.policy_colour(name) for name in POLICIES},
        "costs": [_cost(cost) for cost in explorer.costs],
        "colours": colours,
        "budget_label": style.BUDGET_LABEL,
        "start": start if start < len(traces[0]["texts"]) else 0,
    }


def _cost(cost: Any) -> dict[str, Any]:
    lists = {
        name: None if getattr(cost, name) is None else getattr(cost, name).tolist()
        for name in ("nodes", "contexts", "verify_ms", "ar_ms", "round_ar")
    }
    fixed = cost.draft_ms + cost.build_ms + cost.commit_ms
    return {**lists, "name": cost.name, "label": cost.label(), "fixed_ms": fixed,
            "chain_round_ar": cost.chain_round_ar, "default_context": cost.default_context}  # fmt: skip


def _trace(explorer: Explorer, index: int, tokens: int) -> dict[str, Any]:
    whole = explorer.traces[index]
    part = first_sequences(whole, min(tokens, MOST_BYTES // (6 * whole.depth * whole.width)))
    ids = np.asarray(part.draft_ids).astype(np.int64)
    used = np.unique(np.concatenate([ids.ravel(), part.tokens.astype(np.int64)]))
    small = np.uint16 if used.size < 65536 else np.uint32
    ranks = whole.true_ranks()
    table = np.asarray(fit("static", whole, ranks)[0]["table"])[: part.sequences]
    with np.errstate(divide="ignore"):
        logs = np.log(table).astype(np.float32)
    temperatures = fit("calibrated", whole, ranks)[0]["temperatures"][: part.sequences]
    cut = part.tokens.size < whole.tokens.size
    wholes = {name: explorer.curve(Setting(index, name)).tau.tolist() for name in POLICIES} if cut else None
    return {
        "name": whole.name,
        "depth": part.depth,
        "width": part.width,
        "all_tokens": int(first_sequences(whole, MOST_POSITIONS).tokens.size),
        "offsets": part.sequence_offsets.tolist(),
        "tokens": _packed(np.searchsorted(used, part.tokens).astype(small)),
        "ids": _packed(np.searchsorted(used, ids).astype(small)),
        "logprobs": _packed(part.draft_logprobs.astype(np.float32)),
        "static": _packed(logs),
        "temperatures": temperatures.tolist(),
        "labels": [whole.text(int(token)) for token in used],
        "texts": _texts(part),
        "whole": wholes,
    }


def _texts(trace: Any) -> list[str]:
    """Return what each token adds to the text; characters cut between tokens come with their last one."""
    out = []
    for s in range(trace.sequences):
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in trace.tokens[trace.sequence_offsets[s] : trace.sequence_offsets[s + 1]]:
            out.append(decoder.decode(trace._piece(int(token)) or b"<%d>" % token))
    return out


def _packed(array: np.ndarray) -> str:
    """Return little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode(
        "ascii"
    )
