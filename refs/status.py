"""Bits of the status word; the same values as ``kdtree_cupy.limits`` (a test compares them)."""

NON_FINITE = 1 << 0
UNSORTED = 1 << 1
BAD_PARENT = 1 << 2
BAD_TARGET = 1 << 3
CAPACITY = 1 << 4
