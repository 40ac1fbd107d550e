"""The named questions of sql/queries: their text, parameters and defaults.

Only these ever reach the store: a name and typed parameters come from outside, SQL never does.
A file starts with `-- <question>` and `-- param: <name> <sql type> [= default]` lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from batchscope.exporter.errors import QueryError

Value = int | float | bool | str | list[int] | list[str] | None

_PARAM = re.compile(r"--\s*param:\s*(\w+)\s+([A-Z]+(?:\[\])?)(?:\s*=\s*(.*?))?\s*$")
_SIGNED = (-(2**63), 2**63 - 1)
_RANGES = {
    "BIGINT": _SIGNED,
    "INTEGER": (-(2**31), 2**31 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
LONGEST_TEXT, LONGEST_LIST = 512, 256


@dataclass(frozen=True)
class Parameter:
    """One parameter: `default` is the text in the file; None makes it required."""

    name: str
    type: str
    default: str | None

    def value(self, text: str | None) -> Value:
        """Text from outside as a value of the declared type. Raises QueryError."""
        chosen = self.default if text is None else text
        if chosen is None:
            raise QueryError(f"parameter {self.name!r} ({self.type}) is missing")
        if chosen.upper() == "NULL" or (chosen == "" and self.type != "VARCHAR"):
            return None
        try:
            return _convert(chosen, self.type)
        except ValueError as error:
            raise QueryError(f"parameter {self.name!r} must be {self.type}: {error}") from None


@dataclass(frozen=True)
class NamedQuery:
    """One question: name, sentence, SQL text, parameters in declared order."""

    name: str
    question: str
    sql: str
    params: tuple[Parameter, ...]

    def bind(self, given: Mapping[str, str]) -> dict[str, Value]:
        """Values by name, defaults filled in. Raises QueryError that names what is known."""
        known = {p.name for p in self.params}
        strange = sorted(set(given) - known)
        if strange:
            names = ", ".join(sorted(known)) or "none"
            raise QueryError(f"{self.name} has no parameter {strange[0]!r}; known: {names}")
        return {p.name: p.value(given.get(p.name)) for p in self.params}


@cache
def registry() -> dict[str, NamedQuery]:
    """Every question by name."""
    folder = files("batchscope.schemas") / "sql" / "queries"
    texts = {e.name[:-4]: e.read_text("utf-8") for e in folder.iterdir() if e.name.endswith(".sql")}
    return {name: parse(name, texts[name]) for name in sorted(texts)}


def named(name: str) -> NamedQuery:
    """One question. Raises QueryError that lists the known names."""
    try:
        return registry()[name]
    except KeyError:
        known = ", ".join(registry())
        raise QueryError(f"no query is called {name[:80]!r}; known: {known}") from None


def parse(name: str, text: str) -> NamedQuery:
    """A query file's header and body. Raises QueryError on a header without a question."""
    header = [line for line in text.splitlines() if line.startswith("--")]
    matches = [_PARAM.match(line) for line in header]
    params = tuple(Parameter(m[1], m[2], m[3]) for m in matches if m)
    words = [line[2:].strip() for line, m in zip(header, matches, strict=True) if not m]
    if not words:
        raise QueryError(f"query {name!r} doesn't say what it answers")
    return NamedQuery(name, words[0], text, params)


def _convert(text: str, sql_type: str) -> Value:
    if sql_type.endswith("[]"):
        return _list(text, sql_type[:-2])
    return _CONVERT.get(sql_type, _text)(text, sql_type)


def _list(text: str, inner: str) -> Value:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > LONGEST_LIST:
        raise ValueError(f"at most {LONGEST_LIST} values")
    return [_convert(part, inner) for part in parts]  # type: ignore[return-value]


def _integer(text: str, sql_type: str) -> Value:
    low, high = _RANGES[sql_type]
    if len(text) > 20 or not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError("not a whole number")
    if not low <= int(text) <= high:
        raise ValueError(f"outside {low}..{high}")
    return int(text)


def _double(text: str, _: str) -> Value:
    number = float(text[:64])
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _boolean(text: str, _: str) -> Value:
    if text.lower() not in _TRUTH:
        raise ValueError("not true or false")
    return _TRUTH[text.lower()]


def _text(text: str, _: str) -> Value:
    plain = text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text
    if len(plain) > LONGEST_TEXT or "\0" in plain:
        raise ValueError(f"at most {LONGEST_TEXT} characters, none of them NUL")
    plain.encode("utf-8")  # a lone surrogate can't be stored: UnicodeEncodeError is a ValueError
    return plain


_CONVERT: dict[str, Callable[[str, str], Value]] = {
    **dict.fromkeys(_RANGES, _integer),
    "DOUBLE": _double,
    "BOOLEAN": _boolean,
    "VARCHAR": _text,
}
