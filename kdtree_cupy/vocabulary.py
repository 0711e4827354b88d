"""Token text: the raw bytes of every token of a vocabulary, so that trees and sequences can be read.

Examples
--------
>>> offsets, data = pack_vocabulary([b"def", " caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode()])
>>> piece(offsets, data, 1).decode()
' café'
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


def pack_vocabulary(pieces: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the trace arrays ``vocab_offsets`` int32 [V + 1] and ``vocab_bytes`` uint8 of token pieces.

    Parameters
    ----------
    pieces : iterable of bytes
        Token 0, 1, ...; a piece may be part of a character, or empty if the token has no text.

    Raises
    ------
    TypeError
        A piece that is not bytes, for example the printable stand-ins of a GPT-2 vocabulary
        (:func:`gpt2_bytes` undoes them).
    """
    listed = list(pieces)
    for token, one in enumerate(listed):
        if not isinstance(one, bytes):
            raise TypeError(f"pieces[{token}]: got {type(one).__name__}, wanted bytes")
    offsets = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([len(one) for one in listed], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(listed), np.uint8)


def piece(offsets: np.ndarray, data: np.ndarray, token: int) -> bytes:
    """Return the bytes of one token; empty if the vocabulary does not hold it."""
    if not 0 <= token < offsets.size - 1:
        return b""
    return data[int(offsets[token]) : int(offsets[token + 1])].tobytes()


def readable(raw: bytes) -> str:
    r"""Return a piece as a label: plain text, or in quotes where blanks or control characters matter.

    Examples
    --------
    >>> [readable(raw) for raw in (b"def", b" the", b"\n    ", b"\xe2\x80")]
    ['def', "' the'", "'\\n    '", "'\\xe2\\x80'"]
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return repr(raw)[1:]  # part of a character
    return text if text == text.strip() and text.isprintable() else repr(text)


def gpt2_bytes(token: str) -> bytes:
    """Return the bytes of an entry of a GPT-2 style vocabulary, which shows every byte as a letter.

    Parameters
    ----------
    token : str
        Entry of the vocabulary file, for example ``"Ġthe"`` for ``b" the"``.  Special tokens such as
        ``<|endoftext|>`` are plain text and come back as they are.

    Raises
    ------
    ValueError
        A character that stands for no byte.
    """
    table = _gpt2_table()
    try:
        return bytes(table[character] for character in token)
    except KeyError as error:
        raise ValueError(f"token {token!r}: {error.args[0]!r} stands for no byte") from error


@cache
def _gpt2_table() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other bytes for U+0100, U+0101, ... in turn."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}
