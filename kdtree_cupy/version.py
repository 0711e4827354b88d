"""The version, read from the installed metadata so that it is written once, in pyproject.toml."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kdtree-cupy")
except PackageNotFoundError:  # used from a folder that was not installed
    __version__ = "0+unknown"
