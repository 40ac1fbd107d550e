"""Figures as a terminal says them; unknown (None) is a dash, never 0."""

from __future__ import annotations

DASH = "-"


def duration(ns: float | None) -> str:
    """412 us, 22.4 ms, 1.24 s, 3 min 5 s."""
    if ns is None:
        return DASH
    if abs(ns) >= 120e9:
        minutes, seconds = divmod(round(abs(ns) / 1e9), 60)
        return f"{'-' * (ns < 0)}{minutes} min {seconds} s"
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= scale:
            return (
                f"{ns / scale:.3g} {unit}" if abs(ns) < 1e3 * scale else f"{ns / scale:.0f} {unit}"
            )
    return f"{ns:.0f} ns"


def instant(ns: float | None) -> str:
    """Since a beginning, in ms, for a column: `+1,234.5`."""
    return DASH if ns is None else f"{ns / 1e6:+,.1f}"


def count(value: float | None) -> str:
    """12,345."""
    return DASH if value is None else f"{value:,.0f}"


def size(nbytes: int) -> str:
    """16 MiB, 812 KiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.3g} {unit}"
    return f"{nbytes} B"


def plural(number: int, word: str) -> str:
    """1 decision, 3 decisions."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
