"""One colour per phase, reason, state and verdict, the same on every page and in both themes.

Chosen to keep 3:1 against white and against Streamlit's dark background where they are lines,
and to stay apart under red-green blindness (blue/orange, teal/magenta, never red/green).
"""

from __future__ import annotations

from typing import Final

PHASES: Final = {"decode": "#3182ce", "prefill": "#dd7212"}
KV: Final = {"used": "#7f5fd6", "evictable": "#b4a3e8", "free": "#8a8f9840"}
REASONS: Final = {
    "token_budget": "#b08900",
    "max_requests": "#0f9b9b",
    "kv_blocks": "#d6336c",
    "kv_watermark": "#ec87ab",
    "preemption": "#9c46b0",
    "chunk_policy": "#a5884a",
    "prefill_throttle": "#7c8a2e",
    "lora": "#6b8fb5",
    "grammar": "#5f8a6a",
    "transfer": "#4c6ef5",
    "cache_prefetch": "#91a7ff",
    "paused": "#9aa0a6",
    "policy": "#8d7665",
    "unknown": "#7b818a",
}
VERDICTS: Final = {
    "met": "#2b9a66",
    "missed": "#c2410c",
    "undetermined": "#8a8f98",
    "failed": "#9b2c2c",
    "aborted": "#adb5bd",
    "shed": "#c08457",
}
INTERVAL: Final = "#6f7f95"
P50: Final = "#6f7f95"
P99: Final = "#c2410c"


def reason_rank(reason: str | None) -> int:
    """Place of a reason in a legend, the same whatever is frequent; None (nobody left out) last."""
    if reason is None:
        return len(REASONS) + 1
    return list(REASONS).index(reason) if reason in REASONS else len(REASONS)


def reason_colour(reason: str | None) -> str:
    """Colour of a deferral reason; None (the queue was emptied) is the faint track itself."""
    return "#8a8f9833" if reason is None else REASONS.get(reason, REASONS["unknown"])
