"""Figures as a person reads them: the one place where ns become ms and counts get separators.

Unknown (None) is an en dash everywhere, never 0.
"""

from __future__ import annotations

from batchscope.schemas.slo import TERMS, Slo, SloError

DASH = "–"  # noqa: RUF001

REASONS = {
    "token_budget": "token budget",
    "max_requests": "request slots",
    "kv_blocks": "KV blocks",
    "kv_watermark": "KV watermark",
    "chunk_policy": "chunk policy",
    "prefill_throttle": "prefill throttle",
    "lora": "LoRA",
    "cache_prefetch": "cache prefetch",
}
"""Reasons that read differently from their word."""


def reason(word: str | None) -> str:
    """A deferral reason in words; None: nobody was left out."""
    return "queue emptied" if word is None else REASONS.get(word, word)


def duration(ns: float | None) -> tuple[str, str]:
    """Number and unit: 22.4 ms, 1.24 s, 12 us."""
    if ns is None:
        return DASH, ""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= scale:
            return _three_digits(ns / scale), unit
    return f"{ns:.0f}", "ns"


def age(ns: float) -> str:
    """How long ago, coarser the longer: 0.2 s, 4 min, 3 h, 12 days."""
    seconds = ns / 1e9
    for scale, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.1f} s"


def duration_text(ns: float | None) -> str:
    """Number and unit in one string."""
    return " ".join(part for part in duration(ns) if part)


def count(value: float | None) -> str:
    """12,345 up to a million, then 1.23 M; a decimal below 100 unless whole."""
    if value is None:
        return DASH
    if value >= 1e6:
        return f"{_three_digits(value / 1e6)} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def mean(value: float) -> str:
    """A mean count: two decimals where it is small, so that rare isn't never."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(ratio: float | None) -> str:
    """A ratio of 0..1 as a percentage, with a decimal where it is small."""
    if ratio is None:
        return DASH
    if 0 < ratio < 0.0005:
        return "<0.1 %"
    small = 0 < ratio < 0.0995
    return f"{ratio * 100:.1f} %" if small else f"{ratio * 100:.0f} %"


def share(part: float | None, whole: float | None) -> float | None:
    """Part / whole, None where it can't be known."""
    return None if part is None or not whole else part / whole


def slo(targets: str) -> str:
    """Targets as people say them: TTFT <= 2 s, TBT p99 <= 200 ms; unreadable ones as written."""
    try:
        known = dict(Slo.parse(targets).targets)
    except SloError:
        return targets
    return ", ".join(f"{_term(term)} ≤ {_bound(known[term])}" for term in TERMS if term in known)


def _term(term: str) -> str:
    name, _, quantile = term.partition("_")
    return f"{name.upper()} {quantile}".rstrip()


def _bound(ns: int) -> str:
    """Exact, as it was set: 2 s, 1.5 s, 200 ms."""
    scale, unit = next(
        pair for pair in ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")) if ns >= pair[0]
    )
    return f"{ns / scale:g} {unit}"


def plural(number: int, word: str) -> str:
    """1 request, 2 requests."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _three_digits(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"
