"""docs/traces.md: its example runs as printed, and its tables name what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdtree_cupy.trace import load_trace
from kdtree_cupy.trace_check import _HEADER_TYPES, OPTIONAL, REQUIRED, SCHEMA

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_recording_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, "docs/traces.md", "exec"), {"__name__": "example"})
    lines = capsys.readouterr().out.splitlines()
    taus = [float(re.search(r"tau (\d+\.\d+)", line)[1]) for line in lines]
    assert len(lines) == 3 and 1 < taus[0] < taus[1] <= taus[2] <= 7
    trace = load_trace("mine.kdtr")
    assert trace.lengths.tolist() == [40, 60, 80] and trace.ended().all()


@pytest.mark.parametrize("name", [*REQUIRED, *OPTIONAL, *_HEADER_TYPES, SCHEMA])
def test_every_array_and_field_is_described(name):
    assert re.search(rf"`{re.escape(name)}`", TEXT)
