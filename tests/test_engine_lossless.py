"""Trees and chains write what plain decoding writes: token for token at T = 0, in distribution above."""

from itertools import product

import numpy as np
import pytest
from engine_tools import FAMILIES, golden, prompts_for, small_gqa, tiny
from scipy.stats import chisquare
from tolerances import CHI_SQUARE, LOSSLESS_LOGITS

from kdtree_cupy.engine import Model, NGramDrafter, from_dict, generate
from kdtree_cupy.engine.generate import Generation
from kdtree_cupy.engine.lossless import Recorded, check_mode, compare, recorded
from kdtree_cupy.refs.model import forward

BACKENDS = ("host", "cuda")
PROMPTS, LENGTH = 24, 128
CASES = [("chain", 1), ("chain", 15), ("ddtree", 0), ("ddtree", 1), ("ddtree", 15), ("ddtree", 64)]
LAYOUTS = [(1, 16), (4, 1)]  # batch, page size
PLAIN = {}


def plain(family, count=PROMPTS):
    """Return prompts, and how plain decoding continues them: all at once, in pages of 7."""
    if family not in PLAIN:
        prompts = prompts_for(96, PROMPTS)
        PLAIN[family] = (
            prompts,
            recorded(tiny(family), prompts, mode="ar", max_new=LENGTH, page_size=7),
        )
    prompts, found = PLAIN[family]
    return prompts[:count], found._replace(logits=found.logits[:count])


class Guess:
    """Drafts from a hash of the root: wrong most of the time, with many ties."""

    depth = 4

    def __init__(self, vocab):
        self.vocab = vocab

    def __call__(self, contexts, width):
        logits = np.empty((len(contexts), self.depth, self.vocab), np.float32)
        for row, context in zip(logits, contexts, strict=True):
            rng = np.random.default_rng(int(context.tokens[-1]))
            row[:] = np.round(2 * rng.standard_normal(row.shape), 1)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        ids = np.argsort(-logprobs, axis=-1, kind="stable")[..., :width]
        return ids, np.minimum(np.take_along_axis(logprobs, ids, -1), 0)


@pytest.mark.parametrize(("batch", "page_size"), LAYOUTS)
@pytest.mark.parametrize(("mode", "budget"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_plain_decoding(family, mode, budget, batch, page_size):
    prompts, wanted = plain(family, 4)
    assert_lossless(
        family, wanted, prompts, batch=batch, mode=mode, budget=budget, max_new=32, page_size=page_size
    )


def assert_lossless(family, wanted, prompts, **options):
    found = check_mode(tiny(family), wanted, prompts, NGramDrafter(96), **options)
    print(f"{family}, {options}: {found}")
    assert (found.sequences, found.flips) == (len(prompts), 0), found
    assert found.difference <= LOSSLESS_LOGITS
    assert found.tau > 1 or options["budget"] == 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mode", "budget", "batch", "page_size"),
    [
        ("mla", "ddtree", 15, 4, 16), ("gqa", "chain", 15, 4, 1), ("gqa", "ddtree", 0, 4, 16),
        ("gqa", "ddtree", 1, 4, 1), ("gqa", "ddtree", 15, 1, 16), ("gqa", "ddtree", 64, 4, 16),
    ],
)  # fmt: skip
def test_many_long_texts(family, mode, budget, batch, page_size):
    prompts, wanted = plain(family)
    options = {"mode": mode, "budget": budget, "batch": batch, "page_size": page_size}
    found = assert_lossless(family, wanted, prompts, max_new=LENGTH, **options)
    assert found.tokens == PROMPTS * LENGTH


@pytest.mark.parametrize("family", FAMILIES)
def test_flips_in_bfloat16_are_roundings(family):
    config, weights, _ = golden(family)
    model, prompts = Model(from_dict(config), weights, dtype="bfloat16"), prompts_for(96, 8)
    wanted = recorded(model, prompts, mode="ar", max_new=32)
    found = check_mode(model, wanted, prompts, NGramDrafter(96), batch=4, budget=15, max_new=32)
    print(f"{family}, bfloat16: {found}")
    assert found.unexplained == 0
    assert found.difference < 1
    first = [one.logits[0][0] for one in (plain(family, 8)[1], wanted)]
    assert 100 * LOSSLESS_LOGITS < np.abs(first[0] - first[1]).max() < 1  # it does round
    pairs = zip(plain(family, 8)[1].generation.tokens, wanted.generation.tokens, strict=False)
    assert any((one[:32] != other).any() for one, other in pairs)  # other weights, another text


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_wide_trees(family):
    prompts, wanted = plain(family, 2)
    assert_lossless(family, wanted, prompts, batch=2, budget=256, max_new=32)


@pytest.mark.parametrize(("gap", "unexplained"), [(0.01, 0), (0.5, 1)])
def test_a_flip_is_explained_by_what_was_measured_elsewhere_only(gap, unexplained):
    """However far the logits at the flip itself are apart."""

    def way(tokens, logits):
        return Recorded(Generation([np.int32(tokens)], [], 0.0, 0.0), [np.float32(logits)])

    plain = way([1, 0, 1], [[0, 9, 0], [1 + gap, 1, 0], [0, 5, 0]])
    other = way([1, 1, 2], [[0, 9.004, 0], [0, 9, 0], [0, 0, 7]])
    found = compare(plain, other)
    assert found[:4] == (1, 1, 1, unexplained)
    assert found.difference == pytest.approx(0.004, rel=1e-3)
    assert found.gap == pytest.approx(gap, rel=1e-3)


def test_a_bad_drafter_costs_rounds_but_no_token():
    prompts, wanted = plain("gqa", 4)
    found = check_mode(tiny("gqa"), wanted, prompts, Guess(96), batch=4, budget=20, max_new=48)
    assert found.flips == 0
    assert found.tau < 2


def test_sampled_text_depends_on_the_seed_alone():
    config, weights = small_gqa(8)
    model, prompts = Model(from_dict(config), weights), prompts_for(8, 3)
    options = {"max_new": 40, "temperature": 1.3, "top_p": 0.9}
    wanted = generate(model, prompts, mode="ar", seed=5, **options)
    for mode, drafter, budget in (
        ("chain", Guess(8), 9),
        ("ddtree", Guess(8), 9),
        ("ddtree", NGramDrafter(8), 3),
    ):
        found = generate(model, prompts, mode=mode, drafter=drafter, budget=budget, seed=5, **options)
        for one, other in zip(wanted.tokens, found.tokens, strict=True):
            np.testing.assert_array_equal(one, other)
    other = generate(model, prompts, mode="ar", seed=6, **options)
    assert any((a != b).any() for a, b in zip(wanted.tokens, other.tokens, strict=True))


def test_sampled_text_has_the_distribution_of_the_model():
    vocab, length, temperature = 5, 3, 1.5
    config, weights = small_gqa(vocab, seed=3)
    model, prompt = Model(from_dict(config), weights), np.int32([1, 4, 2])
    expected = {}
    for text in product(range(vocab), repeat=length):
        logits = forward(config, weights, np.array([*prompt, *text[:-1]]))[len(prompt) - 1 :] / temperature
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        expected[text] = p[np.arange(length), text].prod()
    counts = dict.fromkeys(expected, 0)
    for seed in range(4):
        found = generate(
            model,
            [prompt] * 400,
            drafter=Guess(vocab),
            budget=7,
            max_new=length,
            temperature=temperature,
            seed=seed,
        )
        for tokens in found.tokens:
            counts[tuple(tokens.tolist())] += 1
    total = sum(counts.values())
    often = [text for text, p in expected.items() if p * total >= 5]
    seen, hoped = [counts[text] for text in often], [expected[text] * total for text in often]
    rest = total - sum(hoped)
    assert len(often) > 20
    if rest > 5:
        seen, hoped = [*seen, total - sum(seen)], [*hoped, rest]
    hoped = np.array(hoped) * sum(seen) / sum(hoped)
    assert chisquare(seen, hoped).pvalue > CHI_SQUARE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_themselves_are_lossless(family, backend):
    """The .cu files of all six stages run inside the model, on the CPU or on a GPU."""
    config, weights, _ = golden(family)
    xp = pytest.importorskip("cupy") if backend.name == "cuda" else np
    model = Model(from_dict(config), weights, library=backend.library, xp=xp)
    prompts, wanted = plain(family, 2)
    for mode, budget in (("ar", 0), ("chain", 7), ("ddtree", 33)):
        found = check_mode(
            model,
            wanted,
            prompts,
            NGramDrafter(96),
            batch=2,
            mode=mode,
            budget=budget,
            max_new=8,
            page_size=4,
        )
        print(f"{family}, kernels on the host, {mode}, {budget}: {found}")
        assert found.flips == 0
        assert found.difference <= LOSSLESS_LOGITS
