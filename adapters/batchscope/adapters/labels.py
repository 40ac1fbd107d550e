"""Strings by number: model, LoRA, tenant and seam names, once per segment. For the recorder."""

from __future__ import annotations

from collections.abc import Callable

from batchscope.schemas.records import STRING

MOST_LABELS = 1024
MOST_BYTES = 128
OTHER = "other"


class Labels:
    """Interns 1,024 strings per ring; the last number stands for all others, "other"."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append
        self._numbers: dict[str, int] = {}
        self._announced: set[int] = set()

    def forget(self) -> None:
        """A new segment begins: every number must be announced again before its next use."""
        self._announced.clear()

    def number(self, text: str | None) -> int:
        """The string's number, announced in this segment; 0 for no string."""
        if not text:
            return 0
        number = self._numbers.get(text)
        if number is None:
            text, number = self._intern(text)
        if number not in self._announced:
            self._announce(text if number < MOST_LABELS else OTHER, number)
        return number

    def _intern(self, text: str) -> tuple[str, int]:
        if len(self._numbers) >= MOST_LABELS - 1:
            return OTHER, MOST_LABELS
        number = self._numbers[text] = len(self._numbers) + 1
        return text, number

    def _announce(self, text: str, number: int) -> None:
        raw = clipped(text, MOST_BYTES)
        self._append(STRING.struct.pack(STRING.kind, 0, number, len(raw)) + raw)
        self._announced.add(number)


def clipped(text: str, most: int) -> bytes:
    """UTF-8 of at most `most` bytes that ends at a character's border."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= most else raw[:most].decode("utf-8", "ignore").encode()
