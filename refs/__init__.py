"""References of every stage in numpy: slow on purpose, written to be read beside the definition.

Each module has the name of its stage (``refs/tree_build.py`` belongs to ``kernels_cu/tree_build.cu``), its
function the name and the argument names of the public one.  A kernel is right when it agrees with the
reference; where the two may differ is said in ``docs/numerics.md``.  Nothing here imports the package: only
numpy, and ml_dtypes for bfloat16.
"""
