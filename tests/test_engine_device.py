"""The engine keeps host and device apart: it runs on arrays that refuse to be mixed, as CuPy's do."""

import numpy as np
import pytest
from device_arrays import DeviceArray, DeviceModule, on_device
from engine_tools import FAMILIES, golden, prompts_for, tiny
from test_record import random_head

from kdtree_cupy import tree
from kdtree_cupy.engine import Model, NGramDrafter, attention, from_dict, generate, step, topk
from kdtree_cupy.engine.lossless import compare, recorded
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.record import record
from kdtree_cupy.trace import load_trace

STAGES = {
    step: ("tree_build", "target_token", "tree_accept", "kv_commit"),
    attention: ("verify_attn",),
    topk: ("topk_logprob",),
}
WAYS = (
    {"mode": "ar"},
    {"mode": "chain", "budget": 5},
    {"budget": 9, "temperature": 1.0, "seed": 4},
)


@pytest.fixture
def device(monkeypatch):
    """Return a function that gives a decoder on the device, and puts the stages there."""

    def start(family, **options):
        plain = KernelLibrary(backend="numpy")
        for module, names in STAGES.items():
            for name in names:
                monkeypatch.setattr(module, name, on_device(getattr(module, name), plain))
        # what tells numpy from device arrays must not take these for numpy's
        monkeypatch.setattr(tree, "_to_numpy", lambda array: array.get())
        monkeypatch.setattr(topk, "on_host", lambda rows: not isinstance(rows, DeviceArray))
        config, weights, _ = golden(family)
        return Model(from_dict(config), weights, xp=DeviceModule("device"), library=plain, **options)

    return start


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_written_on_the_device(family, device):
    prompts = prompts_for(96, 3)
    options = {"drafter": NGramDrafter(96), "max_new": 8, "page_size": 4, "stop_tokens": [3]}
    wanted = [recorded(tiny(family), prompts, **options, **way) for way in WAYS]
    model = device(family)
    for way, plain in zip(WAYS, wanted, strict=True):
        found = compare(plain, recorded(model, prompts, **options, **way))
        assert (found.flips, found.difference) == (0, 0.0), way


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_drafter_with_features_works_on_the_device(dtype, device, tmp_path):
    prompts = prompts_for(96, 2)
    config, weights, _ = golden("gqa")
    host = Model(from_dict(config), weights, dtype=dtype)
    wanted = generate(host, prompts, drafter=random_head(host), budget=6, max_new=6)
    record(host, prompts, random_head(host), tmp_path / "host.kdtr", width=6, max_new=6)
    model = device("gqa", dtype=dtype)
    found = generate(model, prompts, drafter=random_head(model), budget=6, max_new=6)
    for one, other in zip(wanted.tokens, found.tokens, strict=True):
        np.testing.assert_array_equal(one, other)
    record(model, prompts, random_head(model), tmp_path / "device.kdtr", width=6, max_new=6)
    one, other = load_trace(tmp_path / "host.kdtr"), load_trace(tmp_path / "device.kdtr")
    np.testing.assert_array_equal(one.draft_ids, other.draft_ids)
