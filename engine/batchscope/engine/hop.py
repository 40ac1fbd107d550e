"""The KV of a request on its way from the engine that prefilled it to the one that decodes it.

Told by the side that measured it, to its own scheduler, once the hop has ended.
"""

from __future__ import annotations

from typing import NamedTuple


class Hop(NamedTuple):
    """One transfer. Instants and times in ns, on the clock of the engine that tells it.

    `wait_ns` passed until the taking engine had looked and had room, `handshake_ns` with messages;
    the rest is copying. `blocks` were copied, `nbytes` in all; None: unknown to this side.
    """

    peer: str
    incoming: bool
    start_ns: int
    end_ns: int
    blocks: int | None = None
    nbytes: int | None = None
    wait_ns: int | None = None
    handshake_ns: int | None = None
    failed: bool = False

    @property
    def copy_ns(self) -> int | None:
        """What remains of the hop without wait and handshake; None when either is unknown."""
        if self.wait_ns is None or self.handshake_ns is None:
            return None
        return self.end_ns - self.start_ns - self.wait_ns - self.handshake_ns
