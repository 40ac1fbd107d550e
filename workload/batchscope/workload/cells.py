"""Cells of trace rows as exact integers. Called by the parsers; every refusal names the cell."""

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

from batchscope.workload.source import Fields

NS_PER_S = 10**9
NS_PER_MS = 10**6

#: Far above any context window; beyond it a cell is damage.
MAX_TOKENS = 2**31
#: About 146 years on either side of the origin, so that differences fit 64 bits.
MAX_AT_NS = 2**62

_MAX_EXPONENT = 30
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def tokens(fields: Fields, name: str) -> int:
    """A token count: a whole number from 0. Raises ValueError."""
    value = number(fields, name)
    if value != value.to_integral_value() or not 0 <= value < MAX_TOKENS:
        raise ValueError(f"{name} is {spelled(fields[name])}, not a count of tokens")
    return int(value)


def instant_ns(fields: Fields, name: str, *, unit_ns: int) -> int:
    """A number of `unit_ns` as nanoseconds, what is below one cut off. Raises ValueError."""
    value = number(fields, name) * unit_ns
    if abs(value) >= MAX_AT_NS:
        raise ValueError(f"{name} is {spelled(fields[name])}, outside any trace's time")
    return int(value)


def zoned(stamp: str) -> bool:
    """Does a calendar stamp name its zone?"""
    match = _STAMP.fullmatch(stamp)
    return match is not None and match[3] is not None


def stamp_ns(fields: Fields, name: str) -> int:
    """A calendar stamp with up to 9 digits below the second as unix nanoseconds; no zone means UTC.
    Raises ValueError.
    """
    match = _STAMP.fullmatch(text := str(cell(fields, name)))
    if match is None:
        raise ValueError(f"{name} is {text!r}, not a date and time")
    base, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z") else zone
    try:
        seconds = (datetime.fromisoformat(base + zone) - _EPOCH) // timedelta(seconds=1)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}: {error}") from error
    return seconds * NS_PER_S + int((fraction or "0").ljust(9, "0"))


def number(fields: Fields, name: str) -> Decimal:
    """A finite number, every digit kept. Raises ValueError."""
    value = cell(fields, name)
    try:
        parsed = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{name} is {spelled(value)}, not a number") from None
    # 1e999999999 is finite for Decimal, and no machine has room for its digits
    if not parsed.is_finite() or abs(parsed.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"{name} is {spelled(value)}, not a usable number")
    return parsed


def blocks(fields: Fields, name: str) -> tuple[int, ...]:
    """Block ids, in prompt order. Raises ValueError."""
    value = cell(fields, name)
    if not isinstance(value, list) or any(type(block) is not int for block in value):
        raise ValueError(f"{name} is not a list of block ids")
    return tuple(value)


def spelled(value: object) -> str:
    """A cell as its file has it: text in quotes, numbers bare."""
    return str(value) if isinstance(value, Decimal) else repr(value)


def cell(fields: Fields, name: str) -> object:
    """The named cell. Raises ValueError when the row has none."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]
