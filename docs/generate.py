"""Makes docs/metrics.md and docs/schema.md from the catalogue and the SQL files, and the tables of
docs/adapters.md from the adapters.

`python docs/generate.py` writes them; `--check` names the stale ones and ends with 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path

if __package__ is None:  # run as a script: its neighbour is found beside the folder
    sys.path.insert(0, str(Path(__file__).parents[1]))

from docs import capabilities

from batchscope.exporter.queries import NamedQuery, registry
from batchscope.schemas.catalogue import ENGINE_LABELS, METRICS, Metric

FOLDER = Path(__file__).parent
SQL = files("batchscope.schemas") / "sql"
SCOPES = {
    "engine": "Engines",
    "exporter": "The exporter itself",
    "gpu": "Devices (where an NVIDIA GPU is)",
}
METRICS_HEAD = f"""# Metrics

Made from `schemas/batchscope/schemas/catalogue.py` by `docs/generate.py`: do not edit.

All metrics of an engine carry {", ".join(f"`{label}`" for label in ENGINE_LABELS)}; a label whose
value is unknown is absent. `engine` is a stable name without a process id, so a restart goes on
in the same series. Counters add up over restarts of the engine. Nothing is exported before it is
known: a missing series means unknown, never 0. Exemplars (OpenMetrics, when spans are exported)
lead from the buckets of interval and time between tokens to the trace of the last iteration there.
"""
SCHEMA_HEAD = """# Tables and queries

Made from `schemas/batchscope/schemas/sql` by `docs/generate.py`: do not edit.

Durations are in nanoseconds, `_at_ns` on the engine's monotonic clock, `unix_ns` on the wall clock.
NULL means unknown. Tables `runs_open`, `requests_open`, `iterations_open` hold what is still under
way, in the same columns; the views `all_runs`, `all_requests`, `all_iterations` unite both.

A query answers at `/api/v1/query/<name>`, its parameters in the URL: `from_ns` and `to_ns` are wall
clock, unix nanoseconds; an `engine` that nobody knows gives no rows, or one that counts nothing.
The answer is JSON, `{"columns": {name: [values]}}`, unless Accept asks for an Arrow stream:

```sh
curl -H 'Accept: application/vnd.apache.arrow.stream' -o health.arrow \\
  "http://127.0.0.1:9477/api/v1/query/health?from_ns=$(date -d '1 hour ago' +%s%N)"
```

With a token also `-H "Authorization: Bearer $BATCHSCOPE_TOKEN"`. Without the first `-H` it is JSON.
"""


def metrics() -> str:
    """The text of metrics.md."""
    return METRICS_HEAD + "".join(_scope(scope, title) for scope, title in SCOPES.items())


def _scope(scope: str, title: str) -> str:
    rows = [_metric(metric) for metric in METRICS if metric.scope == scope]
    return f"\n## {title}\n\n" + _table(("metric", "kind", "labels", "what it says"), rows)


def _metric(metric: Metric) -> tuple[str, ...]:
    suffix = "_total" if metric.kind == "counter" else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    unit = f" ({metric.otel_unit})" if metric.otel_unit else ""
    otel = f" OTLP: `{metric.otel_name}`{unit}."
    return (
        f"`{metric.full_name}{suffix}`",
        metric.kind,
        labels,
        metric.help + _buckets(metric) + otel,
    )


def _buckets(metric: Metric) -> str:
    bounds = metric.buckets
    unit = f" {metric.unit}" if metric.unit else ""
    return f" {len(bounds)} buckets, {bounds[0]:g} to {bounds[-1]:g}{unit}." if bounds else ""


def schema() -> str:
    """The text of schema.md."""
    tables = "".join(_sql_table(name, text) for name, text in _texts("tables"))
    views = "".join(f"\n### {name}\n\n{_comment(text)}\n" for name, text in _texts("views"))
    queries = "".join(_query(query) for query in registry().values())
    return f"{SCHEMA_HEAD}\n## Tables\n{tables}\n## Views\n{views}\n## Queries\n{queries}"


def _texts(folder: str) -> list[tuple[str, str]]:
    found = [entry for entry in (SQL / folder).iterdir() if entry.name.endswith(".sql")]
    return sorted((entry.name.removesuffix(".sql"), entry.read_text("utf-8")) for entry in found)


def _sql_table(name: str, text: str) -> str:
    body = text.partition("CREATE TABLE")[2].partition("(")[2].rpartition(")")[0]
    rows = [row for line in body.splitlines() for row in _columns(line)]
    return f"\n### {name}\n\n{_comment(text)}\n\n" + _table(("column", "type", "what it is"), rows)


def _columns(line: str) -> list[tuple[str, ...]]:
    """The columns of a line; its comment holds for all of them."""
    code, _, comment = line.partition("--")
    declared = re.findall(r"(\w+)\s+([A-Z]+(?:\[\])?)( NOT NULL)?", code)
    return [
        (f"`{c}`", f"{t.lower()}{', never NULL' * bool(n)}", comment.strip())
        for c, t, n in declared
    ]


def _comment(text: str) -> str:
    """The comment that a file begins with, parameters left out."""
    head = re.match(r"(?:--.*\n)*", text)
    lines = [line.removeprefix("--").strip() for line in (head[0] if head else "").splitlines()]
    return " ".join(line for line in lines if not line.startswith("param:"))


def _query(query: NamedQuery) -> str:
    rows = [(f"`{p.name}`", p.type.lower(), _default(p.default)) for p in query.params]
    params = "\n" + _table(("parameter", "type", "default"), rows) if rows else ""
    return f"\n### {query.name}\n\n{_comment(query.sql) or query.question}\n{params}"


def _default(default: str | None) -> str:
    return "required" if default is None else f"`{default}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, tuple("---" for _ in head), *rows)
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def adapters() -> str:
    """The text of adapters.md: as it is written, with its tables made anew."""
    return capabilities.filled((FOLDER / "adapters.md").read_text("utf-8"))


PAGES: dict[str, Callable[[], str]] = {
    "metrics.md": metrics,
    "schema.md": schema,
    "adapters.md": adapters,
}


def stale(folder: Path) -> list[str]:
    """Names of the pages that are missing or differ from what would be written."""
    paths = {name: folder / name for name in PAGES}
    return [n for n, p in paths.items() if not p.exists() or p.read_text("utf-8") != PAGES[n]()]


def main(arguments: list[str], *, folder: Path = FOLDER) -> int:
    """Writes the pages, or with --check names the stale ones: 1 when there are any."""
    if "--check" in arguments:
        for name in (names := stale(folder)):
            print(f"docs/{name} is stale: run python docs/generate.py", file=sys.stderr)
        return 1 if names else 0
    for name, text in PAGES.items():
        (folder / name).write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
