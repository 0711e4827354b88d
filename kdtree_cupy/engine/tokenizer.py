"""Text to tokens and back: byte-level BPE from a GGUF file or ``tokenizer.json`` (library ``tokenizers``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..vocabulary import gpt2_bytes

_CONTROL = 3  # GGUF's type of a token that stands for no text


class Tokenizer:
    """A byte-level BPE with the chat template of its model.

    Parameters
    ----------
    inner : tokenizers.Tokenizer
        Encodes.
    pieces : sequence of bytes
        Text of every token; empty for control tokens.
    template : str or None
        Jinja template of a chat.
    specials : mapping of str to int
        Control tokens by name.

    Examples
    --------
    >>> from kdtree_cupy.engine.load import smollm2  # doctest: +SKIP
    >>> model, tokenizer = smollm2()  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode("def f():"))  # doctest: +SKIP
    'def f():'
    """

    def __init__(
        self, inner: Any, pieces: Sequence[bytes], template: str | None, specials: Mapping[str, int]
    ) -> None:
        self._inner, self.pieces, self._template, self.specials = inner, pieces, template, specials

    def encode(self, text: str) -> np.ndarray:
        """Return token ids, int32; names of control tokens in the text become those tokens."""
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, np.int32)

    def chat(self, question: str, system: str | None = None) -> np.ndarray:
        """Return the tokens of a question in the model's chat template, ready for the answer.

        Raises
        ------
        ValueError
            The model has no template.
        """
        if not self._template:
            raise ValueError("the model has no chat template")
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        names = {name: text for name, text in (("bos_token", ""), ("eos_token", ""))}
        page = environment.from_string(self._template)
        return self.encode(page.render(messages=messages, add_generation_prompt=True, **names))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; control tokens have none."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens: a token may be part of a character."""
        return b"".join(self.pieces[int(token)] for token in tokens)


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a GGUF file (:func:`kdtree_cupy.engine.gguf_file.read_gguf`).

    Raises
    ------
    ValueError
        Another kind of tokenizer than the byte-level BPE of SmolLM.
    ModuleNotFoundError
        The library ``tokenizers`` is missing.
    """
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer: got {kind}, wanted ('gpt2', 'smollm')")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    specials = {text: i for i, (text, one) in enumerate(zip(tokens, types, strict=True)) if one == _CONTROL}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    library = _library()
    inner = library.Tokenizer(library.models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    split = library.pre_tokenizers
    inner.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    inner.add_special_tokens(list(specials))
    pieces = [b"" if text in specials else gpt2_bytes(text) for text in tokens]
    return Tokenizer(inner, pieces, metadata.get("tokenizer.chat_template"), specials)


def from_folder(folder: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a checkpoint folder: ``tokenizer.json``, and the template beside it.

    Raises
    ------
    FileNotFoundError
        There is no ``tokenizer.json``.
    """
    import json

    inner = _library().Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = folder / "tokenizer_config.json"
    template = (
        json.loads(settings.read_text(encoding="utf-8")).get("chat_template") if settings.exists() else None
    )
    added = inner.get_added_tokens_decoder()
    pieces = [b""] * vocab_size
    for text, token in inner.get_vocab(with_added_tokens=True).items():
        if token < vocab_size and token not in added:
            pieces[token] = _piece(text)
    specials = {one.content: token for token, one in added.items()}
    return Tokenizer(inner, pieces, template if isinstance(template, str) else None, specials)


def _piece(text: str) -> bytes:
    try:
        return gpt2_bytes(text)
    except ValueError:  # not a byte-level vocabulary: sentence pieces mark blanks with U+2581
        return text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        message = (
            "text needs the library tokenizers: pip install 'kdtree-cupy[models]' (token ids work without)"
        )
        raise ModuleNotFoundError(message) from error
    return tokenizers
