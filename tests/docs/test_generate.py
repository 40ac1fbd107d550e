"""Generated pages are fresh, and tell of everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs import generate

from batchscope.exporter.queries import registry
from batchscope.exporter.tables import statements
from batchscope.schemas.catalogue import METRICS


def test_the_pages_are_fresh() -> None:
    assert generate.stale(generate.FOLDER) == []


def test_a_stale_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate.main([], folder=tmp_path)
    assert generate.main(["--check"], folder=tmp_path) == 0
    (tmp_path / "schema.md").write_text("old")
    assert generate.main(["--check"], folder=tmp_path) == 1
    assert capsys.readouterr().err == "docs/schema.md is stale: run python docs/generate.py\n"


def test_every_metric_has_its_line() -> None:
    text = generate.metrics()
    for metric in METRICS:
        assert metric.full_name in text
        assert metric.help in text


def test_every_column_that_the_store_has_is_told_with_its_type() -> None:
    duckdb = pytest.importorskip("duckdb")
    store = duckdb.connect()
    for statement in statements():
        store.execute(statement)
    columns = store.execute(
        "SELECT table_name, column_name FROM duckdb_columns()"
        " WHERE table_name NOT LIKE '%\\_open' ESCAPE '\\' AND NOT internal"
        " AND table_name IN (SELECT table_name FROM duckdb_tables())"
    ).fetchall()
    sections = generate.schema().split("\n## Views")[0].split("\n### ")
    by_table = {section.split("\n")[0]: section for section in sections}
    told = [(t, c) for t, c in columns if t in by_table and f"| `{c}` |" in by_table[t]]
    assert len(columns) > 150
    assert {pair for pair in columns if pair[0] != "meta"} - set(told) == set()


def test_every_query_is_told_with_its_question_and_parameters() -> None:
    text = generate.schema().split("\n## Queries")[1]
    for query in registry().values():
        section = text.split(f"\n### {query.name}\n")[1].split("\n### ")[0]
        assert query.question in section
        assert all(
            f"| `{param.name}` | {param.type.lower()} |" in section for param in query.params
        )
