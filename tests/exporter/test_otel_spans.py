"""Rows become spans: times, parents, links and which are always kept."""

from __future__ import annotations

from typing import Any

from tests.exporter.span_rows import (
    MS,
    RING,
    UNIX_NS,
    arrival,
    iteration,
    link,
    request,
    rows,
)

from batchscope.exporter.spans import MAX_LINKS, MAX_REMEMBERED, Span, Tracer, span_ids
from batchscope.schemas.reasons import FinishReason, Phase, Verdict
from batchscope.schemas.records import NULL64

CALLER = 0xF0E1D2C3B4A5968778695A4B3C2D1E0F
PARENT = 0xFEDCBA9876543210


def spans(tracer: Tracer, *, keep_all: bool = True, **tables: Any) -> list[Span]:
    return list(tracer.spans(rows(**tables), sampled=lambda _: keep_all))


def test_an_iteration_lasts_from_the_begin_of_scheduling_to_its_completion() -> None:
    (span,) = spans(Tracer(RING), iterations=[iteration(7, at=50 * MS)])
    assert (span.end_ns - UNIX_NS, span.end_ns - span.start_ns) == (50 * MS, 11 * MS)
    assert (span.trace_id, span.span_id) == span_ids(RING, "iteration", 7)
    assert (span.parent_id, span.error) == (0, None)


def test_attributes_say_what_is_known_in_words_and_seconds() -> None:
    made = iteration(7, at=50 * MS, phase=Phase.MIXED, prefill_tokens=512)
    (span,) = spans(Tracer(RING), iterations=[made])
    assert span.name == "iteration mixed"
    assert span.attributes["batchscope.iteration.phase"] == "mixed"
    assert span.attributes["batchscope.iteration.prefill_tokens"] == 512
    assert span.attributes["batchscope.iteration.interval"] == 0.011
    assert "batchscope.iteration.budget_tokens" not in span.attributes


def test_a_wall_clock_step_moves_no_duration() -> None:
    stepped = request(1, arrived=0, finished=80 * MS, arrived_unix_ns=UNIX_NS + 10**12)
    (span,) = spans(Tracer(RING), requests=[stepped])
    assert span.end_ns - span.start_ns == 80 * MS


def test_a_request_is_a_child_of_its_callers_span() -> None:
    tracer = Tracer(RING)
    spans(tracer, arrivals=[arrival(1, trace=CALLER, parent=PARENT), arrival(2)])
    ends = [request(1, arrived=0, finished=80 * MS), request(2, arrived=0, finished=90 * MS)]
    with_caller, alone = spans(tracer, requests=ends)
    assert (with_caller.trace_id, with_caller.parent_id) == (CALLER, PARENT)
    assert with_caller.span_id == span_ids(RING, "request", 1)[1]
    assert (alone.trace_id, alone.span_id) == span_ids(RING, "request", 2)
    assert alone.parent_id == 0


def test_after_a_restart_the_row_alone_gives_the_callers_trace() -> None:
    row = request(
        1,
        arrived=0,
        finished=80 * MS,
        trace_id=f"{CALLER:032x}",
        parent_span_id=f"{PARENT:016x}",
    )
    (span,) = spans(Tracer(RING), requests=[row])
    assert (span.trace_id, span.parent_id) == (CALLER, PARENT)


def test_links_lead_from_an_iteration_to_its_prefills_and_from_a_request_to_its_first() -> None:
    tracer = Tracer(RING)
    made = spans(
        tracer,
        arrivals=[arrival(1, trace=CALLER, parent=PARENT)],
        links=[link(7, 1, tokens=64), link(7, 2), link(8, 1, tokens=36), link(9, 1, "preempted")],
        iterations=[iteration(7, at=50 * MS)],
        requests=[request(1, arrived=0, finished=80 * MS)],
    )
    of_iteration, of_request = made
    first, second = of_iteration.links
    assert (first.trace_id, first.span_id) == span_ids(RING, "request", 2)
    assert (second.trace_id, second.span_id) == (CALLER, span_ids(RING, "request", 1)[1])
    assert (second.why, second.tokens) == ("prefill", 64)
    assert [(to.span_id, to.why) for to in of_request.links] == [
        (span_ids(RING, "iteration", 7)[1], "first"),
        (span_ids(RING, "iteration", 9)[1], "preempted"),
    ]


def test_links_may_come_before_the_completion() -> None:
    tracer = Tracer(RING)
    assert spans(tracer, links=[link(7, 1)]) == []
    (span,) = spans(tracer, iterations=[iteration(7, at=50 * MS)])
    assert len(span.links) == 1


def test_eight_links_are_kept_preempted_first_then_the_largest_and_the_rest_is_told() -> None:
    linked = [link(7, n, tokens=n) for n in range(1, 20)] + [link(7, 30, "preempted", tokens=5)]
    (span,) = spans(Tracer(RING), links=linked, iterations=[iteration(7, at=50 * MS)])
    assert [to.why for to in span.links] == ["preempted"] + ["prefill"] * (MAX_LINKS - 1)
    assert [to.tokens for to in span.links] == [5, 19, 18, 17, 16, 15, 14, 13]
    assert span.attributes["batchscope.iteration.links_left_out"] == 12


def test_what_is_not_sampled_is_not_made_but_stalls_and_misses_are() -> None:
    steady = [iteration(n, at=n * 11 * MS) for n in range(1, 40)]
    stall = iteration(40, at=600 * MS, interval_ns=160 * MS)
    late = [
        request(1, arrived=0, finished=80 * MS),
        request(2, arrived=0, finished=80 * MS, verdict=Verdict.MISSED.code),
        request(3, arrived=0, finished=80 * MS),
    ]
    gap = {"iteration_id": 39, "serial": 3, "gap_ns": 200 * MS}
    made = spans(
        Tracer(RING), keep_all=False, iterations=[*steady, stall], requests=late, gaps=[gap]
    )
    kept = [
        s.attributes.get("batchscope.iteration.iteration_id")
        or s.attributes["batchscope.request.serial"]
        for s in made
    ]
    assert kept == [39, 40, 2, 3]
    assert [to.why for to in made[0].links] == ["stalled"]
    assert "stalled" in [to.why for to in made[3].links]


def test_a_stall_is_three_medians_where_that_is_more_than_fifty_milliseconds() -> None:
    intervals = [40, 40, 40, 110, 130]
    made = spans(
        Tracer(RING),
        keep_all=False,
        iterations=[
            iteration(n, at=n * 200 * MS, interval_ns=ms * MS) for n, ms in enumerate(intervals)
        ],
    )
    assert [span.attributes["batchscope.iteration.interval"] for span in made] == [0.13]


def test_a_cancel_is_no_success_and_no_error_and_a_failure_is_an_error() -> None:
    reasons = (FinishReason.ABORT, FinishReason.ERROR, FinishReason.STOP)
    ends = [
        request(n, arrived=0, finished=80 * MS, finish_reason=reason.code)
        for n, reason in enumerate(reasons, start=1)
    ]
    aborted, failed, stopped = spans(Tracer(RING), requests=ends)
    assert aborted.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert (aborted.error, failed.error, stopped.error) == (None, "error", None)
    assert failed.attributes["error.type"] == "error"


def test_a_word_that_only_a_newer_adapter_knows_is_left_out() -> None:
    row = request(1, arrived=0, finished=80 * MS, finish_reason=250)
    (span,) = spans(Tracer(RING), requests=[row])
    assert "batchscope.request.finish_reason" not in span.attributes
    assert span.attributes["gen_ai.response.finish_reasons"] == ["unknown"]


def test_a_request_that_was_here_before_us_starts_at_the_first_instant_that_is_known() -> None:
    row = request(1, arrived=NULL64, finished=80 * MS, first_token_at_ns=30 * MS)
    (span,) = spans(Tracer(RING), requests=[row])
    assert span.end_ns - span.start_ns == 50 * MS
    assert span.attributes["batchscope.request.arrival_known"] is False


def test_keys_are_hex_and_plain_ids_stay_as_they_are() -> None:
    hashed = request(1, arrived=0, finished=80 * MS, request_key=-2)
    plain = request(2, arrived=0, finished=80 * MS, request_key="cmpl-1")
    spans_made = spans(Tracer(RING), requests=[hashed]) + spans(Tracer(RING), requests=[plain])
    keys = [s.attributes["batchscope.request.request_key"] for s in spans_made]
    assert keys == ["fffffffffffffffe", "cmpl-1"]


def test_what_is_remembered_is_bounded_when_ends_are_lost() -> None:
    tracer = Tracer(RING)
    many = range(MAX_REMEMBERED + 10)
    spans(
        tracer,
        arrivals=[arrival(n, trace=CALLER) for n in many],
        links=[link(n, n) for n in many],
    )
    for memory in (tracer.contexts, tracer.by_request, tracer.by_iteration):
        assert len(memory) == MAX_REMEMBERED
        assert MAX_REMEMBERED + 9 in memory
