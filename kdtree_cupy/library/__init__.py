"""Kernel library: kernels are found by name, compiled when called, checked and launched.

>>> from kdtree_cupy.library import KernelLibrary
>>> KernelLibrary(backend="numpy").backend
'numpy'
"""

from .kernel_library import KernelLibrary

__all__ = ["KernelLibrary"]
