"""An answer's bytes: Arrow IPC or JSON by Accept, and the live summary. No HTTP server in here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from batchscope.exporter.queries import NamedQuery, Parameter
from batchscope.exporter.views import EngineView, Key

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"

_OPENAPI_TYPES = {"DOUBLE": "number", "BOOLEAN": "boolean", "VARCHAR": "string"}


def encode(table: pa.Table, accept: str) -> tuple[bytes, str]:
    """(body, content type): JSON unless Arrow is asked for by name."""
    return (to_arrow(table), ARROW) if ARROW in accept else (to_json(table), JSON)


def to_arrow(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def to_json(table: pa.Table) -> bytes:
    """{"columns": {name: [values]}}; what JSON can't say (NaN, infinities) is null."""
    columns = {name: [_plain(v) for v in values] for name, values in table.to_pydict().items()}
    return json.dumps({"columns": columns}, default=str, allow_nan=False).encode()


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The table as one plain dict per row."""
    return [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def live(engines: Iterable[EngineView], *, unix_ns: int) -> dict[str, Any]:
    """What /live sends: each engine's labels, state, gauges and counters, as counted."""
    return {
        "unix_ns": unix_ns,
        "engines": [
            {
                "labels": dict(one.labels),
                "state": one.state,
                "gauges": _flat(one.gauges),
                "counters": _flat(one.totals.counters),
            }
            for one in engines
        ],
    }


def describe(query: NamedQuery) -> dict[str, Any]:
    """A query for people: name, question, parameters."""
    params = [{"name": p.name, "type": p.type, "default": p.default} for p in query.params]
    return {"name": query.name, "question": query.question, "params": params}


def openapi_path(query: NamedQuery) -> dict[str, Any]:
    """The OpenAPI path item of one query."""
    body = {"schema": {"type": "object", "required": ["columns"]}}
    table = {"description": "The table", "content": {JSON: body, ARROW: {}}}
    refused = {"$ref": "#/components/responses/Problem"}
    return {
        "get": {
            "operationId": f"query_{query.name}",
            "summary": query.question,
            "tags": ["queries"],
            "parameters": [_openapi_parameter(p) for p in query.params],
            "responses": {"200": table, "default": refused},
        }
    }


def _openapi_parameter(parameter: Parameter) -> dict[str, Any]:
    kind = _OPENAPI_TYPES.get(parameter.type, "integer")
    schema = {"type": "string"} if parameter.type.endswith("[]") else {"type": kind}
    required = parameter.default is None
    return {"name": parameter.name, "in": "query", "required": required, "schema": schema}


def _flat(values: Mapping[Key, int]) -> dict[str, int]:
    return {".".join((name, *labels)): int(value) for (name, labels), value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
