"""How request ids leave the engine: salted hash by default, in plain or not at all on demand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from batchscope.schemas.records import NULL
from batchscope.schemas.request_keys import make_salt, request_key

MOST_ID_BYTES = 256
_ABSENT = NULL["Q"]
MODES = ("hash", "plain", "none")


class Name(NamedTuple):
    """Keys and texts of one request, as ARRIVED and LIVE carry them."""

    key: int
    external_key: int
    key_text: bytes
    external_text: bytes


_NAMELESS = Name(_ABSENT, _ABSENT, b"", b"")


class Naming(NamedTuple):
    """The mode (hash, plain, none) and the install's salt."""

    mode: str
    salt: bytes

    def name(self, request_id: str, external_id: str | None) -> Name:
        """Keys by the salt, and the ids themselves only under `plain`."""
        if self.mode == "none":
            return _NAMELESS
        external_key = _ABSENT if external_id is None else request_key(external_id, self.salt)
        key = request_key(request_id, self.salt)
        if self.mode != "plain":
            return Name(key, external_key, b"", b"")
        return Name(key, external_key, _text(request_id), _text(external_id or ""))


def naming_from(env: Mapping[str, str], folder: Path) -> Naming:
    """As BATCHSCOPE_REQUEST_IDS says; a word that we don't know means the most private, none."""
    mode = env.get("BATCHSCOPE_REQUEST_IDS", "hash")
    return Naming(mode if mode in MODES else "none", make_salt(folder))


def _text(request_id: str) -> bytes:
    return request_id.encode("utf-8", "replace")[:MOST_ID_BYTES]
