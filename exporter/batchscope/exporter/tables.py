"""The store's tables and views as they are declared in sql/: names, columns, statements.

The .sql files are the one place where a column is declared; store.py executes what this reads.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

OPEN = ("runs", "requests", "iterations", "deliveries")
"""Tables with a twin `<name>_open` for what isn't final yet, rewritten at each commit."""
PER_RING = ("runs_open", "requests_open", "iterations_open", "deliveries_open", "audit")
"""Tables whose rows of a ring are replaced as a whole by each commit."""

_COLUMN = re.compile(r"(\w+)\s+([A-Z]+(?:\[\])?)(?:\s+NOT NULL)?\s*$")


@cache
def statements() -> tuple[str, ...]:
    """Everything that makes an empty store of this version, in order. Each may run again."""
    return (
        *(ddl(name) for name in table_names()),
        *(_read("views", name) for name in _names("views")),
    )


@cache
def table_names() -> tuple[str, ...]:
    """All tables, the open twins included."""
    return (*_names("tables"), *(f"{name}_open" for name in OPEN))


@cache
def ddl(table: str) -> str:
    """The CREATE TABLE statement of one table."""
    base = table.removesuffix("_open")
    text = _read("tables", base)
    return text.replace(f"EXISTS {base} (", f"EXISTS {table} (", 1)


@cache
def columns(table: str) -> dict[str, str]:
    """Column -> SQL type, in declared order."""
    body = re.sub(r"--[^\n]*", "", ddl(table)).split("(", 1)[1].rsplit(")", 1)[0]
    found = (_COLUMN.search(part.strip()) for part in body.split(","))
    return {match[1]: match[2] for match in found if match}


def _names(folder: str) -> tuple[str, ...]:
    entries = (files("batchscope.schemas") / "sql" / folder).iterdir()
    return tuple(sorted(e.name.removesuffix(".sql") for e in entries if e.name.endswith(".sql")))


def _read(folder: str, name: str) -> str:
    path = files("batchscope.schemas") / "sql" / folder / f"{name}.sql"
    return path.read_text(encoding="utf-8")
