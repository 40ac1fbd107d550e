"""Makes grafana/overview.json from panels.py: `python -m grafana.build` (`--check`: is it fresh?).

Nothing in it belongs to one installation: the datasource is a variable, ids are null.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grafana.panels import ROWS, Panel, Row

BOARD = Path(__file__).with_name("overview.json")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT, COLUMNS = 8, 24
Json = dict[str, Any]


VARIABLES = (
    ("engine", "Engine", "label_values(batchscope_engine_up, engine)"),
    ("model_name", "Model", 'label_values(batchscope_engine_up{engine=~"$engine"}, model_name)'),
)


def expressions() -> list[str]:
    """All that the board asks, in order."""
    return [e for row in ROWS for panel in row.panels for e, _ in panel.expressions]


def board() -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "id": None,
        "uid": None,
        "title": "batchscope: overview",
        "description": "What was in each batch, how long it took, who was left out; was it useful.",
        "tags": ["batchscope", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*v) for v in VARIABLES)]},
        "annotations": {"list": []},
        "panels": _panels(),
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> list[Json]:
    made: list[Json] = []
    top = 0
    for row in ROWS:
        placed = _placed(row.panels, top=top + 1, first_id=100 * (ROWS.index(row) + 1) + 1)
        made += [_row(row, top=top, inside=placed if row.collapsed else [])]
        made += [] if row.collapsed else placed
        top = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in placed)
    return made


def _row(row: Row, *, top: int, inside: list[Json]) -> Json:
    return {
        "id": 100 * (ROWS.index(row) + 1),
        "type": "row",
        "title": row.title,
        "collapsed": row.collapsed,
        "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        "panels": inside,
    }


def _placed(panels: tuple[Panel, ...], *, top: int, first_id: int) -> list[Json]:
    """Left to right, then down."""
    made: list[Json] = []
    x = y = 0
    for number, panel in enumerate(panels):
        x, y = (0, y + HEIGHT) if x + panel.width > COLUMNS else (x, y)
        place = {"x": x, "y": top + y, "w": panel.width, "h": HEIGHT}
        made.append({"id": first_id + number, "gridPos": place, **_panel(panel)})
        x += panel.width
    return made


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.answers,
        "datasource": DATASOURCE,
        "targets": [_target(panel, i, *e) for i, e in enumerate(panel.expressions)],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": _style(panel)},
            "overrides": [_line(name) for name in ("budget", "most") if panel.kind != "stat"],
        },
        "options": _options(panel),
    }


def _target(panel: Panel, number: int, expression: str, legend: str) -> Json:
    return {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "expr": expression,
        "legendFormat": legend,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "exemplar": panel.kind == "heatmap",
    }


def _style(panel: Panel) -> Json:
    if panel.kind != "timeseries":
        return {}
    mode = "normal" if panel.stacked else "none"
    fill = 40 if panel.stacked else 0
    return {
        "drawStyle": "line",
        "fillOpacity": fill,
        "showPoints": "never",
        "stacking": {"mode": mode},
    }


def _line(name: str) -> Json:
    """A limit is a dashed line above the stack, not a part of it."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [
            {"id": "custom.stacking", "value": {"mode": "none"}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        ],
    }


def _options(panel: Panel) -> Json:
    by_kind: dict[str, Json] = {
        "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"},
        "heatmap": {"calculate": False, "yAxis": {"unit": panel.unit}},
    }
    return by_kind[panel.kind]


def text() -> str:
    """The file's content."""
    return json.dumps(board(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the board; with --check says whether it is fresh (0) or stale (1)."""
    if "--check" not in arguments:
        BOARD.write_text(text())
        return 0
    fresh = BOARD.exists() and BOARD.read_text() == text()
    if not fresh:
        print(f"{BOARD} is stale: run python -m grafana.build", file=sys.stderr)
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
