"""One look for all figures: colour-blind-safe colours (Okabe and Ito, 2008), labels, sizes, fonts."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#000000", "#6b6b6b", "#d9d9d9"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, SKY, AMBER, YELLOW = "#CC79A7", "#56B4E9", "#E69F00", "#F0E442"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

POLICY_COLOURS = {"ddtree": BLUE, "static": ORANGE, "chain": GREY, "oracle": BLACK}
POLICY_MARKERS = {"ddtree": "o", "static": "s", "chain": "x"}
_MORE = (
    "kary", "accum_logp", "edge", "depth_bonus", "padded", "spine", "fan_out", "medusa", "sequoia", "beam",
    "opt_tree", "calibrated", "conditioned", "caddtree", "longrun",
)  # fmt: skip
for _i, _name in enumerate(_MORE):  # a colour may come again, a pair of colour and marker does not
    POLICY_COLOURS[_name] = (GREEN, PURPLE, AMBER, SKY, BLACK)[_i % 5]
    POLICY_MARKERS[_name] = "^DvPX<>ph*dH8+1"[_i]
POLICY_LABELS = {"ddtree": "DDTree", "static": "static tree", "chain": "chain"}

TAU_LABEL = "tau: tokens per round (bonus counted)"
BUDGET_LABEL = "budget B: draft nodes (root excluded)"

RC = {
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",  # the same picture whatever fonts a reader has
    "svg.hashsalt": "kdtree_cupy",  # the same file for the same picture
    "image.cmap": "viridis",
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style to figures made inside the block, and to nothing else."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def policy_colour(name: str, index: int = 0) -> str:
    """Return the colour of a policy; unknown ones take the cycle by ``index``."""
    return POLICY_COLOURS.get(name, CYCLE[index % len(CYCLE)])


def policy_marker(name: str, index: int = 0) -> str:
    """Return the marker of a policy; unknown ones take the cycle by ``index``."""
    return POLICY_MARKERS.get(name, MARKERS[index % len(MARKERS)])


def policy_label(name: str) -> str:
    """Return how a policy is called in legends."""
    return POLICY_LABELS.get(name, name)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` (300 dpi) and ``name.svg`` into ``folder``; return the paths."""
    from .files import atomic_file

    paths = []
    for suffix in ("png", "svg"):
        path = folder / f"{name}.{suffix}"
        metadata = {"Date": None} if suffix == "svg" else {}
        with figure_style(), atomic_file(path) as handle:
            figure.savefig(handle, format=suffix, metadata=metadata)
        paths.append(path)
    return paths
