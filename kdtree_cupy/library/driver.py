"""What the NVIDIA driver says: version and devices, asked without CuPy and without touching this process.

The question is put by a child process: ``cuInit`` in this one would forbid a later ``fork`` to use CUDA, and
a broken driver could hang or kill it.  Runs as a script (standard library only) and prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")


@dataclass(frozen=True)
class Device:
    """One CUDA device: ordinal, name, capability such as ``(12, 0)``, memory in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory: int

    @property
    def arch(self) -> str:
        """The architecture name, such as ``"sm_120"``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Driver:
    """The driver: library loaded, CUDA version it supports, devices, and a problem in words (or None)."""

    library: str | None = None
    version: tuple[int, int] | None = None
    devices: tuple[Device, ...] = ()
    problem: str | None = None


@lru_cache(maxsize=1)
def driver() -> Driver:
    """Return what the driver says; asked once per process (about 30 ms, at once without a driver)."""
    if not any(_can_load(name) for name in LIBRARIES):
        return Driver(problem="no NVIDIA driver: libcuda.so.1 is not found")
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__], capture_output=True, text=True, timeout=30, check=False
        )
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Driver(problem="the NVIDIA driver did not answer within 30 s")
    except ValueError:
        return Driver(problem=f"asking the NVIDIA driver failed: exit code {done.returncode}")
    except OSError as error:  # no interpreter to start, in an embedded Python
        return Driver(problem=f"asking the NVIDIA driver failed: {error}")
    devices = tuple(
        Device(d["ordinal"], d["name"], tuple(d["capability"]), d["memory"]) for d in said["devices"]
    )
    version = tuple(said["version"]) if said["version"] else None
    return Driver(said["library"], version, devices, said["problem"])


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _ask() -> dict[str, object]:
    said: dict[str, object] = {"library": None, "version": None, "devices": [], "problem": None}
    for name in LIBRARIES:
        try:
            cuda = ctypes.CDLL(name)
        except OSError:
            continue
        said["library"] = name
        break
    else:
        return {**said, "problem": "libcuda.so.1 is not found"}
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        said["version"] = [number.value // 1000, number.value % 1000 // 10]
    code = cuda.cuInit(0)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        return {**said, "problem": f"cuInit failed with {code}: {(text.value or b'unknown error').decode()}"}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    said["devices"] = [_describe(cuda, i) for i in range(number.value)]
    return said


def _describe(cuda: ctypes.CDLL, ordinal: int) -> dict[str, object]:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetName(name, 128, handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)  # compute capability, major
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)  # and minor
    return {
        "ordinal": ordinal,
        "name": name.value.decode(errors="replace"),
        "capability": [major.value, minor.value],
        "memory": memory.value,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask()))
    sys.stdout.flush()
