"""Hostile .npz files: sizes are checked before memory is taken, and no pickle is ever loaded."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from kdtree_cupy.errors import KdtrError
from kdtree_cupy.npz import read_npz


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


def npy(
    header: str | None = None, data: bytes = bytes(12), version: int = 1, length: int | None = None
) -> bytes:
    """Return .npy data with any header text; by default int32 [3]."""
    text = ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }" if header is None else header).encode(
        "latin-1"
    )
    size = len(text) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text + data
    )


def archive(members: dict[str, bytes] | None = None, compression=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in ({"x.npy": npy()} if members is None else members).items():
            file.writestr(name, content)
    return buffer.getvalue()


def claim(content: bytes, size: int) -> bytes:
    """Return the archive with the uncompressed size of its first member set to ``size``."""
    changed, central = bytearray(content), content.index(b"PK\x01\x02")
    struct.pack_into("<I", changed, 22, size)
    struct.pack_into("<I", changed, central + 24, size)
    return bytes(changed)


def shape(text: str, descr: str = "<i4") -> bytes:
    return npy(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {text}, }}")


def refused(path, content: bytes, words: str, **options) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(KdtrError, match=words) as caught:
            read_npz(path, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 4_000_000 + 8 * len(content)


def test_spellings_of_a_header_that_others_write(path):
    for text in (
        "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }" + " " * 40 + "\n",
        '{"descr":"<i4","fortran_order":False,"shape":(3,)}',
        "{ 'shape' : ( 3L, ) , 'fortran_order' : True , 'descr' : '<i4' }",
    ):
        for version in (1, 2, 3):
            path.write_bytes(archive({"x.npy": npy(text, version=version)}))
            assert read_npz(path)[1]["x"].tolist() == [0, 0, 0]


def test_directory_with_64_bit_fields(path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
    wide = archive({"x.npy": npy(), "y.npy": npy()})
    record = wide.index(b"PK\x06\x06")
    path.write_bytes(wide)
    assert sorted(read_npz(path)[1]) == ["x", "y"]
    for field, words in ((32, "members, directory"), (40, "directory of 1099511627776 bytes")):
        changed = bytearray(wide)
        struct.pack_into("<Q", changed, record + field, 1 << 40)
        refused(path, bytes(changed), words)
    refused(path, wide.replace(b"PK\x06\x06", b"PK\x06\x05"), "not where it belongs")


def test_zip_bomb(path):
    bomb = archive({"x.npy": shape("(50000000,)", "|u1")[:-12] + bytes(50_000_000)})
    assert len(bomb) < 100_000
    refused(path, bomb, "to 500000.. bytes, the limit is 1000000; .*--max-bytes", max_bytes=1_000_000)
    assert read_npz(path)[1]["x"].size == 50_000_000  # a person may raise the limit
    assert read_npz(path, max_bytes=50_000_200)[1]["x"].size == 50_000_000


def test_many_members_below_the_limit_each(path):
    bomb = archive({f"x{i}.npy": bytes(1_000_000) for i in range(20)})
    refused(path, bomb, "decompresses to 20000000 bytes", max_bytes=10_000_000)


def test_directory_that_lies(path):
    refused(path, claim(archive(), 0xFFFFFFF0), "claims 4294967280 bytes from .*: impossible")
    refused(path, claim(archive(), 3000), "12 bytes, the member has")
    refused(path, claim(archive(), 20), "describes no plain array|corrupt")


def test_large_claim_needs_data_behind_it(path):
    # 1 GiB claimed from 2 MiB of noise: possible for DEFLATE, below the limit, and a lie.
    noise = np.random.default_rng(0).bytes(2 << 20)
    head = shape(f"({1 << 30},)", "|u1")[:-12]
    path.write_bytes(claim(archive({"x.npy": head + noise}), len(head) + (1 << 30)))
    with pytest.raises(KdtrError, match=r"truncated|corrupt"):
        read_npz(path)


class Malicious:
    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return (self.sentinel.mkdir, ())


def test_pickles_are_never_loaded(path, tmp_path):
    sentinel = tmp_path / "executed"
    np.savez(path, x=np.array([Malicious(sentinel)], dtype=object))
    with pytest.raises(KdtrError, match="array 'x': holds pickled Python objects, which are never loaded"):
        read_npz(path)
    payload = pickle.dumps(Malicious(sentinel))
    for content, words in (
        ({"x.npy": payload}, "is no .npy data"),
        ({"x.pkl": payload}, "wanted NAME.npy"),
        ({"meta.npy": npy("{'descr': '|O', 'fortran_order': False, 'shape': (), }", payload)}, "pickled"),
    ):
        refused(path, archive(content), words)
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (b"", "is no .npy data"),
        (b"\x93NUMPY\x09\x00", "is no .npy data"),
        (npy(version=2, length=2**32 - 1), ".npy header of 4294967295 bytes"),
        (npy(length=20_000), ".npy header of 20000 bytes"),
        (npy(length=500), "describes no plain array"),
        (npy("__import__('os').system('true')"), "describes no plain array"),
        (npy("(" * 5000), "describes no plain array"),
        (npy("{" * 5000 + "}" * 5000), "describes no plain array"),
        (npy("{'descr': '<i4', 'fortran_order': False}"), "describes no plain array"),
        (npy("{'descr': '<i4', 'fortran_order': 1, 'shape': (3,)}"), "describes no plain array"),
        (npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,)}"), "describes no plain array"),
        (npy("{'descr': False, 'fortran_order': False, 'shape': (3,)}"), "describes no plain array"),
        (npy("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'x': 1}"), "describes no plain array"),
        (shape("(-3,)"), "describes no plain array"),
        (shape("(3.0,)"), "describes no plain array"),
        (shape("(1000000000000,)"), "takes 4000000000000 bytes"),
        (shape("(4611686018427387904, 4611686018427387904)"), "63-bit"),
        (shape("(0, 4611686018427387904, 4611686018427387904)"), "63-bit"),
        (shape("(" + "9" * 5000 + ",)"), "corrupt|63-bit"),
        (shape("(" + "1," * 33 + ")"), "33 axes"),
        (shape("(3,)", "<U500000000"), "dtype <U500000000"),
        (shape("(3,)", "<U0"), "has no size"),
        (shape("(3,)", "|V4"), "numpy lost the type"),
        (shape("(3,)", "<c8"), "dtype '<c8'"),
        (shape("(3,)", "<M8"), "dtype '<M8'"),
        (shape("(3,)", "<f3"), "corrupt"),
        (shape("(3,)", "<U1"), "dtype <U1"),
        (npy(data=bytes(11)), "takes 12 bytes, the member has 11"),
        (npy(data=bytes(13)), "takes 12 bytes, the member has 13"),
    ],
)
def test_hostile_member(path, member, words):
    refused(path, archive({"x.npy": member}), f"array 'x': .*({words})")


@pytest.mark.parametrize(
    "name", ["../x.npy", "/x.npy", "a/b.npy", "a\\b.npy", ".npy", "x", "x.npy.npz", "é.npy"]
)
def test_member_names(path, name):
    refused(path, archive({name: npy()}), "member .*, wanted NAME.npy")


def test_archives_of_other_kinds(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile warns of what this test is about
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("x.npy", npy())
            file.writestr("x.npy", npy())
    refused(path, buffer.getvalue(), "array 'x': name is given twice")
    refused(path, archive(compression=zipfile.ZIP_BZIP2), "compression 12, wanted stored or deflate")
    encrypted = bytearray(archive())
    encrypted[6] |= 1
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    refused(path, bytes(encrypted), "array 'x': is encrypted")
    refused(path, archive({f"x{i}.npy": b"" for i in range(4097)}), "4097 members, .* wanted at most 4096")
    crowd = archive({f"{i:0100}.npy": b"" for i in range(40_000)})
    refused(path, crowd, "40000 members, directory of [0-9]+ bytes")
    refused(path, b"", "is empty")
    refused(path, b"\x89PNG\r\n\x1a\n" + bytes(40), r"is no .npz file but a PNG image")
    path.write_bytes(archive({}))
    assert read_npz(path) == ({}, {})


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("not JSON", "array 'meta': Expecting value"),
        ("[1]", "wanted a JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1, "a": 2}', "given twice"),
        ("[" * 5000 + "]" * 5000, "nested deeper"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (["{}", "{}"], "wanted one string of JSON"),
        ('{"kdtr_dtypes": 1}', "wanted a JSON object"),
        ('{"kdtr_dtypes": {"y": "bfloat16"}}', "array 'y': kdtr_dtypes 'bfloat16' does not fit"),
        ('{"kdtr_dtypes": {"x": "bfloat16"}}', "array 'x': kdtr_dtypes 'bfloat16' does not fit"),
        ('{"kdtr_dtypes": {"x": ["a"]}}', "array 'x': kdtr_dtypes .* does not fit"),
        (np.array(["x" * (4 << 20) + " "]), "bytes of text, wanted at most"),
    ],
)
def test_hostile_meta(path, meta, words):
    np.savez_compressed(path, x=np.zeros(3), meta=np.array(meta))
    refused(path, path.read_bytes(), words)


def test_broken_archives_raise_or_still_hold_the_same(path):
    arrays = {"a": np.arange(40, dtype=np.int16), "b": np.float32([1.5])}
    np.savez_compressed(path, **arrays)
    base = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(base)):
        flipped = bytearray(base)
        flipped[at] ^= 1 << int(rng.integers(8))
        for content in (base[:at], bytes(flipped)):
            path.write_bytes(content)
            try:
                _, found = read_npz(path)
            except KdtrError as error:
                assert str(path) in str(error)
                continue
            # dates, modes and comments in an archive are under no checksum
            assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in arrays.items()}
