"""Sends spans, and figures where wanted, over OTLP by HTTP or gRPC, each on a thread of its own.

A collector that is slow, wrong or dead costs a counter (`spans{result="dropped"}`), never memory
and never a stall of the fold. What a span says is decided in spans.py, what is counted elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as OtelLink
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from batchscope.exporter.exemplars import Exemplars
from batchscope.exporter.figures import Histogram, Series, Values, View, plain
from batchscope.exporter.reception import Reception
from batchscope.exporter.spans import Link, Rows, Span, Tracer
from batchscope.schemas.catalogue import BY_NAME, ENGINE_LABELS
from batchscope.schemas.records import NULL64

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
"""The first version with gen_ai.provider.name; gen_ai.* is still in development."""
SCOPE = InstrumentationScope("batchscope", schema_url=SCHEMA_URL)
CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
PROTOCOLS = ("http", "grpc")
QUEUE_SPANS = 16_384
BATCH_SPANS = 512
TIMEOUT_S = 5.0
MAX_RINGS = 256


class Ring(Protocol):
    """What a span needs to know about the ring that its rows come from."""

    @property
    def hello(self) -> Mapping[str, Any]:
        """The ring's HELLO: engine, model_name, role, dp_rank, version, ring_uuid."""


@dataclass(frozen=True)
class Source:
    """Of one ring: what its spans have in common."""

    tracer: Tracer
    resource: Resource
    labels: tuple[str, ...]


def exporter_for(
    url: str,
    *,
    protocol: str = "http",
    timeout_s: float = TIMEOUT_S,
) -> SpanExporter:
    """Sender of spans to a collector's base URL: http://127.0.0.1:4318 for http, :4317 for grpc.

    Raises ValueError for another protocol.
    """
    _silence()
    how: Any = {"timeout": timeout_s}
    if _is_http(protocol):
        return HttpExporter(_endpoint(url, "traces"), **how)
    return GrpcExporter(url, insecure=not url.startswith("https"), **how)


def metrics_exporter_for(
    url: str,
    *,
    protocol: str = "http",
    timeout_s: float = TIMEOUT_S,
) -> sdk.MetricExporter:
    """The same for figures."""
    _silence()
    how: Any = {"timeout": timeout_s}
    if _is_http(protocol):
        return HttpMetrics(_endpoint(url, "metrics"), **how)
    return GrpcMetrics(url, insecure=not url.startswith("https"), **how)


def _silence() -> None:
    """A collector that is away for a night would log every few seconds; Reception says it once."""
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)


def _is_http(protocol: str) -> bool:
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown OTLP protocol {protocol!r}; known: {', '.join(PROTOCOLS)}")
    return protocol == "http"


def _endpoint(url: str, signal: str) -> str:
    base, path = url.rstrip("/"), f"/v1/{signal}"
    return base if base.endswith(path) else base + path


class SpanSink:
    """Makes spans of rows, keeps a sample, and sends it from a thread of its own.

    `ratio` of ordinary spans are kept, by trace id as TraceIdRatioBased does, so that a caller's
    sampled traces keep their request spans; stalls and SLO misses always. `rows` never blocks.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        ratio: float = 1.0,
        queue_spans: int = QUEUE_SPANS,
        url: str = "",
    ) -> None:
        self.exemplars = Exemplars()
        self._reception = Reception("spans", url)
        self._exporter = exporter
        self._bound = round(max(0.0, min(ratio, 1.0)) * 2**64)
        self._queue: deque[ReadableSpan] = deque()
        self._limit = queue_spans
        self._sources: dict[str, Source] = {}
        self._results = {"exported": 0, "dropped": 0}
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._send_all, name="batchscope-otlp", daemon=True)
        self._thread.start()

    def rows(self, ring: Ring, rows: Rows) -> None:
        """Queues the spans of one chunk's rows; what doesn't fit is dropped and counted."""
        source = self._source(ring.hello)
        kept = list(source.tracer.spans(rows, sampled=self._sampled))
        self._note_exemplars(source, kept)
        with self._wake:
            room = max(0, self._limit - len(self._queue))
            self._results["dropped"] += max(0, len(kept) - room)
            self._queue.extend(_readable(span, source.resource) for span in kept[:room])
            self._wake.notify()

    def values(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """Spans by what became of them, for /metrics."""
        return {("spans", (result,)): n for result, n in self._results.items()}

    def close(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Sends what is queued, within the timeout; what remains is dropped and counted."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        self._exporter.shutdown()
        self._thread.join(1.0)
        with self._wake:
            self._results["dropped"] += len(self._queue)
            self._queue.clear()

    def _source(self, hello: Mapping[str, Any]) -> Source:
        uuid = str(hello["ring_uuid"])
        if uuid not in self._sources:
            tracer = Tracer(uuid, engine=_engine_attributes(hello))
            values = (hello.get(name) for name in ENGINE_LABELS)
            labels = tuple("" if value is None else str(value) for value in values)
            self._sources[uuid] = Source(tracer, _resource(hello), labels)
            for oldest in list(self._sources)[:-MAX_RINGS]:
                del self._sources[oldest]
        return self._sources[uuid]

    def _sampled(self, trace_id: int) -> bool:
        return trace_id % 2**64 < self._bound

    def _note_exemplars(self, source: Source, kept: Sequence[Span]) -> None:
        for span in kept:
            if span.subject == "iteration":
                self.exemplars.note(source.labels, span)

    def _send_all(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            taken = self._send(batch)
            self._reception.note(taken=taken)
            with self._wake:
                self._results["exported" if taken else "dropped"] += len(batch)

    def _next_batch(self) -> list[ReadableSpan]:
        """Waits for spans; empty when the sink is closed and drained."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._closing)
            take = min(BATCH_SPANS, len(self._queue))
            return [self._queue.popleft() for _ in range(take)]

    def _send(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - foreign code; the caller counts what was lost
            return False


class MetricsPush:
    """Pushes the figures of /metrics, under their OTLP names, every `every_s` seconds.

    For those who scrape nothing. Sums are cumulative over restarts of the engine and of this
    process, so their start is not told: unknown, not now.
    """

    def __init__(
        self,
        exporter: sdk.MetricExporter,
        views: Callable[[], Iterable[View]],
        exporter_values: Callable[[], Values],
        *,
        gpu: Callable[[], Values] | None = None,
        every_s: float = 10.0,
        wall: Callable[[], int] = time.time_ns,
        url: str = "",
    ) -> None:
        self._reception = Reception("metrics", url)
        self._exporter, self._views, self._wall = exporter, views, wall
        self._own: tuple[Callable[[], Values], ...] = (exporter_values, *([gpu] if gpu else []))
        self._faults = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(every_s,), name="batchscope-otlp-metrics", daemon=True
        )
        self._thread.start()

    def push(self) -> None:
        """One push now; a fault is counted."""
        try:
            data = sdk.MetricsData(self._resources())
            failed = self._exporter.export(data) is not sdk.MetricExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - foreign code, or a view that is broken
            failed = True
        self._faults += failed
        self._reception.note(taken=not failed)

    def values(self) -> dict[Series, int]:
        """Pushes that failed, for /metrics."""
        return {("collector_errors", ("otlp_metrics",)): self._faults} if self._faults else {}

    def close(self) -> None:
        """A last push, then the end, in bounded time."""
        self._closing.set()
        self._thread.join(TIMEOUT_S)
        self._exporter.shutdown()

    def _run(self, every_s: float) -> None:
        while not self._closing.wait(every_s):
            self.push()
        self.push()

    def _resources(self) -> list[sdk.ResourceMetrics]:
        now = self._wall()
        engines = [_resource_metrics(_resource(v.hello), _engine(v, now)) for v in self._views()]
        own = [m for values in self._own for m in _numbers(values(), {}, now)]
        return [*engines, _resource_metrics(Resource({"service.name": "batchscope"}), own)]


def _resource_metrics(resource: Resource, metrics: list[sdk.Metric]) -> sdk.ResourceMetrics:
    scope = sdk.ScopeMetrics(SCOPE, metrics, SCHEMA_URL)
    return sdk.ResourceMetrics(resource, [scope], SCHEMA_URL)


def _engine(view: View, now_ns: int) -> list[sdk.Metric]:
    labels = {name: view.labels.get(name) for name in ENGINE_LABELS}
    base = {name: value for name, value in labels.items() if value}
    points: dict[str, list[sdk.HistogramDataPoint]] = {}
    for (name, values), histogram in view.totals.histograms.items():
        own = dict(zip(BY_NAME[name].labels, values, strict=True))
        required = _engine_attributes(view.hello) if BY_NAME[name].otel.startswith("gen_ai") else {}
        point = _distribution(name, histogram, {**base, **own, **required}, now_ns)
        points.setdefault(name, []).append(point)
    histograms = [_metric(n, sdk.Histogram(found, CUMULATIVE)) for n, found in points.items()]
    return [*_numbers(plain(view), base, now_ns), *histograms]


def _distribution(
    name: str, histogram: Histogram, attributes: Mapping[str, str], now_ns: int
) -> sdk.HistogramDataPoint:
    """Least and greatest are not known, so not told."""
    counts = [int(count) for count in histogram.counts]
    unknown: Any = None
    total = histogram.sum * BY_NAME[name].scale
    bounds = BY_NAME[name].buckets
    return sdk.HistogramDataPoint(
        attributes, 0, now_ns, sum(counts), total, counts, bounds, unknown, unknown
    )


def _numbers(values: Values, base: Mapping[str, str], now_ns: int) -> list[sdk.Metric]:
    points: dict[str, list[sdk.NumberDataPoint]] = {}
    for (name, labels), value in values.items():
        if name in BY_NAME and value != NULL64:
            attributes = {**base, **dict(zip(BY_NAME[name].labels, labels, strict=True))}
            scaled = value if BY_NAME[name].scale == 1 else value * BY_NAME[name].scale
            point = sdk.NumberDataPoint(attributes, 0, now_ns, scaled)
            points.setdefault(name, []).append(point)
    return [_metric(name, _sum_or_gauge(name, found)) for name, found in points.items()]


def _sum_or_gauge(name: str, points: list[sdk.NumberDataPoint]) -> sdk.Sum | sdk.Gauge:
    counter = BY_NAME[name].kind == "counter"
    return sdk.Sum(points, CUMULATIVE, is_monotonic=True) if counter else sdk.Gauge(points)


def _metric(name: str, data: sdk.Sum | sdk.Gauge | sdk.Histogram) -> sdk.Metric:
    return sdk.Metric(BY_NAME[name].otel_name, BY_NAME[name].help, BY_NAME[name].otel_unit, data)


def _resource(hello: Mapping[str, Any]) -> Resource:
    """The engine as an entity: stable service name, one instance per ring."""
    known = {
        "service.namespace": "batchscope",
        "service.name": hello.get("engine"),
        "service.instance.id": hello.get("ring_uuid"),
        "service.version": hello.get("version"),
        "batchscope.role": hello.get("role"),
        "batchscope.dp_rank": hello.get("dp_rank"),
        "batchscope.config_hash": hello.get("config_hash"),
    }
    return Resource({k: v for k, v in known.items() if v is not None}, schema_url=SCHEMA_URL)


def _engine_attributes(hello: Mapping[str, Any]) -> dict[str, Any]:
    """On every span: what the conventions require. The scheduler sees no chat, only completions."""
    known = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": hello.get("kind"),
        "gen_ai.request.model": hello.get("model_name"),
    }
    return {k: v for k, v in known.items() if v is not None}


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    """Without a tracer and its processors: 10 us instead of 35."""
    parent = _context(span.trace_id, span.parent_id, is_remote=True) if span.parent_id else None
    return ReadableSpan(
        span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        links=[_link(link) for link in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, SAMPLED)


def _link(link: Link) -> OtelLink:
    attributes: dict[str, str | int] = {"batchscope.link": link.why}
    if link.tokens is not None and link.tokens != NULL64:
        attributes["batchscope.tokens"] = link.tokens
    return OtelLink(_context(link.trace_id, link.span_id), attributes)
