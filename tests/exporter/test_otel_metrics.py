"""Figures pushed over OTLP are those of /metrics, under names that translate to its names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client import parser
from tests.exporter import engine_views as ev
from tests.exporter.otlp_receiver import Received, over_grpc, over_http

from batchscope.exporter.otel import MetricsPush, metrics_exporter_for
from batchscope.exporter.prom import Exposition
from batchscope.schemas.catalogue import METRICS

UNITS = {"": "", "s": "seconds", "By": "bytes", "W": "watts", "Hz": "hertz", "Cel": "celsius"}
OF_THE_CONVENTIONS = {
    "gen_ai_server_time_to_first_token_seconds": "batchscope_time_to_first_token_seconds",
    "gen_ai_server_request_duration_seconds": "batchscope_request_duration_seconds",
}
ONLY_SCRAPED = ("batchscope_build_info", "batchscope_collector_duration_seconds")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def translated(name: str, unit: str, kind: str) -> str:
    """As Prometheus translates OTLP: dots to underscores, then the unit, then _total."""
    word = "ratio" if unit == "1" and kind == "gauge" else UNITS[unit]
    stem = name.replace(".", "_") + (f"_{word}" if word else "")
    return stem + "_total" if kind == "counter" else stem


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_over_otlp_translate_to_the_names_of_the_scrape(metric: Any) -> None:
    kind = "gauge" if metric.kind == "info" else metric.kind
    found = translated(metric.otel_name, metric.otel_unit, kind)
    suffix = "_total" if metric.kind == "counter" else ""
    assert OF_THE_CONVENTIONS.get(found, found) == metric.full_name + suffix


def test_names_over_otlp_carry_neither_a_unit_nor_total() -> None:
    for metric in METRICS:
        assert not metric.otel_name.endswith(("_seconds", "_bytes", "_ratio"))
        assert metric.kind != "counter" or not metric.otel_name.endswith("_total")


def pushed(received: Received, wanted: Callable[[], list[ev.View]], protocol: str) -> None:
    exporter = metrics_exporter_for(received.url, protocol=protocol)
    push = MetricsPush(
        exporter, wanted, ev.exporter_values, gpu=ev.gpu_values, every_s=3600, wall=lambda: 77
    )
    push.close()
    assert push.values() == {}


def numbers(metric: Metric) -> Iterator[tuple[str, Any, float]]:
    """(translated name, point, value) of sums, gauges and histograms' counts and sums."""
    kind = str(metric.WhichOneof("data"))
    name = translated(metric.name, metric.unit, {"sum": "counter"}.get(kind, kind))
    name = OF_THE_CONVENTIONS.get(name, name)
    for point in getattr(metric, kind).data_points:
        if kind == "histogram":
            yield f"{name}_count", point, point.count
            yield f"{name}_sum", point, point.sum
        else:
            yield name, point, getattr(point, point.WhichOneof("value"))


def series(received: Received) -> Series:
    found = [
        ((name, labels_of(point)), value)
        for _, metric in received.metrics
        for name, point, value in numbers(metric)
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def labels_of(point: Any) -> frozenset[tuple[str, str]]:
    pairs = {pair.key: pair.value.string_value for pair in point.attributes}
    return frozenset((k, v) for k, v in pairs.items() if not k.startswith("gen_ai."))


def scraped(views: list[ev.View]) -> Series:
    exposed = Exposition(lambda: views, ev.exporter_values, ev.gpu_values)
    read: Any = parser.text_string_to_metric_families
    found = [s for f in read(exposed.render("", "")[0].decode()) for s in f.samples]
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for s in found
        if not s.name.endswith("_bucket") and s.name not in ONLY_SCRAPED
    }


@pytest.mark.parametrize(("protocol", "receiver"), [("http", over_http), ("grpc", over_grpc)])
def test_every_series_of_the_scrape_is_pushed_with_its_value(
    protocol: str, receiver: Callable[[], AbstractContextManager[Received]]
) -> None:
    views = [ev.full_view(n) for n in range(2)]
    with receiver() as received:
        pushed(received, lambda: views, protocol)
    found, expected = series(received), scraped(views)
    assert set(found) == set(expected)
    assert found == pytest.approx(expected, rel=1e-12)


def test_buckets_and_times_arrive_as_counted() -> None:
    view = ev.full_view(0)
    with over_http() as received:
        pushed(received, lambda: [view], "http")
    (tokens,) = (m for _, m in received.metrics if m.name == "batchscope.batch_tokens")
    (point,) = tokens.histogram.data_points
    assert list(point.bucket_counts) == view.totals.histograms["batch_tokens", ()].counts.tolist()
    assert list(point.explicit_bounds) == [float(2**i) for i in range(16)]
    assert (point.time_unix_nano, point.start_time_unix_nano) == (77, 0)
    assert not point.HasField("min")
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert tokens.histogram.aggregation_temporality == cumulative


def test_figures_of_the_conventions_carry_what_those_require() -> None:
    with over_http() as received:
        pushed(received, lambda: [ev.full_view(0)], "http")
    (ttft,) = (m for _, m in received.metrics if m.name == "gen_ai.server.time_to_first_token")
    found = {pair.key for pair in ttft.histogram.data_points[0].attributes}
    assert {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"} <= found


def test_a_dead_collector_costs_a_counter() -> None:
    exporter = metrics_exporter_for("http://127.0.0.1:9", timeout_s=0.1)
    push = MetricsPush(exporter, list, dict, every_s=3600)
    began = time.monotonic()
    push.close()
    assert time.monotonic() - began < 5
    assert push.values() == {("collector_errors", ("otlp_metrics",)): 1}
