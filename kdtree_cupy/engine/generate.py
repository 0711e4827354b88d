"""Decode a batch of prompts token by token, by chains or by draft trees: the same text, in fewer passes.

At temperature 0 every mode writes what greedy decoding writes.  Above 0 the draw at a place of the response
uses one random number of the request, whatever tree the place is reached in: but for rounding all modes write
the same text for the same seed, and that text has the distribution of plain sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..limits import MAX_BUDGET
from .context import Drafter, depth_of
from .model import Model
from .rounds import Round, Settings
from .session import Session

MODES = ("ar", "chain", "ddtree")


@dataclass(frozen=True)
class Generation:
    """What was written and how.

    Parameters
    ----------
    tokens : list of int32 arrays
        Response of each request; a stop token that ended it is its last one.
    rounds : list of Round
        All rounds, in the order in which they ran.
    prefill_seconds, decode_seconds : float
        Wall-clock time of the prompts and of the rounds.
    """

    tokens: list[np.ndarray]
    rounds: list[Round]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tau(self) -> float:
        """Tokens per round, pooled, bonus counted; NaN without a round."""
        return sum(len(r.tokens) for r in self.rounds) / len(self.rounds) if self.rounds else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the rounds per second of decoding, all requests together."""
        return sum(len(r.tokens) for r in self.rounds) / max(self.decode_seconds, 1e-9)


def generate(
    model: Model,
    prompts: Sequence[np.ndarray],
    *,
    mode: str = "ddtree",
    drafter: Drafter | None = None,
    budget: int = 64,
    max_new: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[tuple[int, int]] = 0,
    stop_tokens: Sequence[int] = (),
    page_size: int = 16,
    on_round: Callable[[Round], object] | None = None,
) -> Generation:
    """Continue every prompt; waits for the device once a round.

    Parameters
    ----------
    model : Model
        The target.
    prompts : sequence of int arrays
        Token ids, at least one each.
    mode : {"ddtree", "chain", "ar"}
        Draft tree, the drafter's first choices only, or one token a pass.
    drafter : callable, optional
        See :data:`kdtree_cupy.engine.context.Drafter`; required unless ``mode`` is "ar".
    budget : int
        Draft nodes B of a tree, root excluded; a chain has ``min(B, D)``.
    max_new : int
        Most tokens of a response.
    temperature, top_p : float
        Of the target; 0 is greedy.
    seed : int, or a pair of ints per request
        Request r draws from numpy's default generator seeded with ``(seed, r)``, or with its pair.
    stop_tokens : sequence of int
        Tokens that end a response; they belong to it.
    page_size : int
        Rows of a cache page.
    on_round : callable, optional
        Called with each :class:`Round` as it ends, and before that with one of index 0 for the first token,
        which comes from the prompt's pass.

    Returns
    -------
    Generation

    Raises
    ------
    ValueError, TypeError
        An argument out of range, a token outside the vocabulary, or a drafter that does not keep its promise.
    """
    session = open_session(
        model, prompts, mode=mode, drafter=drafter, budget=budget, max_new=max_new, temperature=temperature,
        top_p=top_p, seed=seed, stop_tokens=stop_tokens, page_size=page_size,
    )  # fmt: skip
    return run(session, on_round)


def open_session(
    model: Model,
    prompts: Sequence[np.ndarray],
    *,
    mode: str = "ddtree",
    drafter: Drafter | None = None,
    budget: int = 64,
    max_new: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[tuple[int, int]] = 0,
    stop_tokens: Sequence[int] = (),
    page_size: int = 16,
    clock: Callable[[str], object] | None = None,
) -> Session:
    """Check the arguments of :func:`generate` and return a session that :func:`run` runs.

    ``clock`` is that of :class:`~kdtree_cupy.engine.session.Session`.
    """
    seeds = [(seed, r) for r in range(len(prompts))] if isinstance(seed, int) else seed
    settings = Settings(
        mode, _nodes(mode, budget, drafter), max_new, temperature, top_p, tuple(seeds), tuple(stop_tokens),
        page_size,
    )  # fmt: skip
    checked = _check(model, prompts, settings)
    return Session(model, checked, settings, None if mode == "ar" else drafter, clock=clock)


def run(session: Session, on_round: Callable[[Round], object] | None = None) -> Generation:
    """Decode until every request of a fresh session has ended."""
    tell = on_round or (lambda _: None)
    started = time.perf_counter()
    for first in session.prefill():
        tell(first)
    prefilled = time.perf_counter()
    rounds: list[Round] = []
    while session.live:
        for one in session.round():
            rounds.append(one)
            tell(one)
    seconds = (prefilled - started, time.perf_counter() - prefilled)
    return Generation(session.responses(), rounds, *seconds)


def _nodes(mode: str, budget: int, drafter: Drafter | None) -> int:
    """Return the draft nodes of a round."""
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}, wanted one of {', '.join(MODES)}")
    if not 0 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget: got {budget}, wanted 0..{MAX_BUDGET}")
    if mode == "ar":
        return 0
    if drafter is None:
        raise TypeError(f"drafter: got None, wanted a drafter because mode is {mode!r}")
    return min(budget, depth_of(drafter)) if mode == "chain" else budget


def _check(model: Model, prompts: Sequence[np.ndarray], settings: Settings) -> list[np.ndarray]:
    """Return the prompts as int32 arrays."""
    if settings.max_new < 1:
        raise ValueError(f"max_new: got {settings.max_new}, wanted at least 1")
    if len(settings.seeds) != len(prompts):
        raise ValueError(
            f"seed: got {len(settings.seeds)} pairs, wanted one for each of {len(prompts)} prompts"
        )
    if len(prompts) == 0:
        raise ValueError("prompts: got none, wanted at least one")
    out = []
    for r, prompt in enumerate(prompts):
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or tokens.size == 0 or tokens.dtype.kind not in "iu":
            raise ValueError(f"prompts[{r}]: got {tokens.dtype} {tokens.shape}, wanted at least one token id")
        if tokens.min() < 0 or tokens.max() >= model.vocab_size:
            bad = int(tokens[(tokens < 0) | (tokens >= model.vocab_size)][0])
            raise ValueError(f"prompts[{r}]: token {bad}, wanted 0..{model.vocab_size - 1}")
        out.append(tokens.astype(np.int32))
    return out
