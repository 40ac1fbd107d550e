"""Text to token ids and back, as far as this engine needs it. Used by the server."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

MOST_HELD = 4
"""Tokens that may have to come together to make one character: UTF-8 has up to four bytes."""


class Tokenizer(Protocol):
    """Text <-> token ids."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special ones."""

    def decode(self, ids: list[int]) -> str:
        """Text of ids; what isn't a whole character is U+FFFD."""


class Bytes:
    """A byte is a token, 1 to 256: for models that never saw a text. Needs a vocabulary of 257."""

    def encode(self, text: str) -> list[int]:
        """Its UTF-8 bytes, each one up: 0 is the customary stop token."""
        return [byte + 1 for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        """Ids beyond 256 begin again."""
        return bytes((id_ - 1) % 256 for id_ in ids).decode(errors="replace")


class FromFile:
    """A tokenizer.json, by the tokenizers library. Raises ImportError without that."""

    def __init__(self, path: Path) -> None:
        self._own: Any = import_module("tokenizers").Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        return list(self._own.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Special tokens left out."""
        return str(self._own.decode(ids, skip_special_tokens=True))


def tokenizer_for(weights: str | None, *, vocab_size: int) -> Tokenizer | None:
    """That of a folder of weights; bytes for random ones; None where texts can't be taken."""
    if weights is None:
        return Bytes() if vocab_size > 256 else None
    path = Path(weights) / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return FromFile(path)
    except ImportError:
        return None


class Pieces:
    """Text of a growing list of ids, piece by piece: the pieces join to the text of the whole.

    A new id is decoded together with those before it, since spaces belong to neighbours, and is
    held back while its bytes are no whole character.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """What can be said after this id; empty without a tokenizer."""
        self._held.append(token)
        if self._tokenizer is None:
            return ""
        known = self._tokenizer.decode(self._before)
        text = self._tokenizer.decode(self._before + self._held)
        if text.endswith("\ufffd") and len(self._held) < MOST_HELD:
            return ""
        return self._take(text[len(known) :])

    def rest(self) -> str:
        """What was still held back at the end."""
        if self._tokenizer is None or not self._held:
            return ""
        known = self._tokenizer.decode(self._before)
        return self._take(self._tokenizer.decode(self._before + self._held)[len(known) :])

    def _take(self, piece: str) -> str:
        self._before, self._held = self._held, []
        return piece
