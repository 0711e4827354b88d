"""Files as ``torch.save`` writes them, made without torch."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from contextlib import contextmanager

import numpy as np


class Tensor:
    """What is pickled as a tensor."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)

    def __reduce_ex__(self, protocol):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        steps = tuple(s // self.array.itemsize for s in self.array.strides)
        return rebuild, (Storage(self.array), 0, self.array.shape, steps, False, {})


class Storage:
    """What is pickled as a reference to a storage."""

    def __init__(self, array):
        self.array = array


@contextmanager
def fake_torch():
    """Put modules in place that name what torch's pickles name."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("LongStorage", "FloatStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))
    exec("def _rebuild_tensor_v2(*a): pass", utils.__dict__)
    utils._rebuild_tensor_v2.__module__ = "torch._utils"
    before = {k: sys.modules.get(k) for k in ("torch", "torch._utils")}
    sys.modules |= {"torch": torch, "torch._utils": utils}
    try:
        yield torch
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def write(path, value, *, truncate=0, compress=False):
    """Write ``value`` as torch would; ``truncate`` bytes are cut off each storage."""
    storages = []
    with fake_torch() as torch:

        class Pickler(pickle.Pickler):
            def persistent_id(self, thing):
                if not isinstance(thing, Storage):
                    return None
                kind = torch.LongStorage if thing.array.dtype.kind == "i" else torch.FloatStorage
                storages.append(thing.array.tobytes())
                return "storage", kind, str(len(storages) - 1), "cpu", thing.array.size

        buffer = io.BytesIO()
        Pickler(buffer, 2).dump(value)
    write_zip(path, buffer.getvalue(), storages, truncate=truncate, compress=compress)


def write_zip(path, data, storages=(), *, truncate=0, compress=False):
    """Write the archive around a pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        archive.writestr("run/data.pkl", data)
        for i, raw in enumerate(storages):
            archive.writestr(f"run/data/{i}", raw[: len(raw) - truncate])
        archive.writestr("run/version", "3\n")


def run_value(lengths):
    """Return what DDTree's benchmark saves, for acceptance lengths by method: {method: [response, ...]}."""
    count = len(next(iter(lengths.values())))
    responses = [
        {
            method: types.SimpleNamespace(
                output_ids=Tensor(np.arange(6).reshape(1, 6)), num_input_tokens=3, acceptance_lengths=rows[i],
                time_per_output_token=np.float64(0.01), stage_times={"verify": [0.1, 0.2]},
            )
            for method, rows in lengths.items()
        }
        for i in range(count)
    ]  # fmt: skip
    return {"responses": responses, "block_size": 16, "args": {"temperature": 0.0, "dataset": "gsm8k"}}
