"""HOST:PORT as a user writes it: read, written and bound in one place. Standard library only."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

Address = tuple[str, int]
"""Host (an IPv6 one without its brackets) and port."""


def parse(text: str) -> Address:
    """Host and port of 127.0.0.1:9477 or [::1]:9477. ValueError says how to write it."""
    try:
        parts = urlsplit(f"//{text}")
        host, port, whole = parts.hostname, parts.port, parts.netloc == text
    except ValueError:
        host, port, whole = None, None, False
    if not host or port is None or not whole or "@" in text:
        raise ValueError("write it as 127.0.0.1:9477 or [::1]:9477; port 0 takes a free one")
    return host, port


def written(address: Address) -> str:
    """As `parse` reads it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound(address: Address) -> socket.socket:
    """A listening socket there. OSError as the system says it."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)
