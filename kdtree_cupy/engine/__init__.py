"""A small engine with real weights: proof that the round is lossless, and a source of traces.

Two families of decoders (DeepSeek / Kimi with latent attention and experts; Llama with grouped queries) over
numpy or CuPy arrays, a paged cache, drafters, and one function::

    from kdtree_cupy.engine import NGramDrafter, generate, smollm2
    model, tokenizer = smollm2()
    done = generate(model, [tokenizer.chat("What is a tree?")], drafter=NGramDrafter(model.vocab_size))

The stages of a round are the public functions of this package.  The engine is made to be read and checked; on
a GPU its rounds are captured, but it is no serving engine.
"""

from .config import ModelConfig, from_dict
from .context import Context, Drafter
from .generate import Generation, generate
from .model import Model
from .ngram import NGramDrafter
from .rounds import Round

__all__ = [
    "Context",
    "Drafter",
    "Generation",
    "Model",
    "ModelConfig",
    "NGramDrafter",
    "Round",
    "from_dict",
    "generate",
]
