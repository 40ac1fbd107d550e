"""A whole scripted run through the fold: what is scraped and traced is what the script says."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import parser
from tests.exporter.scripted_runs import (
    MS,
    PARENT,
    TRACE_HI,
    TRACE_LO,
    fold,
    one_request,
    rich,
    view,
)
from tests.support.records import Script

from batchscope.exporter.prom import Exposition
from batchscope.exporter.spans import Span, Tracer, span_ids
from batchscope.schemas.catalogue import METRICS

FROM_HELLO_OR_PIPELINE = {"engine_info", "engine_up", "engine_config", "engine_start_time_seconds"}
Found = dict[str, float]


def text(script: Script) -> str:
    folded, _ = fold(script)
    exposed = Exposition(lambda: [view(script, folded)], dict)
    return exposed.render("", "")[0].decode()


def scraped(script: Script, *, label: str) -> Found:
    """Sample name, and value of one label, to the sample's value."""
    read: Any = parser.text_string_to_metric_families
    found = [s for f in read(text(script)) for s in f.samples]
    return {f"{s.name[11:]}{s.labels.get(label, '')}": s.value for s in found}


def spans(script: Script) -> list[Span]:
    _, rows = fold(script)
    return list(Tracer(script.ring_uuid).spans(rows, sampled=lambda _: True))


def test_ten_tokens_in_chunks_of_four_are_batches_of_four_four_and_two() -> None:
    found = scraped(one_request(), label="le")
    cumulative = [found[f"batch_tokens_bucket{bound}"] for bound in ("1.0", "2.0", "4.0", "+Inf")]
    assert cumulative == [3, 4, 6, 6]


def test_tokens_and_latencies_are_scraped_as_scripted() -> None:
    found = scraped(one_request(), label="phase")
    assert found["scheduled_tokens_totalprefill"] == 10
    assert found["scheduled_tokens_totaldecode"] == 3
    assert found["output_tokens_total"] == 4
    assert found["time_to_first_token_seconds_sum"] == pytest.approx(0.030)
    assert found["time_between_tokens_seconds_count"] == 3
    assert found["time_between_tokens_seconds_sum"] == pytest.approx(0.030)
    assert found["request_duration_seconds_sum"] == pytest.approx(0.060)
    assert found["last_completion_timestamp_seconds"] == pytest.approx(1_700_000_000.06)


def test_every_metric_of_engines_is_fed_by_the_fold() -> None:
    found = text(rich())
    exempt = FROM_HELLO_OR_PIPELINE
    missing = [
        metric.name
        for metric in METRICS
        if metric.scope == "engine" and metric.name not in exempt
        if f"\n{metric.full_name}" not in found
    ]
    assert missing == []


def test_time_without_requests_is_idle_and_blocks_sum_to_the_total() -> None:
    assert scraped(rich(), label="reason")["idle_seconds_total"] == pytest.approx(0.198)
    found = scraped(rich(), label="state")
    states = [found[f"kv_blocks{state}"] for state in ("used", "evictable", "free")]
    assert states == [1, 0, 9]


def test_the_fold_counts_nothing_that_the_catalogue_does_not_know() -> None:
    assert 'part="metrics_' not in text(rich())


def test_spans_of_a_run_join_the_callers_trace_and_link_both_ways() -> None:
    script = one_request()
    *iterations, request = spans(script)
    uuid = script.ring_uuid
    assert [span.span_id for span in iterations] == [
        span_ids(uuid, "iteration", n)[1] for n in range(1, 7)
    ]
    assert [span.end_ns - iterations[0].end_ns for span in iterations] == [
        10 * n * MS for n in range(6)
    ]
    assert (request.trace_id, request.parent_id) == (TRACE_HI << 64 | TRACE_LO, PARENT)
    assert request.end_ns - request.start_ns == 60 * MS
    assert [[(to.span_id, to.tokens) for to in span.links] for span in iterations] == [
        [(request.span_id, 4)],
        [(request.span_id, 4)],
        [(request.span_id, 2)],
        [],
        [],
        [],
    ]
    assert [to.span_id for to in request.links] == [iterations[0].span_id]
    assert request.attributes["gen_ai.usage.output_tokens"] == 4
    assert request.attributes["batchscope.request.ttft"] == 0.03


def test_a_preemption_links_its_iteration_and_its_request() -> None:
    found = {(s.subject, s.attributes.get("batchscope.request.serial")): s for s in spans(rich())}
    of_request = found["request", 2]
    assert "preempted" in [to.why for to in of_request.links]
