"""The C allocator, told to keep what numpy frees. Called once, where an exporter starts."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of mallopt() in malloc.h."""
MMAP_BYTES = 32 << 20
"""The most that glibc takes: smaller arrays come from the heap."""
KEPT_BYTES = 64 << 20
"""What may lie free at the top of a heap before it goes back to the kernel."""


def keep_freed() -> bool:
    """Give freed memory back late; False where the C library has no such option (musl).

    A fold makes and frees a hundred arrays of a megabyte per chunk, and by default each one's
    pages go back to the kernel and are faulted in anew: a third of its time when membership
    changes in every iteration (68 ms for 400 of 256 members, 46 with this; same peak).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((_M_MMAP_THRESHOLD, MMAP_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(mallopt(option, value) == 1 for option, value in options)
