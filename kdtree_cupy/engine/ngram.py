"""A drafter without weights: skip-n-grams of the text so far and of texts that the target wrote before.

For the token i places after the root, counts of what came i places after the last 3, 2 and 1 tokens are
blended, the longer match first, then the share of every token in the text, then a uniform floor:
``p_m = (count + a_m * p_(m-1)) / (matches + a_m)``.  Copying from the prompt falls out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .context import Context

WEIGHTS = (2.0, 0.8, 0.3)
"""Pseudo-counts that the shorter match lends to a match of 1, 2 and 3 tokens."""
FLOOR = 8.0
"""Pseudo-counts that the uniform floor lends to the share of every token."""
_GAP = -1  # between texts: matches nothing
Source = tuple[np.ndarray, list[np.ndarray]]
"""A text, and the places in it where its last 1, 2 and 3 tokens are those of the request."""


class NGramDrafter:
    """Draft from counts; rows depend on committed tokens only, so that a recording replays exactly.

    Parameters
    ----------
    vocab_size : int
        V.
    depth : int
        Positions D.
    corpus : iterable of int arrays
        Texts to count in besides the request's own, for example earlier responses of the target.

    Examples
    --------
    >>> drafter = NGramDrafter(50, depth=2)
    >>> ids, logprobs = drafter([Context(np.int32([7, 8, 9, 7]))], 2)
    >>> ids[0].tolist()
    [[8, 7], [9, 7]]
    """

    def __init__(self, vocab_size: int, depth: int = 15, corpus: Iterable[np.ndarray] = ()) -> None:
        self.vocab_size, self.depth = vocab_size, depth
        gap = np.full(depth + len(WEIGHTS), _GAP, np.int64)
        parts = [part for text in corpus for part in (np.asarray(text, np.int64), gap)]
        self._corpus = np.concatenate([gap, *parts, gap]) if parts else np.zeros(0, np.int64)
        self._order = np.argsort(self._corpus, kind="stable")
        self._sorted = self._corpus[self._order]
        seen = np.unique(self._corpus[self._corpus >= 0], return_counts=True)
        self._seen, self._times = seen[0], seen[1].astype(np.float64)

    def __call__(self, contexts: Sequence[Context], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int32 and log-probs float32, both [b, D, width]."""
        ids = np.zeros((len(contexts), self.depth, width), np.int32)
        logprobs = np.zeros(ids.shape, np.float32)
        for b, context in enumerate(contexts):
            self._draft(np.asarray(context.tokens, np.int64), ids[b], logprobs[b])
        return ids, logprobs

    def _draft(self, text: np.ndarray, ids: np.ndarray, logprobs: np.ndarray) -> None:
        width, vocab = ids.shape[1], self.vocab_size
        sources = [(text, self._matches(text, np.flatnonzero(text[:-1] == text[-1]), text))]
        if self._corpus.size:
            low, high = np.searchsorted(self._sorted, [text[-1], text[-1] + 1])
            sources.append((self._corpus, self._matches(self._corpus, self._order[low:high], text)))
        lent, keys, gain = self._gains(sources)
        seen, times = self._counts(text)
        total = times.sum() + FLOOR
        gap = np.setdiff1d(np.arange(min(vocab, width + seen.size)), seen, assume_unique=True)[:width]
        order = np.concatenate([seen[np.lexsort((seen, -times))], gap])
        most = int(np.bincount(keys // vocab, minlength=1).max(initial=0))
        others = (np.arange(self.depth)[:, None] * vocab + order[: width + most]).ravel()
        keys = np.concatenate([keys, others[~np.isin(others, keys)]])
        gain = np.concatenate([gain, np.zeros(keys.size - gain.size)])
        rows, tokens = np.divmod(keys, vocab)
        at = np.minimum(np.searchsorted(seen, tokens), seen.size - 1)
        base = (np.where(seen[at] == tokens, times[at], 0.0) + FLOOR / vocab) / total
        lp = np.minimum(np.log(base * lent[rows] + gain), 0).astype(np.float32)
        rank = np.lexsort((tokens, -lp, rows))
        starts = np.searchsorted(rows[rank], np.arange(self.depth))
        best = rank[starts[:, None] + np.arange(width)]
        ids[:], logprobs[:] = tokens[best], lp[best]

    def _counts(self, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of text and corpus, ascending, and how often each is there."""
        here, times = np.unique(text, return_counts=True)
        seen = np.union1d(self._seen, here)
        out = np.zeros(seen.size)
        out[np.searchsorted(seen, self._seen)] = self._times
        out[np.searchsorted(seen, here)] += times
        return seen, out

    def _gains(self, sources: list[Source]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what matches leave to the shares of all tokens [D], and ``d * V + token`` with its gain."""
        depth, vocab = self.depth, self.vocab_size
        lent, keys, gain = np.ones(depth), np.zeros(0, np.int64), np.zeros(0)
        for order, weight in enumerate(WEIGHTS):
            found = np.concatenate([_followers(where, at[order], depth, vocab) for where, at in sources])
            values, times = np.unique(found, return_counts=True)
            matches = np.bincount(found // vocab, minlength=depth)
            share = weight / (matches + weight)
            lent *= share
            both = np.union1d(keys, values)
            blended = np.zeros(both.size)
            blended[np.searchsorted(both, keys)] = gain * share[keys // vocab]
            blended[np.searchsorted(both, values)] += times / (matches + weight)[values // vocab]
            keys, gain = both, blended
        return lent, keys, gain

    @staticmethod
    def _matches(where: np.ndarray, places: np.ndarray, text: np.ndarray) -> list[np.ndarray]:
        """Return the places whose last 1, 2 and 3 tokens are those of the text's end."""
        out = [places]
        for back in range(1, len(WEIGHTS)):
            places = places[places >= back]
            matching = where[places - back] == text[-1 - back] if len(text) > back else np.zeros(0, bool)
            places = places[matching] if len(text) > back else places[:0]
            out.append(places)
        return out


def _followers(where: np.ndarray, places: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """Return ``d * V + token`` for the tokens 1..D places after each place, where the text goes on so far."""
    after = places[:, None] + np.arange(1, depth + 1)
    rows = np.broadcast_to(np.arange(depth) * vocab, after.shape)
    inside = after < where.size
    tokens = where[after[inside]]
    return (rows[inside] + tokens)[tokens >= 0]
