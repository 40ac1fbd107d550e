"""The running exporter: store, pipeline, outputs and HTTP server, put together and taken down."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from batchscope.exporter import gpu, memory
from batchscope.exporter.api import Service, build
from batchscope.exporter.cli import leftovers, workspace
from batchscope.exporter.config import Config
from batchscope.exporter.errors import ConfigError
from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.prom import Exposition
from batchscope.exporter.retention import Bounds
from batchscope.exporter.store import Store
from batchscope.exporter.views import Key
from batchscope.schemas.ring import RingError

if TYPE_CHECKING:
    from batchscope.exporter.otel import SpanSink

SWITCH_S = 0.0005
"""A commit takes the GIL some sixty times, and may wait for a busy thread each time: not 5 ms."""
DAY_NS = 86_400_000_000_000
log = logging.getLogger(__name__)


def serve(config: Config, listener: socket.socket) -> None:
    """Run until a signal says to stop. Raises ConfigError, StoreError, and leaves nothing then."""
    sys.setswitchinterval(SWITCH_S)
    memory.keep_freed()
    workspace.sweep()
    with ExitStack() as ends:
        with leftovers.none_of(rings=config["dir"], store=config["store"]):
            service = ends.enter_context(_service(config))
        _serve(service, listener, config)


@contextmanager
def _service(config: Config) -> Iterator[Service]:
    limit = f"{config['memory'] >> 10}KiB"
    store = Store.open(config["store"], memory_limit=limit, read_only=config["read_only"])
    try:
        if config["read_only"]:
            yield Service(store)
        else:
            with _running(config, store) as service:
                yield service
    finally:
        store.close()


@contextmanager
def _running(config: Config, store: Store) -> Iterator[Service]:
    if config["dir"] is None:
        raise ConfigError("there is no /dev/shm for rings here: name a folder with --dir")
    with ExitStack() as ends:
        sampler = gpu.start(config["gpu_hz"]) if config["gpu_hz"] else None
        if sampler:
            ends.callback(sampler.close)
        spans = _spans(config)
        pipeline = _pipeline(config, store, spans, sampler)
        ends.callback(pipeline.stop)
        values = _pushed(config, pipeline, sampler, ends)
        gpu_values = sampler.values if sampler else None
        exemplars = spans.exemplars if spans else None
        yield Service(store, pipeline, Exposition(pipeline.engines, values, gpu_values, exemplars))


def _pipeline(
    config: Config, store: Store, spans: SpanSink | None, sampler: gpu.Sampler | None
) -> Pipeline:
    sinks = {"otlp": spans} if spans else {}
    samples = sampler.take if sampler else None
    made = Pipeline(config["dir"], store, options=_options(config), sinks=sinks, samples=samples)
    try:
        made.start()
    except RingError as error:
        raise ConfigError(str(error)) from None
    return made


def _spans(config: Config) -> SpanSink | None:
    if config["otlp"] is None:
        return None
    from batchscope.exporter.otel import SpanSink, exporter_for  # 40 MB that most don't need

    sender = exporter_for(config["otlp"], protocol=config["otlp_protocol"])
    return SpanSink(sender, ratio=config["otlp_ratio"], url=config["otlp"])


def _pushed(
    config: Config, pipeline: Pipeline, sampler: gpu.Sampler | None, ends: ExitStack
) -> Callable[[], dict[Key, int]]:
    """The exporter's own values, those of the OTLP metrics push included when there is one."""
    if not (config["otlp"] and config["otlp_metrics"]):
        return pipeline.exporter_values
    from batchscope.exporter.otel import MetricsPush, metrics_exporter_for

    sender = metrics_exporter_for(config["otlp"], protocol=config["otlp_protocol"])
    gpu_values = sampler.values if sampler else None
    views, own = pipeline.engines, pipeline.exporter_values
    push = MetricsPush(sender, views, own, gpu=gpu_values, url=config["otlp"])
    ends.callback(push.close)
    return lambda: own() | push.values()


def _options(config: Config) -> Options:
    bounds = Bounds(config["keep_size"], round(config["keep_days"] * DAY_NS))
    group = os.environ.get("BATCHSCOPE_GROUP")  # the engines' own variable: no setting of ours
    return Options(slo=config["slo"], queue_bytes=config["queue"], bounds=bounds, group=group)


def _serve(service: Service, listener: socket.socket, config: Config) -> None:
    settings: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "timeout_graceful_shutdown": 3,
        "timeout_keep_alive": 30,
        "h11_max_incomplete_event_size": 64 << 10,
        "limit_concurrency": 256,
    }
    server = _Server(uvicorn.Config(build(service, token=config.token), **settings))
    server.closing = service.closing
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%s, store %s", host, port, config["store"])
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends streams at the first signal, and leaves the process alive to store what it has.

    uvicorn would wait for the streams, then raise the signal again, before anything is taken down.
    """

    closing: threading.Event

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle them for good."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: Any) -> None:
        """First signal: drain; second: at once."""
        self.closing.set()
        super().handle_exit(sig, frame)
