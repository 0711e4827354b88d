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
        real = self._corpus[self._corpus >= 0]
        self._seen = np.bincount(real, minlength=vocab_size).astype(np.float64)

    def __call__(self, contexts: Sequence[Context], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int32 and log-probs float32, both [b, D, width]."""
        ids = np.zeros((len(contexts), self.depth, width), np.int32)
        logprobs = np.zeros(ids.shape, np.float32)
        for b, context in enumerate(contexts):
            self._draft(np.asarray(context.tokens, np.int64), ids[b], logprobs[b])
        return ids, logprobs

    def _draft(self, text: np.ndarray, ids: np.ndarray, logprobs: np.ndarray) -> None:
        width, vocab = ids.shape[1], self.vocab_size
        counts = self._seen.copy()
        np.add.at(counts, text, 1.0)
        base = (counts + FLOOR / vocab) / (counts.sum() + FLOOR)
        best = np.argsort(-base, kind="stable")[: width + len(text)]  # candidates beyond those that matched
        sources = [(text, self._matches(text, np.flatnonzero(text[:-1] == text[-1]), text))]
        if self._corpus.size:
            low, high = np.searchsorted(self._sorted, [text[-1], text[-1] + 1])
            sources.append((self._corpus, self._matches(self._corpus, self._order[low:high], text)))
        for d in range(self.depth):
            lent, gain = 1.0, {}
            for order, weight in enumerate(WEIGHTS):
                found = [_followers(where, places[order], d + 1) for where, places in sources]
                tokens = np.concatenate(found)
                share = weight / (tokens.size + weight)
                lent *= share
                gain = {token: p * share for token, p in gain.items()}
                values, times = np.unique(tokens, return_counts=True)
                for token, count in zip(values.tolist(), times.tolist(), strict=True):
                    gain[token] = gain.get(token, 0.0) + count / (tokens.size + weight)
            chosen = np.union1d(best[: width + len(gain)], np.fromiter(gain, np.int64, len(gain)))
            p = base[chosen] * lent + np.array([gain.get(token, 0.0) for token in chosen.tolist()])
            lp = np.minimum(np.log(p), 0).astype(np.float32)
            rank = np.lexsort((chosen, -lp))[:width]
            ids[d], logprobs[d] = chosen[rank], lp[rank]

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


def _followers(where: np.ndarray, places: np.ndarray, distance: int) -> np.ndarray:
    """Return the tokens ``distance`` after each place, where the text goes on so far."""
    after = places + distance
    found = where[after[after < where.size]]
    return found[found >= 0]
