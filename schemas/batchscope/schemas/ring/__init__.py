"""The ring: a memory-mapped file between an engine, which only ever writes, and an exporter.

Standard library only: the writing half runs inside engines.
"""

from batchscope.schemas.ring.control import (
    LEVEL_BYTE,
    LEVEL_ITERATIONS,
    LEVEL_LEAVE,
    LEVEL_MEMBERS,
    LEVEL_OFF,
    Control,
    is_leaving,
    pid_namespace,
    read_about,
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
from batchscope.schemas.ring.roster import Resident, roster
from batchscope.schemas.ring.sweep import sweep
from batchscope.schemas.ring.writer import RingWriter

__all__ = [
    "LEVEL_BYTE",
    "LEVEL_ITERATIONS",
    "LEVEL_LEAVE",
    "LEVEL_MEMBERS",
    "LEVEL_OFF",
    "Control",
    "Raw",
    "Resident",
    "RingError",
    "RingFormatError",
    "RingLocked",
    "RingReader",
    "RingUnavailable",
    "RingVersionError",
    "RingWriter",
    "framed",
    "is_leaving",
    "list_rings",
    "lock_exporter",
    "pid_namespace",
    "read_about",
    "read_level",
    "request_detach",
    "retire",
    "ring_folder",
    "roster",
    "set_level",
    "sweep",
]
