"""A decoder over numpy or CuPy arrays: one pass over the nodes of a batch of trees.

A pass commits nothing: it returns the nodes' KV rows, and :func:`kdtree_cupy.kv_commit` moves those of the
accepted path into the cache.  A prompt is a tree that is a chain, so prefill and decoding are the same pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import products
from .attention import Nodes, gqa, has_kernel, hidden_rows, mla
from .cache import PagedCache
from .config import ModelConfig
from .fused import rms_norm
from .layers import computes_all, gated_mlp, join_experts, moe, same, to_bfloat16
from .place import Places
from .rope import RopeTable, frequencies
from .tensors import layer_shapes

Array = Any
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.float32}
WIDER = {"float32": np.float64}
"""Number type of the sums over latents; products of float16 are added up in float32 anyway."""


class Pass(NamedTuple):
    """Result of :meth:`Model.forward`.

    Attributes
    ----------
    hidden : [b, n, C]
        After the last norm.
    rows : [L, b, n, row_size]
        KV rows of the nodes.
    features : float32 [b, n, layers * C] or None
        Residual stream after the layers asked for, side by side.
    """

    hidden: Array
    rows: Array
    features: Array | None


class Model:
    """A decoder with its weights.

    Parameters
    ----------
    config : ModelConfig
        The shape.
    weights : mapping of str to array
        Tensors by their Hugging Face names, any floating type; see :mod:`kdtree_cupy.engine.load`.
    xp : module
        ``numpy`` or ``cupy``: where weights, cache and arithmetic are.
    dtype : {"float32", "float16", "bfloat16"}
        Of weights, activations and KV rows.  float16 is for GPUs.  bfloat16 is imitated: arrays are float32
        and products are added up in float32, but weights, KV rows and the result of every step are rounded.
    library : KernelLibrary, optional
        For the stages.  Default: the numpy references for numpy arrays (the host backend checks kernels, it
        is no faster), kernels for CuPy arrays.

    Raises
    ------
    ValueError
        A tensor is missing or has another shape; an unknown dtype.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, np.ndarray],
        *,
        xp: Any = np,
        dtype: str = "float32",
        library: Any = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)}")
        if library is None and xp is np:
            from ..library import KernelLibrary

            library = KernelLibrary(backend="numpy")
        self.config, self.xp, self.library, self.dtype = config, xp, library, np.dtype(DTYPES[dtype])
        self._round = to_bfloat16 if dtype == "bfloat16" else same
        self.places = Places()
        self._weights = weights
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = self._tensor("model.embed_tokens.weight", shape)
        self.head = self.embedding if config.tie_word_embeddings else self._tensor("lm_head.weight", shape)
        self._norm = self._tensor("model.norm.weight", shape[1:])
        self._layers = [self._layer(index) for index in range(config.num_hidden_layers)]
        del self._weights
        size = config.qk_rope_head_dim if config.is_mla else config.head_dim
        self._rope = RopeTable(*frequencies(config, size), xp)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def never_waits(self) -> bool:
        """Whether a pass launches kernels only, so that a CUDA graph can hold it."""
        dense = all("mlp.gate.weight" not in layer or "mlp.experts.gate" in layer for layer in self._layers)
        return dense

    def reserve(self, positions: int) -> tuple[Array, ...]:
        """Make passes up to ``positions`` possible; return arrays that captured passes read, to be kept."""
        return self._rope.reserve(positions)

    def new_cache(self, batch: int, capacity: int, *, page_size: int = 16) -> PagedCache:
        """Return an empty cache for ``batch`` requests of at most ``capacity`` rows."""
        c = self.config
        options = {"page_size": page_size, "dtype": self.dtype, "xp": self.xp}
        return PagedCache(c.num_hidden_layers, c.row_size, batch, capacity, **options)

    def forward(
        self,
        tokens: Array,
        positions: Array,
        mask: Array,
        counts: Array,
        cache: PagedCache,
        *,
        features: Sequence[int] = (),
    ) -> Pass:
        """Run all layers over the nodes of a batch of trees; :meth:`reserve` comes first.

        Parameters
        ----------
        tokens, positions : int32 [b, n]
            As :func:`kdtree_cupy.tree_build` gives them.
        mask : uint32 [b, n, ceil(n/32)]
        counts : int32 [b]
            Real nodes; results of other rows mean nothing.
        cache : PagedCache
            Prefixes of ``cache.lengths`` rows; read only.
        features : sequence of int
            Layers whose output a drafter wants.
        """
        xp, config = self.xp, self.config
        places = cache.page_table.shape[1] * cache.page_size
        hidden = None if has_kernel(config, self.dtype, xp) else hidden_rows(mask, cache.lengths, places, xp)
        nodes = Nodes(positions, mask, counts, cache.lengths, cache, hidden)
        x, rounded = self.embedding[tokens], self._round
        rows = xp.zeros((len(self._layers), *tokens.shape, config.row_size), self.dtype)
        size = config.hidden_size
        kept = xp.empty((*tokens.shape, size * len(features)), np.float32) if len(features) else None
        for index, layer in enumerate(self._layers):
            y = rounded(rms_norm(x, layer["input_layernorm.weight"], config.rms_norm_eps, xp))
            if config.is_mla:
                y = mla(y, layer, config, self._rope, nodes, index, rows[index], self.library)
            else:
                y = gqa(y, layer, config, self._rope, nodes, index, rows[index], self.library)
            x = rounded(x + y)
            y = rounded(rms_norm(x, layer["post_attention_layernorm.weight"], config.rms_norm_eps, xp))
            if "mlp.gate.weight" in layer:
                y = moe(y.reshape(-1, y.shape[-1]), layer, config, xp).reshape(y.shape)
            else:
                y = gated_mlp(y, layer, "mlp", xp)
            x = rounded(x + y)
            for place in (i for i, wanted in enumerate(features) if wanted == index):
                kept[..., place * size : (place + 1) * size] = x
        return Pass(rounded(rms_norm(x, self._norm, config.rms_norm_eps, xp)), rows, kept)

    def logits(self, hidden: Array) -> Array:
        """Return float32 [..., V] from rows of :attr:`Pass.hidden`."""
        return products.linear(hidden, self.head, self.xp, np.float32)

    def _tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        if name not in self._weights:
            raise ValueError(f"weights: {name!r} is missing")
        found = self._weights[name]
        if shape is not None and found.shape != shape:
            raise ValueError(f"weights: {name}: got shape {found.shape}, wanted {shape}")
        if isinstance(found, np.ndarray):
            found = np.ascontiguousarray(found)
        return self._round(self.xp.asarray(found.astype(self.dtype, copy=False)))

    def _layer(self, index: int) -> dict[str, Array]:
        prefix, config = f"model.layers.{index}.", self.config
        names = [name.removeprefix(prefix) for name in self._weights if name.startswith(prefix)]
        if not names:
            raise ValueError(f"weights: no tensor of layer {index}, wanted {config.num_hidden_layers} layers")
        routed = "mlp.gate.weight" in names
        shapes = layer_shapes(config, routed=routed)
        layer = {name: self._tensor(prefix + name, shape) for name, shape in shapes.items()}
        known = [name for name in names if name not in shapes]  # biases, which few checkpoints have
        layer |= {name: self._tensor(prefix + name) for name in known}
        if config.is_mla:
            heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
            both = layer.pop("self_attn.kv_b_proj.weight").reshape(heads, -1, rank)
            layer["w_uk"] = self.xp.ascontiguousarray(both[:, :nope])
            values = both[:, nope:].transpose(0, 2, 1)
            layer["w_uv"] = self.xp.ascontiguousarray(values, WIDER.get(self.dtype.name))
        if routed and computes_all(config):
            join_experts(layer, config, self.xp)
        if self._round is not same:
            layer["rounding"] = self._round
        return layer
