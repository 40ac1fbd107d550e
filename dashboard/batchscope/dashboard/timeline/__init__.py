"""Streamlit components drawn by our own JavaScript: time panes, the swimlane, the Now board.

Called by the views with figures (plain dicts, see figures/); they report what a person did by
triggers. Colours that aren't data come from the page's theme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st

Handler = Callable[[], None]


def panes(
    figure: Mapping[str, Any], *, key: str, on_zoom: Handler, on_back: Handler, on_pick: Handler
) -> None:
    """Panes on one time axis. Triggers: zoom [from_ms, to_ms], back, pick at_ms."""
    _component("panes", vendored=True)(
        data=figure, key=key, on_zoom_change=on_zoom, on_back_change=on_back, on_pick_change=on_pick
    )


def swimlane(figure: Mapping[str, Any], *, key: str, on_pick: Handler) -> None:
    """Membership of requests in iterations. Trigger: pick [ring_id as text, iteration_id]."""
    _component("swimlane")(data=figure, key=key, on_pick_change=on_pick)


def histogram(figure: Mapping[str, Any], *, key: str) -> None:
    """A distribution on a logarithmic axis."""
    _component("histogram")(data=figure, key=key)


def board(figure: Mapping[str, Any], *, key: str) -> None:
    """Tiles of the Now page."""
    _component("board")(data=figure, key=key)


_CLASSES = {"panes": "timeline", "swimlane": "swimlane", "board": "board", "histogram": "histogram"}


@cache
def _component(name: str, *, vendored: bool = False) -> Callable[..., Any]:
    """Registered once a process: the same name twice is a warning in Streamlit."""
    library, style = ("", "")
    if vendored:
        library, style = (
            _read("vendor/uplot/uPlot.iife.min.js"),
            _read("vendor/uplot/uPlot.min.css"),
        )
    return st.components.v2.component(
        f"batchscope_{name}",
        html=f'<div class="{_CLASSES[name]}"></div>',
        css="\n".join((style, _read(f"{name}.css"), "")),
        js="\n".join((library, _read("theme.js"), _read(f"{name}.js"))),
    )


def _read(path: str) -> str:
    return files(__package__ or __name__).joinpath(path).read_text(encoding="utf-8")
