"""Lines that are drawn anew in place while a command runs: a bar and what is below it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import IO

BAR = 24


def progress(word: str, elapsed_s: float, whole_s: float | None) -> str:
    """`running   ██░░ 12 of 60 s`; without an end only the time so far."""
    if whole_s is None:
        return f"{word:<9} {elapsed_s:,.0f} s"
    filled = min(BAR, round(BAR * elapsed_s / whole_s)) if whole_s else BAR
    return f"{word:<9} {'█' * filled}{'░' * (BAR - filled)} {elapsed_s:,.0f} of {whole_s:,.0f} s"


def draw(lines: Sequence[str], out: IO[str], shown: int) -> int:
    """Rewrite the lines in place on a terminal, over `shown` older ones; elsewhere print only the
    first, every time. How many there are now.
    """
    if not out.isatty():
        print(lines[0], file=out, flush=True)
        return 0
    width = shutil.get_terminal_size().columns - 1
    up = f"\x1b[{shown}F" if shown else ""
    print(up + "".join(f"\x1b[2K{line[:width]}\n" for line in lines), end="", file=out, flush=True)
    return len(lines)
