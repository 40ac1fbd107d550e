"""Draws docs/images/paradox.svg: what each policy yields against how unevenly its tokens come.

`python -m bench.policies | python docs/paradox.py`; the figures are those of the page's table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

TARGET = Path(__file__).parent / "images" / "paradox.svg"
WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 30, 52
MOST_TOKENS, MOST_JITTER = 1500, 12
INK = {"static": "#6f7f95", "orca": "#7f5fd6", "paged": "#d6336c", "chunked": "#dd7212"}
SPLIT = "#3182ce"
LEFTWARD = frozenset({"orca, longest reserved", "orca, own limit reserved", "paged"})
"""Labels that would run into a neighbour's point on their right."""
Point = tuple[float, float]


def place(tokens_per_s: float, jitter: float) -> Point:
    """Where a policy stands, in pixels."""
    across, up = tokens_per_s / MOST_TOKENS, jitter / MOST_JITTER
    return (
        round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
        round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
    )


def drawn(policies: dict[str, Any]) -> str:
    """The picture, from the "policies" of bench.policies."""
    at = {
        name: place(both["saturated"]["tokens_per_s"], both["streamed"]["jitter"])
        for name, both in policies.items()
    }
    budgets = [point for name, point in at.items() if name.startswith("chunked")]
    path = " ".join(f"{x},{y}" for x, y in budgets)
    ink = INK["chunked"]
    parts = [
        *_paper(),
        f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.5" opacity="0.5"/>',
        *(line for name, point in at.items() for line in _policy(name, point)),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    return "\n".join([head + 'font-family="sans-serif" font-size="13">', *parts, "</svg>", ""])


def _paper() -> Iterator[str]:
    """White also on a dark page; grid, ticks, names of the axes."""
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM
    for jitter in range(0, MOST_JITTER + 1, 2):
        y = place(0, jitter)[1]
        yield f'<path d="M{LEFT} {y}H{right}" stroke="#e6e8eb"/>'
        yield _text(LEFT - 8, y + 4, str(jitter), anchor="end", fill="#5b6470")
    for tokens in range(0, MOST_TOKENS + 1, 250):
        x = place(tokens, 0)[0]
        yield _text(x, foot + 18, f"{tokens:,}", anchor="middle", fill="#5b6470")
    yield _text(right, HEIGHT - 10, "tokens per second and engine, all requests there at once",
                anchor="end", fill="#1f2328")  # fmt: skip
    yield _text(right - 8, foot - 10, "this way is better \u2198", anchor="end", fill="#8a8f98")
    yield _text(LEFT - 40, 18, "jitter: P99 over median of a request's own gaps, at 1.2 requests/s",
                anchor="start", fill="#1f2328")  # fmt: skip


def _policy(name: str, at: Point) -> Iterable[str]:
    ink = next((ink for policy, ink in INK.items() if name.startswith(policy)), SPLIT)
    x, y = at
    leftward = name in LEFTWARD
    yield f'<circle cx="{x}" cy="{y}" r="6" fill="{ink}"/>'
    yield _text(x - 11 if leftward else x + 11, y + 4.5, name, fill="#1f2328",
                anchor="end" if leftward else "start")  # fmt: skip


def _text(x: float, y: float, text: str, *, anchor: str, fill: str) -> str:
    place = f'x="{round(x, 1)}" y="{round(y, 1)}"'
    return f'<text {place} text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


if __name__ == "__main__":
    TARGET.write_text(drawn(json.load(sys.stdin)["policies"]), encoding="utf-8")
