"""Spans reach a real collector whole, and a dead one costs a counter."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from tests.exporter.otlp_receiver import Received, over_grpc, over_http
from tests.exporter.span_rows import (
    MS,
    RING,
    UNIX_NS,
    Ring,
    arrival,
    iteration,
    link,
    request,
    rows,
)

from batchscope.exporter.otel import BATCH_SPANS, SpanSink, exporter_for
from batchscope.exporter.spans import span_ids
from batchscope.schemas.reasons import FinishReason, Phase

ITERATIONS, REQUESTS, CHUNK = 9_000, 1_000, 500
CALLER, PARENT = 0xABCDEF0123456789ABCDEF0123456789, 0x1122334455667788


def until(done: Callable[[], bool], *, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.005)
    return done()


def chunk(first: int) -> dict[str, Any]:
    """500 iterations, every tenth with a prefill whose request ends in the same chunk."""
    numbers = range(first, first + CHUNK)
    serials = [n for n in numbers if n % 9 == 0]
    return rows(
        arrivals=[arrival(n, trace=CALLER if n % 2 else 0, parent=PARENT) for n in serials],
        links=[link(n, n, tokens=n) for n in serials],
        iterations=[
            iteration(n, at=n * MS, phase=Phase.MIXED if n % 9 == 0 else Phase.DECODE)
            for n in numbers
        ],
        requests=[
            request(
                n,
                arrived=n * MS,
                finished=(n + 80) * MS,
                finish_reason=(FinishReason.ERROR if n % 4 == 0 else FinishReason.STOP).code,
            )
            for n in serials
        ],
    )


def plain(span: WireSpan) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
        for pair in span.attributes
    }


@pytest.mark.parametrize(("protocol", "receiver"), [("http", over_http), ("grpc", over_grpc)])
def test_ten_thousand_spans_reach_a_collector_with_times_attributes_and_links(
    protocol: str, receiver: Callable[[], AbstractContextManager[Received]]
) -> None:
    with receiver() as received:
        sink = SpanSink(exporter_for(received.url, protocol=protocol))
        for first in range(1, ITERATIONS + 1, CHUNK):
            sink.rows(Ring(), chunk(first))
        assert until(lambda: sum(sink.values().values()) == ITERATIONS + REQUESTS)
        sink.close()
        assert sink.values() == {
            ("spans", ("exported",)): ITERATIONS + REQUESTS,
            ("spans", ("dropped",)): 0,
        }
        check_all(received)


def check_all(received: Received) -> None:
    by_id = {(span.trace_id, span.span_id): span for _, span in received.spans}
    assert len(by_id) == len(received.spans) == ITERATIONS + REQUESTS
    for number in range(1, ITERATIONS + 1):
        check_iteration(by_id[wire(span_ids(RING, "iteration", number))], number)
    for serial in range(9, ITERATIONS + 1, 9):
        check_request(by_id[request_id(serial)], serial)
    names = {pair.key: pair.value.string_value for pair in received.spans[0][0].attributes}
    assert (names["service.name"], names["service.instance.id"]) == ("mini-0", RING)


def wire(ids: tuple[int, int]) -> tuple[bytes, bytes]:
    return ids[0].to_bytes(16, "big"), ids[1].to_bytes(8, "big")


def request_id(serial: int) -> tuple[bytes, bytes]:
    trace, span = span_ids(RING, "request", serial)
    return wire((CALLER if serial % 2 else trace, span))


def check_iteration(span: WireSpan, number: int) -> None:
    end = UNIX_NS + number * MS
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (end - 11 * MS, end)
    assert (span.kind, span.parent_span_id) == (WireSpan.SPAN_KIND_INTERNAL, b"")
    found = plain(span)
    assert found["batchscope.iteration.iteration_id"] == number
    assert found["batchscope.iteration.interval"] == 0.011
    assert found["gen_ai.provider.name"] == "mini"
    links = [(to.trace_id, to.span_id) for to in span.links]
    assert links == ([request_id(number)] if number % 9 == 0 else [])


def check_request(span: WireSpan, serial: int) -> None:
    start = UNIX_NS + serial * MS
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start, start + 80 * MS)
    assert span.parent_span_id == (PARENT.to_bytes(8, "big") if serial % 2 else b"")
    assert span.status.code == (Status.STATUS_CODE_ERROR if serial % 4 == 0 else 0)
    assert plain(span)["gen_ai.usage.input_tokens"] == 100
    (first,) = span.links
    assert (first.trace_id, first.span_id) == wire(span_ids(RING, "iteration", serial))


def test_half_of_the_ordinary_spans_are_kept_at_a_ratio_of_a_half() -> None:
    with over_http() as received:
        sink = SpanSink(exporter_for(received.url), ratio=0.5)
        sink.rows(Ring(), rows(iterations=[iteration(n, at=n * MS) for n in range(2_000)]))
        sink.close()
        assert 900 < len(received.spans) < 1_100


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_dead_collector_costs_a_counter_and_no_time(protocol: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        exporter = exporter_for(url, protocol=protocol, timeout_s=0.2)
        sink = SpanSink(exporter, queue_spans=1_000)
        began = time.monotonic()
        for first in range(1, 3_001, CHUNK):
            sink.rows(Ring(), chunk(first))
        assert time.monotonic() - began < 5
        sink.close(timeout_s=2.0)
        made = 3_000 + 3_000 // 9
        assert sink.values() == {("spans", ("exported",)): 0, ("spans", ("dropped",)): made}


class Stuck(SpanExporter):
    """A collector that takes a batch and never answers, until it is shut down."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.batches: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(len(spans))
        self.released.wait(20)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.released.set()


def test_a_stuck_collector_leaves_the_queue_bounded_and_the_sink_free() -> None:
    stuck = Stuck()
    sink = SpanSink(stuck, queue_spans=1_000)
    for first in range(1, 20_001, 1_000):
        sink.rows(Ring(), rows(iterations=[iteration(first + n, at=n * MS) for n in range(1_000)]))
    assert until(lambda: bool(stuck.batches))
    assert sink.values()["spans", ("dropped",)] >= 20_000 - 1_000 - BATCH_SPANS
    sink.close(timeout_s=0.05)
    assert sum(sink.values().values()) == 20_000


class Moody(Stuck):
    """A collector that takes a batch or not, as it is told."""

    def __init__(self, *moods: SpanExportResult) -> None:
        super().__init__()
        self.moods = list(moods)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.moods.pop(0)


def test_the_log_says_once_that_a_collector_is_gone_and_once_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no, yes = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    moody = Moody(yes, no, no, no, yes, yes)
    sink = SpanSink(moody, url="http://me:secret@127.0.0.1:4318")
    for n in range(6):
        sink.rows(Ring(), rows(iterations=[iteration(n + 1, at=MS)]))
        assert until(lambda n=n: sum(sink.values().values()) == n + 1)  # type: ignore[misc]
    sink.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    gone, back = [record.getMessage() for record in caplog.records]
    assert gone.startswith("the OTLP receiver http://127.0.0.1:4318 takes no spans; ")
    assert back == "the OTLP receiver http://127.0.0.1:4318 takes spans again"


def test_an_exporter_that_raises_is_a_drop() -> None:
    class Broken(Stuck):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise RuntimeError("no route")

    sink = SpanSink(Broken())
    sink.rows(Ring(), rows(iterations=[iteration(1, at=MS)]))
    sink.close()
    assert sink.values() == {("spans", ("exported",)): 0, ("spans", ("dropped",)): 1}


def test_kept_iterations_are_exemplars_of_their_buckets() -> None:
    with over_http() as received:
        sink = SpanSink(exporter_for(received.url))
        sink.rows(Ring(), rows(iterations=[iteration(1, at=MS), iteration(2, at=2 * MS)]))
        sink.close()
    newest = sink.exemplars.of(("mini-0", "llama-tiny", "", "both"))
    (exemplar,) = newest["iteration_interval_seconds", ("decode",)].values()
    assert exemplar.trace_id == f"{span_ids(RING, 'iteration', 2)[0]:032x}"
    assert (
        newest["time_between_tokens_seconds", ()]
        == newest["iteration_interval_seconds", ("decode",)]
    )


def test_an_unknown_protocol_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown OTLP protocol 'thrift'; known: http, grpc"):
        exporter_for("http://127.0.0.1:4318", protocol="thrift")
