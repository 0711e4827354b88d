"""Finding kernel text: order of folders, includes, replaced text, edits."""

from __future__ import annotations

import os
import time

import pytest
from library_tools import HEADER, SCALE, sources  # noqa: F401

from kdtree_cupy.errors import CompileError
from kdtree_cupy.library.sources import Sources, package_folder


@pytest.fixture
def folder(sources):  # noqa: F811
    return sources


def test_unit_holds_main_and_header(folder):
    unit = Sources([folder]).unit("scale.cu")
    assert set(unit.texts) == {"scale.cu", "scale.cuh", "common.cuh"}
    assert unit.spellings == {"scale.cuh": "scale.cuh", "common.cuh": "common.cuh"}
    assert unit.origins["scale.cuh"] == str(folder / "scale.cuh")


def test_same_text_same_digest_in_another_folder(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_text(path.read_text())
    assert Sources([folder]).unit("scale.cu").digest == Sources([other]).unit("scale.cu").digest


def test_unchanged_files_give_the_same_object(folder):
    found = Sources([folder])
    assert found.unit("scale.cu") is found.unit("scale.cu")


@pytest.mark.parametrize("file", ["scale.cu", "scale.cuh"])
def test_edit_is_seen(folder, file):
    found = Sources([folder])
    before = found.unit("scale.cu").digest
    path = folder / file
    path.write_text(path.read_text() + "\n// edited\n")
    assert found.unit("scale.cu").digest != before


@pytest.mark.parametrize("file", ["scale.cu", "scale.cuh"])
def test_edit_of_same_size_and_same_times_within_a_second_is_seen(folder, file):
    # what a file system with times of one second leaves after two edits within it
    found, path = Sources([folder]), folder / file
    path.write_text(path.read_text() + "// A")
    now = time.time_ns() // 10**9 * 10**9
    os.utime(path, ns=(now, now))
    before = found.unit("scale.cu").digest
    path.write_text(path.read_text()[:-1] + "B")
    os.utime(path, ns=(now, now))
    assert found.unit("scale.cu").digest != before


def test_header_that_appears_beside_the_file_wins(folder, tmp_path):
    deep = tmp_path / "first"
    deep.mkdir()
    (deep / "scale.cu").write_text(SCALE)
    found = Sources([deep, folder])
    before = found.unit("scale.cu")
    (deep / "scale.cuh").write_text("#define KD_FACTOR 9.0f\n")
    after = found.unit("scale.cu")
    assert before.origins["scale.cuh"] == str(folder / "scale.cuh")
    assert after.texts["scale.cuh"] == "#define KD_FACTOR 9.0f\n"


def test_headers_of_headers_in_folders_below(folder):
    (folder / "deep").mkdir()
    (folder / "deep/a.cuh").write_text('#include "b.cuh"\n')
    (folder / "deep/b.cuh").write_text('#include "../scale.cuh"\n')
    (folder / "scale.cu").write_text('#include "deep/a.cuh"\n')
    unit = Sources([folder]).unit("scale.cu")
    assert set(unit.texts) == {"scale.cu", "deep/a.cuh", "deep/b.cuh", "scale.cuh", "common.cuh"}
    assert unit.spellings["../scale.cuh"] == "scale.cuh"


def test_circular_includes_end(folder):
    (folder / "scale.cuh").write_text('#pragma once\n#include "scale.cuh"\n')
    assert len(Sources([folder]).unit("scale.cu").texts) == 2


def test_one_spelling_for_two_files_is_refused(folder):
    (folder / "deep").mkdir()
    (folder / "deep/a.cuh").write_text('#include "scale.cuh"\n')
    (folder / "deep/scale.cuh").write_text("// another\n")
    (folder / "scale.cu").write_text('#include "scale.cuh"\n#include "deep/a.cuh"\n')
    with pytest.raises(CompileError, match="spell them differently"):
        Sources([folder]).unit("scale.cu")


def test_includes_never_leave_the_folders(folder):
    (folder.parent / "secret.cuh").write_text("x")
    (folder / "scale.cu").write_text('#include "../secret.cuh"\n#include "/etc/hostname"\n')
    assert set(Sources([folder]).unit("scale.cu").texts) == {"scale.cu"}


def test_replace_and_undo(folder):
    found = Sources([folder])
    before = found.unit("scale.cu")
    found.replace("scale.cuh", "#define KD_FACTOR 5.0f")
    assert found.unit("scale.cu").texts["scale.cuh"] == "#define KD_FACTOR 5.0f"
    assert found.unit("scale.cu").origins["scale.cuh"] == "scale.cuh (replaced)"
    found.replace("scale.cuh", None)
    assert found.unit("scale.cu").digest == before.digest


def test_replace_refuses_unknown_names_unless_new(folder):
    found = Sources([folder])
    with pytest.raises(ValueError, match=r"scal\.cu: no such kernel file; there are .*scale\.cu.*new=True"):
        found.replace("scal.cu", "")
    found.replace("scal.cu", SCALE, new=True)
    assert found.unit("scal.cu").texts["scal.cu"] == SCALE
    assert "scal.cu" in found.files()
    with pytest.raises(TypeError, match="wanted str"):
        found.replace("scale.cu", b"bytes")


@pytest.mark.parametrize("name", ["../x.cu", "/etc/passwd", "..", "a/../../x.cu"])
def test_names_outside_are_refused(folder, name):
    with pytest.raises(ValueError, match="wanted a name relative to a source folder"):
        Sources([folder]).unit(name)


def test_unknown_file_lists_what_there_is(folder):
    with pytest.raises(ValueError, match=r"nope\.cu: no such kernel file; there are .*scale\.cu"):
        Sources([folder]).unit("nope.cu")


def test_source_that_is_no_folder(tmp_path):
    with pytest.raises(ValueError, match="wanted a folder"):
        Sources([tmp_path / "absent"])


def test_text_that_is_not_utf8_names_the_byte(folder):
    (folder / "scale.cuh").write_bytes(b"// \xff")
    with pytest.raises(ValueError, match=r"scale\.cuh: not UTF-8 text at byte 3"):
        Sources([folder]).unit("scale.cu")


def test_what_counts_as_edited(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("kdtree_cupy.library.sources.package_folder", lambda: folder)
    found = Sources()
    assert not found.unit("scale.cu").edited
    found.replace("scale.cuh", HEADER)
    assert not found.unit("scale.cu").edited, "the same text is no edit"
    found.replace("scale.cuh", HEADER + " ")
    assert found.unit("scale.cu").edited
    found.replace("scale.cuh", None)
    (folder / "scale.cu").write_text(SCALE + " ")
    assert found.unit("scale.cu").edited, "the package's own file, edited while we look"
    (folder / "scale.cu").write_text(SCALE)
    assert not found.unit("scale.cu").edited
    mine = tmp_path / "copy"
    mine.mkdir()
    (mine / "scale.cu").write_text(SCALE)
    assert not Sources([mine]).unit("scale.cu").edited, "a copy of the package's file"
    (mine / "new.cu").write_text(SCALE)
    assert Sources([mine]).unit("new.cu").edited


def test_package_folder_exists():
    assert package_folder().name == "kernels_cu"
