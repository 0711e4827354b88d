"""What a large mixture-of-experts model with latent attention reads per step: weights, not measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """Sizes of a mixture-of-experts model with latent attention, and the number types of its weights.

    The defaults are those of Kimi K2's published configuration; routed experts have 4 bits, the rest 16.
    """

    layers: int = 61
    dense_layers: int = 1
    hidden: int = 7168
    heads: int = 64
    query_rank: int = 1536
    latent: int = 512
    rope: int = 64
    head_size: int = 128
    dense_size: int = 18_432
    expert_size: int = 2048
    experts: int = 384
    chosen: int = 8
    vocab: int = 163_840
    expert_bytes: float = 0.5
    other_bytes: float = 2.0

    drafter_layers: int = 5

    def attention_parameters(self) -> int:
        """Return weights of one layer's attention."""
        queries = self.hidden * self.query_rank + self.query_rank * self.heads * (self.head_size + self.rope)
        keys = self.hidden * (self.latent + self.rope) + self.latent * self.heads * 2 * self.head_size
        return queries + keys + self.heads * self.head_size * self.hidden

    def bytes_read(self, tokens: float, *, gpus: int, split_attention: bool) -> float:
        """Return weight bytes that one of ``gpus`` reads for a step of ``tokens`` rows.

        Experts, dense layers and the head are spread over the GPUs; attention is, too, where
        ``split_attention`` (tensor parallel), else each GPU holds all heads (data parallel).
        """
        expert = 3 * self.hidden * self.expert_size
        sparse = self.layers - self.dense_layers
        touched = self.experts * (1.0 - (1.0 - self.chosen / self.experts) ** tokens)
        routed = sparse * touched * expert * self.expert_bytes
        router = sparse * self.hidden * self.experts
        dense = self.dense_layers * 3 * self.hidden * self.dense_size + sparse * expert + router
        head = self.vocab * self.hidden
        attention = self.layers * self.attention_parameters() * self.other_bytes
        spread = routed + (dense + head) * self.other_bytes
        return spread / gpus + attention / (gpus if split_attention else 1)

    def drafter_bytes(self) -> float:
        """Return weight bytes of a block drafter: some dense layers of this width, and the shared head."""
        layer = self.attention_parameters() + 3 * self.hidden * self.dense_size
        return (self.drafter_layers * layer + self.vocab * self.hidden) * self.other_bytes
