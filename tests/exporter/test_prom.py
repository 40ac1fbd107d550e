"""/metrics: what a scraper reads is what was counted, and nothing in here ever raises."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from tests.exporter import engine_views as ev

from batchscope.exporter.exemplars import Exemplars
from batchscope.exporter.prom import Exposition
from batchscope.exporter.spans import Span
from batchscope.schemas.catalogue import METRICS

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
LABELS = {"engine": "mini-1", "model_name": "llama-tiny", "dp_rank": "1", "role": "both"}
Found = dict[tuple[str, frozenset[Any]], float]


def exposition(
    *views: ev.View,
    gpu: Callable[[], Any] = ev.gpu_values,
    exemplars: Exemplars | None = None,
) -> Exposition:
    return Exposition(lambda: list(views), ev.exporter_values, gpu, exemplars)


def families(exposed: Exposition, accept: str) -> list[Metric]:
    read: Any = openmetrics_parser if accept else parser
    return list(read.text_string_to_metric_families(exposed.render(accept, "")[0].decode()))


def samples(exposed: Exposition, accept: str = "") -> Found:
    found = [s for f in families(exposed, accept) for s in f.samples]
    by_series = {(s.name, frozenset(s.labels.items())): s.value for s in found}
    assert len(by_series) == len(found)
    return by_series


def value(found: Found, name: str, **labels: str) -> float:
    return found[f"batchscope_{name}", frozenset(labels.items())]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_family_of_the_catalogue_is_exposed_with_exactly_its_labels(accept: str) -> None:
    found = samples(exposition(ev.full_view(1)), accept)
    seen = {(name, frozenset(label for label, _ in labels)) for name, labels in found}
    for metric in METRICS:
        suffix = {"counter": "_total", "histogram": "_count"}.get(metric.kind, "")
        assert (metric.full_name + suffix, frozenset(metric.label_names)) in seen


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_counted_integers_are_scaled_once(accept: str) -> None:
    view = ev.full_view(1)
    view.totals.counters["host_seconds", ()] = 1_500_000_000
    view.totals.counters["output_tokens", ()] = 2**60
    found = samples(exposition(view), accept)
    assert value(found, "host_seconds_total", **LABELS) == 1.5
    assert value(found, "output_tokens_total", **LABELS) == float(2**60)
    assert value(found, "gpu_power_watts", device="0") == 0.25


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_buckets_are_cumulative_and_end_with_the_count(accept: str) -> None:
    view = ev.full_view(1)
    counts = np.zeros(17, np.int64)
    counts[[0, 3, 16]] = 2, 5, 1
    view.totals.histograms["queue_duration_seconds", ()] = ev.Counts(counts, 3_000_000_000)
    found = samples(exposition(view), accept)
    name = "queue_duration_seconds"
    assert value(found, f"{name}_bucket", **LABELS, le="0.005") == 2
    assert value(found, f"{name}_bucket", **LABELS, le="0.05") == 7
    assert value(found, f"{name}_bucket", **LABELS, le="+Inf") == 8
    assert value(found, f"{name}_count", **LABELS) == 8
    assert value(found, f"{name}_sum", **LABELS) == 3.0


def test_a_counter_that_went_negative_is_clamped_and_counted() -> None:
    view = ev.full_view(1)
    view.totals.counters["output_tokens", ()] = -3
    found = samples(exposition(view))
    assert value(found, "output_tokens_total", **LABELS) == 0
    assert value(found, "collector_errors_total", part="metrics_clamped") == 1


def test_what_is_unknown_is_absent_and_never_zero() -> None:
    view = ev.full_view(1)
    view.gauges["kv_waste_tokens", ()] = -(2**63)
    view.labels["dp_rank"] = None
    view.hello.pop("unix_ns")
    del view.gauges["engine_start_time_seconds", ()]
    text = exposition(view).render("", "")[0].decode()
    assert "batchscope_kv_waste_tokens" not in text
    assert "batchscope_engine_start_time_seconds" not in text
    assert "dp_rank" not in text


def test_an_engine_with_a_fault_hides_neither_the_others_nor_the_fault() -> None:
    broken, whole = ev.full_view(0), ev.full_view(1)
    broken.totals.histograms["queue_duration_seconds", ()] = ev.Counts(np.ones(3, np.int64), 1)
    found = samples(exposition(broken, whole))
    assert value(found, "live_requests", **LABELS) == 3
    assert not any(("engine", "mini-0") in labels for _, labels in found)
    assert value(found, "collector_errors_total", part="metrics_engine") == 1


def test_a_part_with_a_fault_leaves_the_others_up() -> None:
    def unplugged() -> Any:
        raise OSError("driver gone")

    found = samples(exposition(ev.full_view(1), gpu=unplugged))
    assert value(found, "live_requests", **LABELS) == 3
    assert value(found, "store_up") == 5
    assert value(found, "collector_errors_total", part="metrics_gpu") == 1


def test_a_pipeline_that_cannot_be_asked_is_told_of() -> None:
    def broken() -> Any:
        raise RuntimeError("stopped")

    found = samples(Exposition(lambda: [ev.full_view(1)], broken))
    assert value(found, "live_requests", **LABELS) == 3
    assert value(found, "collector_errors_total", part="metrics_exporter") == 1


def test_names_outside_the_catalogue_are_counted_not_exposed() -> None:
    view = ev.full_view(1)
    view.gauges["made_up", ()] = 1
    view.gauges["kv_blocks", ()] = 1
    found = samples(exposition(view))
    assert not any("made_up" in name for name, _ in found)
    assert value(found, "collector_errors_total", part="metrics_unknown") == 2


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_labels_with_quotes_backslashes_and_newlines_survive(accept: str) -> None:
    view = ev.full_view(1)
    view.labels["model_name"] = odd = 'a "b"\\c\nd # {e'
    found = samples(exposition(view), accept)
    assert value(found, "live_requests", **{**LABELS, "model_name": odd}) == 3


def test_gzip_is_honoured_and_only_when_asked_for() -> None:
    exposed = exposition(ev.full_view(1))
    packed, _, encoding = exposed.render("", "deflate, gzip")
    plain, kind, none = exposed.render("", "")
    assert (encoding, none) == ("gzip", None)
    assert kind.startswith("text/plain; version=0.0.4")
    assert len(gzip.decompress(packed)) == pytest.approx(len(plain), rel=0.01)
    assert len(packed) < len(plain) / 5


def test_exemplars_lead_from_a_bucket_to_the_trace_of_its_last_iteration() -> None:
    exemplars = Exemplars()
    about: dict[str, Any] = {
        "batchscope.iteration.interval": 0.0101,
        "batchscope.iteration.phase": "decode",
        "batchscope.iteration.decode_gap_members": 3,
    }
    for trace in (7, 8):
        span = Span("iteration", "iteration decode", trace, 1, 0, 0, 2 * 10**9, about)
        exemplars.note(("mini-1", "llama-tiny", "1", "both"), span)
    exposed = exposition(ev.full_view(1), exemplars=exemplars)
    found = {
        (s.name.removeprefix("batchscope_"), float(s.labels["le"])): s.exemplar
        for f in families(exposed, OPENMETRICS)
        for s in f.samples
        if s.exemplar is not None
    }
    bucket = "time_between_tokens_seconds_bucket"
    assert set(found) == {(bucket, 0.0116), ("iteration_interval_seconds_bucket", 0.0116)}
    exemplar = found[bucket, 0.0116]
    assert exemplar.labels == {"trace_id": f"{8:032x}"}
    assert (exemplar.value, float(exemplar.timestamp or 0)) == (0.0101, 2.0)
    assert "trace_id" not in exposed.render("", "")[0].decode()


def test_a_setting_of_the_engine_is_a_gauge_and_text_is_not() -> None:
    view = ev.full_view(1)
    view.hello["config"] = {"budget_tokens": 2048, "prefix_reuse": True, "policy": "chunked"}
    found = samples(exposition(view))
    assert value(found, "engine_config", **LABELS, setting="budget_tokens") == 2048
    assert value(found, "engine_config", **LABELS, setting="prefix_reuse") == 1
    assert not any(("setting", "policy") in labels for _, labels in found)


def test_an_engine_that_is_gone_is_down() -> None:
    view = ev.full_view(1)
    del view.gauges["engine_up", ()]
    view.state = "dead"
    assert value(samples(exposition(view)), "engine_up", **LABELS) == 0


def test_what_may_raise_an_alarm_starts_at_zero_so_that_the_first_one_is_an_increase() -> None:
    view = ev.full_view(1)
    view.totals.counters = {
        ("audit_checks", ("tokens_emitted",)): 1,
        ("slo_requests", ("demo", "missed")): 5,
    }
    view.hello["provides"] = {"preempted.lost_tokens": "exact"}
    found = samples(exposition(view))
    for name in ("lost_records_total", "output_tokens_total", "preemptions_total"):
        assert value(found, name, **LABELS) == 0
    assert value(found, "audit_violations_total", **LABELS, law="tokens_emitted") == 0
    assert value(found, "slo_requests_total", **LABELS, slo="demo", verdict="met") == 0
    assert value(found, "slo_requests_total", **LABELS, slo="demo", verdict="missed") == 5
    assert value(found, "on_time_tokens_total", **LABELS, slo="demo") == 0
    assert value(found, "requests_finished_total", **LABELS, reason="error") == 0


def test_preemptions_that_an_adapter_cannot_see_are_absent() -> None:
    view = ev.full_view(1)
    view.totals.counters = {}
    assert not any("preemptions" in name for name, _ in samples(exposition(view)))
