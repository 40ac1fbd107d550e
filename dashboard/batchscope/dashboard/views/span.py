"""The time range of the Iterations page: presets that follow, zooms that stay, and the way back.

State lives in st.session_state under two keys; everything else here is arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from batchscope.dashboard.views import selection
from batchscope.dashboard.views.now import MINUTE_NS, end_of

PRESETS = {"1 min": 1, "5 min": 5, "15 min": 15, "All": None}
DEFAULT = "1 min"
SHORTEST_NS = 2_000_000
"""A zoom stops here: less than one iteration is nothing to look at."""
Span = tuple[int, int]


def current(engine: selection.Engine) -> Span:
    """What is shown: the last zoom, else the preset up to the engine's now."""
    zooms = _zooms()
    return zooms[-1] if zooms else preset_span(st.session_state.get("preset") or DEFAULT, engine)


def preset_span(preset: str, engine: selection.Engine) -> Span:
    """The last minutes, or everything since the first iteration."""
    to_ns, minutes = end_of(engine), PRESETS[preset]
    if minutes is not None:
        return to_ns - minutes * MINUTE_NS, to_ns
    start = engine["first_iteration_unix_ns"] or engine["first_attached_unix_ns"]
    return min(int(start), to_ns - SHORTEST_NS), to_ns


def zoom_to(ends_ms: Sequence[float]) -> None:
    """Push a range in ms of unix time."""
    from_ns, to_ns = sorted(round(end * 1e6) for end in ends_ms)
    _zooms().append((from_ns, max(to_ns, from_ns + SHORTEST_NS)))


def back() -> None:
    """One zoom back, at last to the preset."""
    if _zooms():
        _zooms().pop()


def clear() -> None:
    """To the preset."""
    _zooms().clear()


def pan(engine: selection.Engine, share: float) -> None:
    """Move by a share of what is shown, to the left below 0; replaces the last zoom."""
    from_ns, to_ns = current(engine)
    by = int((to_ns - from_ns) * share)
    back()
    _zooms().append((from_ns + by, to_ns + by))


def zoomed() -> bool:
    """Whether a zoom holds the range still."""
    return bool(_zooms())


def _zooms() -> list[Span]:
    zooms: list[Span] = st.session_state.setdefault("zooms", [])
    return zooms
