"""Conversions between .kdtr, .npz and .safetensors: nothing is lost, nothing is unpickled."""

from __future__ import annotations

import itertools
import json
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kdtree_cupy import convert, kdtr
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.kdtr_format import DTYPES

SUFFIXES = (".kdtr", ".npz", ".safetensors")
HEADERS = (
    {},
    {"target": "é", "n": "1"},
    {"K": 32, "temperature": 0.1, "deep": [{"x": None}, True, "\ud800"]},
)


def content() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = {}
    for name, dtype in DTYPES.items():
        for shape in ((), (0,), (3, 0), (5, 3)):
            bits = rng.integers(0, 2 if name == "bool" else 256, (*shape, dtype.itemsize)).astype(np.uint8)
            arrays[f"{name}.{len(shape)}.{shape[0] if shape else 0}"] = bits.view(dtype).reshape(shape)
    return arrays


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(SUFFIXES, 2)])
def test_any_way_round_gives_the_same_file(tmp_path, first, second, header):
    kdtr.write(tmp_path / "start.kdtr", content(), header)
    steps = ["start.kdtr", f"one{first}", f"two{second}", "end.kdtr"]
    for source, target in itertools.pairwise(steps):
        convert.convert(tmp_path / source, tmp_path / target)
    assert (tmp_path / "end.kdtr").read_bytes() == (tmp_path / "start.kdtr").read_bytes()
    found, arrays = convert.read_arrays(tmp_path / steps[2])
    assert found == header
    assert sorted(arrays) == sorted(content())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_content_same_bytes(tmp_path, suffix):
    forward, backward = tmp_path / f"f{suffix}", tmp_path / f"b{suffix}"
    convert.write_arrays(forward, content(), HEADERS[2])
    convert.write_arrays(backward, dict(reversed(content().items())), dict(reversed(HEADERS[2].items())))
    assert forward.read_bytes() == backward.read_bytes()


def test_trace_as_numpy_saves_it(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "tokens": rng.integers(0, 99, 50).astype(">i4"),
        "draft_logprobs": np.asfortranarray(-rng.random((50, 3, 4)).astype(np.float32)),
        "draft_ids": rng.integers(0, 99, (50, 3, 4)).astype(np.uint16)[::-1],
        "empty": np.zeros((0, 3)),
        "scalar": np.float64(2.5),
    }
    meta = {"target": "small", "K": 4, "temperature": 0.0}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "t.npz", meta=json.dumps(meta), **arrays)
        convert.convert(tmp_path / "t.npz", tmp_path / "t.kdtr", force=True)
        file = kdtr.read(tmp_path / "t.kdtr")
        assert file.header == meta
        assert sorted(file.arrays) == sorted(arrays)
        for name, array in arrays.items():
            assert file.arrays[name].dtype == np.asarray(array).dtype.newbyteorder("=")
            np.testing.assert_array_equal(file.arrays[name], array)
    convert.convert(tmp_path / "t.kdtr", tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz") as back:
        assert json.loads(str(back["meta"])) == meta
        assert all((back[name] == array).all() for name, array in arrays.items())


def test_other_readers_and_writers_of_safetensors(tmp_path):
    arrays = {
        name: a for name, a in content().items() if "float8" not in name
    }  # their numpy side lacks float8
    convert.write_arrays(tmp_path / "ours.safetensors", arrays, {"a": "b"})
    with safetensors.safe_open(tmp_path / "ours.safetensors", "np") as file:
        assert file.metadata() == {"a": "b"}
        assert sorted(file.keys()) == sorted(arrays)
        for name, array in arrays.items():
            theirs = file.get_tensor(name)
            assert (theirs.dtype, theirs.shape, theirs.tobytes()) == (
                array.dtype,
                array.shape,
                array.tobytes(),
            )
    plain = {name: a for name, a in arrays.items() if "bfloat16" not in name and a.size}
    safetensors.numpy.save_file(plain, tmp_path / "theirs.safetensors", {"k": "v"})
    header, found = convert.read_arrays(tmp_path / "theirs.safetensors")
    assert header == {"k": "v"}
    assert {name: a.tobytes() for name, a in found.items()} == {
        name: a.tobytes() for name, a in plain.items()
    }


def test_converting_onto_files(tmp_path):
    kdtr.write(tmp_path / "x.kdtr", {"a": np.arange(3)})
    (tmp_path / "x.npz").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="--force"):
        convert.convert(tmp_path / "x.kdtr", tmp_path / "x.npz")
    assert (tmp_path / "x.npz").read_bytes() == b"precious"
    convert.convert(tmp_path / "x.kdtr", tmp_path / "x.npz", force=True)
    before = (tmp_path / "x.kdtr").read_bytes()
    convert.convert(tmp_path / "x.kdtr", tmp_path / "x.kdtr", force=True)
    assert (tmp_path / "x.kdtr").read_bytes() == before
    with pytest.raises(ValueError, match=r"suffix '.bin', wanted one of .kdtr, .npz, .safetensors"):
        convert.convert(tmp_path / "x.kdtr", tmp_path / "x.bin")
    with pytest.raises(KdtrError, match="is a folder"):
        convert.read_arrays(tmp_path)
    for suffix in SUFFIXES:
        with pytest.raises(KdtrError, match="no such file"):
            convert.read_arrays(tmp_path / f"missing{suffix}")
    (tmp_path / "wrong.npz").write_bytes(before)
    with pytest.raises(KdtrError, match=r"no .npz file but a KDTR file: rename it to .kdtr"):
        convert.read_arrays(tmp_path / "wrong.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_failed_conversion_leaves_no_target(tmp_path, suffix):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(KdtrError):
        convert.convert(tmp_path / "x.npz", tmp_path / f"y{suffix}")
    with pytest.raises(TypeError, match="array 'a': dtype"):
        convert.write_arrays(tmp_path / f"y{suffix}", {"a": np.array(["text"])})
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("suffix", "arrays", "header", "words"),
    [
        (".npz", {"meta": np.zeros(1)}, {"a": 1}, "rename the array"),
        (".npz", {}, {"kdtr_dtypes": {}}, "is reserved"),
        (".safetensors", {}, {"kdtr_header": ""}, "are reserved"),
        (".safetensors", {"__metadata__": np.zeros(1)}, {}, "are reserved"),
    ],
)
def test_reserved_names(tmp_path, suffix, arrays, header, words):
    with pytest.raises(ValueError, match=words):
        convert.write_arrays(tmp_path / f"x{suffix}", arrays, header)


def _safetensors(top, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = top if isinstance(top, bytes) else json.dumps(top).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(**changes):
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "is no .safetensors file but a PNG image"),
        (_safetensors(_tensor(), length=1 << 62), "header of 4611686018427387904 bytes, wanted at most"),
        (_safetensors(_tensor(), length=1 << 20), "truncated"),
        (_safetensors(_tensor())[:-1], "to end within 7 bytes of data"),
        (_safetensors(_tensor(), bytes(9)), "1 bytes after the last tensor"),
        (_safetensors(b'{"x": NaN}'), "NaN is not JSON"),
        (_safetensors(b'{"x": "\xff"}'), "not UTF-8"),
        (_safetensors(b'{"x":' * 5000 + b"1" + b"}" * 5000), "nested deeper"),
        (_safetensors(b'{"x": 1, "x": 2}'), "key 'x' is given twice"),
        (_safetensors({"x": 1}), "wanted an object with dtype"),
        (_safetensors({"../x": {}}), "name, wanted"),
        (_safetensors({"__metadata__": {"a": 1}}, b""), "wanted an object of strings"),
        (_safetensors({"__metadata__": {"kdtr_header": "{"}}, b""), "kdtr_header"),
        (_safetensors({"__metadata__": {"kdtr_header": "[]"}}, b""), "wanted a JSON object"),
        (_safetensors(_tensor(dtype="C64")), "dtype 'C64'"),
        (_safetensors(_tensor(shape=[-2])), "shape"),
        (_safetensors(_tensor(shape=[2**62, 2**62])), "63-bit"),
        (_safetensors(_tensor(shape=[3])), "8 bytes, but F32.* takes 12"),
        (_safetensors(_tensor(shape=[1 << 40], data_offsets=[0, 1 << 42])), "to end within 8 bytes"),
        (_safetensors(_tensor(data_offsets=[8, 0])), "data_offsets 8..0"),
        (_safetensors(_tensor(data_offsets=[0])), "two integers"),
        (_safetensors({**_tensor(), "y": {"dtype": "I8", "shape": [4], "data_offsets": [4, 8]}}), "overlap"),
        (_safetensors(_tensor(shape=[1], data_offsets=[4, 8])), "belong to no tensor"),
        (_safetensors(_tensor(dtype="BOOL", shape=[8]), b"\0\1\2" + bytes(5)), "is no bool"),
    ],
)
def test_hostile_safetensors(tmp_path, content, words):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(KdtrError, match=words) as caught:
        convert.read_arrays(path)
    assert str(path) in str(caught.value)
