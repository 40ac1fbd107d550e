"""The board is fresh, portable, and knows exactly the metrics of the catalogue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana import build
from grafana.panels import ROWS, UNUSED

from batchscope.schemas.catalogue import METRICS, Metric

FOLDER = Path(build.__file__).parent
ALERTS = (FOLDER / "alerts.yml").read_text()
NAME = re.compile(r"batchscope_[a-z_]+")
PANELS = [panel for row in ROWS for panel in row.panels]


def sample_names(metric: Metric) -> set[str]:
    """As they can stand in an expression."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {metric.full_name + suffix for suffix in suffixes.get(metric.kind, ("",))}


KNOWN = {name: metric for metric in METRICS for name in sample_names(metric)}


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from walk(child)


def test_the_file_is_what_the_tables_say() -> None:
    assert build.BOARD.read_text() == build.text()


def test_a_stale_board_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BOARD", tmp_path / "overview.json")
    assert build.main(["--check"]) == 1
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0


def test_nothing_in_it_belongs_to_one_installation() -> None:
    board = json.loads(build.text())
    assert (board["id"], board["uid"]) == (None, None)
    sources = [node["datasource"] for node in walk(board) if "datasource" in node]
    assert len(sources) > len(PANELS)
    assert all(source == build.DATASOURCE for source in sources)
    assert "${datasource}" in build.DATASOURCE["uid"]


def test_panels_neither_overlap_nor_share_an_id() -> None:
    panels = [node for node in walk(build.board()) if "gridPos" in node]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        columns = range(place["x"], place["x"] + place["w"])
        assert columns.stop <= build.COLUMNS
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_says_what_it_answers_in_a_unit(panel: Any) -> None:
    assert panel.answers.endswith((".", "?"))
    assert panel.unit
    assert panel.expressions
    assert all(legend for _, legend in panel.expressions)


def test_every_metric_that_is_asked_for_exists() -> None:
    asked = NAME.findall(" ".join(build.expressions()) + ALERTS)
    recorded = set(re.findall(r"- record: (batchscope):", ALERTS))
    groups = set(re.findall(r"- name: (batchscope_\w+)", ALERTS))
    assert set(asked) - set(KNOWN) - recorded - groups == set()


def test_every_metric_is_shown_or_left_out_on_purpose() -> None:
    shown = {KNOWN[n].name for n in NAME.findall(" ".join(build.expressions()))}
    assert shown | set(UNUSED) == {metric.name for metric in METRICS}
    assert not shown & set(UNUSED)


@pytest.mark.parametrize("expression", build.expressions())
def test_a_counter_is_only_seen_through_a_rate_over_the_rate_interval(expression: str) -> None:
    for name in NAME.findall(expression):
        if KNOWN[name].kind in ("counter", "histogram"):
            selector = r"(?:rate|increase)\(" + name + r"(?:\{[^}]*\})?\[\$__rate_interval\]\)"
            assert re.search(selector, expression), name
    assert "$__interval" not in expression
    assert "avg(histogram_quantile" not in expression


@pytest.mark.parametrize("expression", build.expressions())
def test_engines_and_models_are_scoped_by_the_variables(expression: str) -> None:
    for name in NAME.findall(expression):
        if KNOWN[name].scope == "engine":
            assert re.search(name + r'\{engine=~"\$engine",model_name=~"\$model_name"', expression)


def test_variables_are_scoped_to_each_other() -> None:
    variables = {v["name"]: v for v in build.board()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert 'engine=~"$engine"' in variables["model_name"]["query"]["query"]
