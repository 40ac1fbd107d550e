"""The exporter's query API over an in-memory DuckDB with made-up traffic.

Run by `python -m`; prints its port, ends with its stdin. Stands in for the
exporter where a test is about pages: the queries are the real ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pyarrow as pa
from tests.dashboard.traffic import Traffic

from batchscope.exporter.errors import QueryError
from batchscope.exporter.queries import named
from batchscope.exporter.tables import statements

NOW_NS = 1_795_000_000_000_000_000
"""The clock stands still here, so that what is drawn is the same every time."""


def database() -> duckdb.DuckDBPyConnection:
    """An empty store in memory."""
    db = duckdb.connect()
    for statement in statements():
        db.execute(statement)
    return db


def fill(db: duckdb.DuckDBPyConnection, tables: dict[str, list[dict[str, Any]]]) -> None:
    for table, rows in tables.items():
        if rows:
            batch = arrow(rows)
            db.register("batch", batch)
            db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    """Columns of rows; ring ids need all 64 bits."""
    names = dict.fromkeys(name for row in rows for name in row)
    kinds = {"ring_id": pa.uint64()}
    return pa.table({n: pa.array([row.get(n) for row in rows], kinds.get(n)) for n in names})


def answer(db: duckdb.DuckDBPyConnection, name: str, given: dict[str, str]) -> pa.Table:
    """One named query with text parameters. Raises QueryError."""
    query = named(name)
    table: pa.Table = db.cursor().sql(query.sql, params=query.bind(given)).to_arrow_table()
    if "server_unix_ns" in table.column_names:
        at = table.column_names.index("server_unix_ns")
        table = table.set_column(at, "server_unix_ns", pa.array([NOW_NS] * table.num_rows))
    return table


def handler(db: duckdb.DuckDBPyConnection, log: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            name = url.path.rsplit("/", 1)[-1]
            if url.path == "/log":
                return self.reply(json.dumps(log).encode(), "application/json")
            if name == "engines":
                return self.reply(b'{"engines": [], "refused": []}', "application/json")
            log.append(self.path)
            try:
                table = answer(db, name, dict(parse_qsl(url.query)))
            except QueryError as error:
                problem = json.dumps({"title": "Bad query", "detail": str(error)}).encode()
                return self.reply(problem, "application/problem+json", status=400)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            return self.reply(sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream")

        def reply(self, body: bytes, kind: str, *, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return None

    return Handler


def end_with_stdin(server: ThreadingHTTPServer) -> None:
    """Whoever started this keeps stdin open; when they are gone, so is this."""
    sys.stdin.read()
    server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--slots", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=1600)
    parser.add_argument("--rate", type=float, default=3.2)
    parser.add_argument("--empty", action="store_true")
    args = parser.parse_args()
    db = database()
    if not args.empty:
        start = NOW_NS - int(args.seconds * 1e9)
        traffic = Traffic(
            start_ns=start,
            seconds=args.seconds,
            slots=args.slots,
            blocks=args.blocks,
            rate=args.rate,
        )
        traffic.run()
        traffic.lose(from_ns=NOW_NS - 35_000_000_000, seconds=2.5)
        fill(db, traffic.tables)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), handler(db, []))
    print(server.server_port, flush=True)
    threading.Thread(target=end_with_stdin, args=(server,), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
