"""The engine keeps host and device apart: it runs on arrays that refuse to be mixed, as CuPy's do."""

import numpy as np
import pytest
from device_arrays import DeviceArray, DeviceModule, on_device
from engine_tools import FAMILIES, golden, prompts_for, small_gqa, tiny
from test_record import random_head
from tolerances import LOSSLESS_LOGITS

from kdtree_cupy import tree
from kdtree_cupy.engine import (
    Model,
    NGramDrafter,
    attention,
    from_dict,
    fused,
    generate,
    products,
    step,
    topk,
)
from kdtree_cupy.engine.captured import Captured
from kdtree_cupy.engine.lossless import compare, recorded
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.record import record
from kdtree_cupy.trace import load_trace

STAGES = {
    step: ("tree_build", "target_token", "tree_accept", "kv_commit"),
    attention: ("verify_attn", "verify_attn_gqa"),
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

    def start(family, size=None, **options):
        plain = KernelLibrary(backend="numpy")
        for module, names in STAGES.items():
            for name in names:
                monkeypatch.setattr(module, name, on_device(getattr(module, name), plain))
        # what tells numpy from device arrays must not take these for numpy's
        monkeypatch.setattr(tree, "_to_numpy", lambda array: array.get())
        monkeypatch.setattr(topk, "on_host", lambda rows: not isinstance(rows, DeviceArray))
        config, weights = small_gqa(96, size=size) if size else golden(family)[:2]
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


def test_heads_of_64_are_attended_by_the_kernel(device, monkeypatch):
    """In float32, whose differences say something; it is float16 that chooses the kernel."""
    prompts = prompts_for(96, 3)
    options = {"drafter": NGramDrafter(96), "max_new": 8, "page_size": 4}
    config, weights = small_gqa(96, size=64)
    host = Model(from_dict(config), weights)
    wanted = [recorded(host, prompts, **options, **way) for way in WAYS]
    model = device("gqa", size=64)
    assert attention.has_kernel(model.config, np.float16, model.xp)
    assert not attention.has_kernel(model.config, np.float32, model.xp)
    assert not attention.has_kernel(host.config, np.float16, np)
    monkeypatch.setattr("kdtree_cupy.engine.model.has_kernel", lambda *_: True)
    for way, plain in zip(WAYS, wanted, strict=True):
        found = compare(plain, recorded(model, prompts, **options, **way))
        assert found.flips == 0 and found.difference <= LOSSLESS_LOGITS, way


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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_products_on_a_gpu_are_those_of_numpy(dtype):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, size).astype(dtype) for size in ((5, 4, 3, 8), (3, 8, 16)))
    x, w = a[:, 1, :, 1:6], b[:, 1:6]  # views; products of small integers are exact in every type
    on_gpu = cupy.asarray(a)[:, 1, :, 1:6], cupy.asarray(b)[:, 1:6]
    np.testing.assert_array_equal(products.by_head(*on_gpu, cupy).get(), products.by_head(x, w, np))
    flat = cupy.asarray(a).reshape(-1, 8), cupy.asarray(b[0].T.copy())
    wanted = products.linear(a.reshape(-1, 8), b[0].T, np)
    np.testing.assert_array_equal(products.linear(*flat, cupy).get(), wanted)
    call = Captured(lambda: out.__setitem__(..., products.linear(*flat, cupy)), cupy)
    out = cupy.zeros(wanted.shape, dtype)
    for factor in (1, 2, 3):  # plainly, captured, launched again: each time on what the array holds then
        flat[0][:] = cupy.asarray(a).reshape(-1, 8) * factor
        out.fill(0)
        call()
        np.testing.assert_array_equal(out.get(), factor * wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_steps_between_products_on_a_gpu_are_those_of_numpy(dtype):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 3, 4, 8)).astype(dtype), rng.standard_normal(8).astype(dtype)
    angles = rng.standard_normal((9, 4)).astype(np.float32)
    positions = rng.integers(0, 9, (2, 3)).astype(np.int32)

    def steps(xp):
        given = [xp.asarray(array) for array in (x, weight, angles, positions)]
        y, w, table, places = given
        turned = [fused.rotate(y, places, table, -table, interleaved=pairs, xp=xp) for pairs in (True, False)]
        return [*turned, fused.rms_norm(y, w, 1e-5, xp), fused.gated(y, w, xp)]

    for got, wanted in zip(steps(cupy), steps(np), strict=True):
        allowed = 4 * np.finfo(dtype).eps * np.abs(wanted).max()  # a few roundings of the type
        np.testing.assert_allclose(got.get().astype(float), wanted.astype(float), rtol=0, atol=allowed)
