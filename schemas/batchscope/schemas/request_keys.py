"""Keys of request ids: a salted 64-bit hash, so that an id can be looked up but not read back.

The salt belongs to a ring folder: adapters make it, the exporter reads it to find a client's id.
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from pathlib import Path

from batchscope.schemas.records import NULL

SALT_BYTES = 16


def request_key(request_id: str, salt: bytes) -> int:
    """The 64-bit key of a request id; never the value that says "absent"."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, "little") % NULL["Q"]


def read_salt(folder: Path) -> bytes | None:
    """The folder's salt, None when no adapter has made one yet or it can't be read."""
    try:
        salt = _salt_path(folder).read_bytes()
    except OSError:
        return None
    return salt if len(salt) == SALT_BYTES else None


def make_salt(folder: Path) -> bytes:
    """The folder's salt, made by whoever comes first; this process's own where none can be kept."""
    salt = secrets.token_bytes(SALT_BYTES)
    fresh = _salt_path(folder).with_name(f"salt.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_once(fresh, salt)
        os.link(fresh, _salt_path(folder))  # atomic: nobody ever reads half a salt
    except OSError:
        salt = read_salt(folder) or salt
    finally:
        fresh.unlink(missing_ok=True)
    return salt


def _write_once(path: Path, salt: bytes) -> None:
    mode = 0o640 if os.environ.get("BATCHSCOPE_GROUP") else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        os.write(descriptor, salt)
    finally:
        os.close(descriptor)


def _salt_path(folder: Path) -> Path:
    return folder / "ctl" / "salt"
