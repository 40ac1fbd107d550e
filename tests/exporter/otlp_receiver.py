"""Real OTLP receivers, over HTTP and over gRPC, that keep what they were sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """Where to send to, and (resource, span) and (resource, metric) as they came."""

    url: str = ""
    spans: list[tuple[Resource, Span]] = field(default_factory=list)
    metrics: list[tuple[Resource, Metric]] = field(default_factory=list)

    def take(self, request: Any) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [(resource.resource, span) for span in scope.spans]

    def take_metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics += [(resource.resource, metric) for metric in scope.metrics]

    def take_body(self, path: str, body: bytes) -> bool:
        """False for a path that OTLP does not know."""
        if path == "/v1/traces":
            self.take(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self.take_metrics(ExportMetricsServiceRequest.FromString(body))
        return path in ("/v1/traces", "/v1/metrics")


@contextmanager
def over_http() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            body = gzip.decompress(body) if packed else body
            self.send_response(200 if received.take_body(self.path, body) else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def over_grpc() -> Iterator[Received]:
    received = Received()

    class Service(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the method's name on the wire
            received.take(request)
            return ExportTraceServiceResponse()

    class Metrics(MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            received.take_metrics(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    register: Any = add_TraceServiceServicer_to_server
    register(Service(), server)
    register = add_MetricsServiceServicer_to_server
    register(Metrics(), server)
    received.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()
