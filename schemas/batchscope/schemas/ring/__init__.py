"""The ring: a memory-mapped file between an engine, which only ever writes, and an exporter.

Standard library only: the writing half runs inside engines.
"""

from batchscope.schemas.ring.control import (
    DETACH_WORD,
    LEVEL_ITERATIONS,
    LEVEL_MEMBERS,
    LEVEL_OFF,
    LEVEL_WORD,
    Control,
    read_level,
    request_detach,
    set_level,
)
from batchscope.schemas.ring.folder import (
    list_rings,
    lock_exporter,
    retire,
    ring_folder,
)
from batchscope.schemas.ring.layout import (
    RingError,
    RingFormatError,
    RingLocked,
    RingUnavailable,
    RingVersionError,
    framed,
)
from batchscope.schemas.ring.reader import Raw, RingReader
from batchscope.schemas.ring.sweep import sweep
from batchscope.schemas.ring.writer import RingWriter

__all__ = [
    "DETACH_WORD",
    "LEVEL_ITERATIONS",
    "LEVEL_MEMBERS",
    "LEVEL_OFF",
    "LEVEL_WORD",
    "Control",
    "Raw",
    "RingError",
    "RingFormatError",
    "RingLocked",
    "RingReader",
    "RingUnavailable",
    "RingVersionError",
    "RingWriter",
    "framed",
    "list_rings",
    "lock_exporter",
    "read_level",
    "request_detach",
    "retire",
    "ring_folder",
    "set_level",
    "sweep",
]
