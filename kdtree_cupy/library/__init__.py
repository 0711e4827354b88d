"""Kernel library: kernels are found by name, compiled when called, checked and launched.

>>> from kdtree_cupy.library import KernelLibrary
>>> KernelLibrary(backend="numpy").backend
'numpy'

A stage asks where a call belongs and launches there::

    run = resolve(library, {"ids": ids, "logprobs": logprobs})
    tokens = run.empty((batch, nodes), "int32")
    run.launch("tree_build.cu", "tree_build_v2", batch, 256, (ids, logprobs, tokens, np.int32(nodes)))
"""

from .kernel_library import KernelLibrary
from .resolve import Run, resolve
from .worker import KernelError

__all__ = ["KernelError", "KernelLibrary", "Run", "resolve"]
