"""The time range of the Iterations page: presets that follow, zooms that stay, and the way back.

State lives in st.session_state under two keys and in the address; the rest is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import streamlit as st

from batchscope.dashboard.views import selection
from batchscope.dashboard.views.now import MINUTE_NS, end_of

PRESETS = {"1 min": 1, "5 min": 5, "15 min": 15, "All": None}
DEFAULT = "1 min"
SHORTEST_NS = 2_000_000
"""A zoom stops here: less than one iteration is nothing to look at."""
Span = tuple[int, int]
_WRITTEN = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


def current(engine: selection.Engine) -> Span:
    """What is shown: the last zoom, else the preset up to the engine's now."""
    zooms = _zooms()
    return zooms[-1] if zooms else preset_span(st.session_state.get("preset") or DEFAULT, engine)


def restore() -> None:
    """In a session that has chosen nothing yet: what the address says."""
    if "preset" not in st.session_state:
        preset = selection.remembered("range")
        st.session_state["preset"] = preset if preset in PRESETS else DEFAULT
    if "zooms" not in st.session_state:
        written = _WRITTEN.fullmatch(st.query_params.get("zoom", ""))
        ends = (int(written[1]), int(written[2])) if written else (0, 0)
        st.session_state["zooms"] = [ends] if ends[1] - ends[0] >= SHORTEST_NS else []


def keep() -> None:
    """Write what is shown into the address."""
    zooms = _zooms()
    selection.remember("range", st.session_state["preset"])
    selection.remember("zoom", "{}-{}".format(*zooms[-1]) if zooms else None)


def preset_span(preset: str, engine: selection.Engine) -> Span:
    """The last minutes, or everything; never from before the first iteration.

    The default is one life of a gone engine: what the one before did may be hours away.
    """
    to_ns, minutes = end_of(engine), PRESETS[preset]
    start = int(engine["first_iteration_unix_ns"] or engine["first_attached_unix_ns"])
    if preset == DEFAULT and engine["state"] != "live":
        start = max(start, int(engine["attached_unix_ns"]))
    if minutes is not None:
        start = max(start, to_ns - minutes * MINUTE_NS)
    return min(start, to_ns - SHORTEST_NS), to_ns


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
