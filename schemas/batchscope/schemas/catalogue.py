"""Every exported metric as data. prom.py, otel.py, the docs and the Grafana boards are made from this.

Names and labels: base units, `sum()` over a label means something, no request ids.
The fold counts under `Metric.name`; integers inside (ns, tokens), scaled once at exposition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "batchscope_"
ENGINE_LABELS = ("engine", "model_name", "dp_rank", "role")

Kind = Literal["counter", "gauge", "histogram", "info"]
Scope = Literal["engine", "exporter", "gpu"]


def _steps(first: float, factor: float, last: float) -> tuple[float, ...]:
    """Geometric bucket bounds from first to at least last, rounded to 3 significant digits."""
    bounds = [first]
    while bounds[-1] < last:
        bounds.append(float(f"{first * factor ** len(bounds):.3g}"))
    return tuple(bounds)


FINE_SECONDS = _steps(0.001, 1.25, 9.0)
"""42 bounds in 1.25x steps, 1 ms to 9.4 s: time between tokens and interval."""
COARSE_SECONDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
)
"""16 bounds: times of whole requests."""
HOST_SECONDS = _steps(0.00001, 2.0, 0.3)
"""16 bounds, 10 us to 0.33 s: schedule and observer."""
_UCUM = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "watts": "W",
    "hertz": "Hz",
    "celsius": "Cel",
}
"""Unit at the end of a name -> unit over OTLP."""
TOKENS = tuple(float(2**i) for i in range(16))
REQUESTS = tuple(float(2**i) for i in range(12))


@dataclass(frozen=True)
class Metric:
    """One family. `scale` turns the counted integer into the exported unit (1e-9: ns to seconds)."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    scale: float = 1.0
    scope: Scope = "engine"
    otel: str = ""

    @property
    def full_name(self) -> str:
        """As scraped, without a counter's `_total`."""
        return PREFIX + self.name

    @property
    def otel_name(self) -> str:
        """As pushed over OTLP: no unit, no `_total`; translated to Prometheus it is `full_name`.

        Two histograms bear the names of the GenAI conventions instead.
        """
        return self.otel or PREFIX.replace("_", ".") + _stem_and_unit(self.name)[0]

    @property
    def otel_unit(self) -> str:
        """In UCUM, "" where the name says it ({token}, {request})."""
        return _UCUM.get(_stem_and_unit(self.name)[1], "")

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels in exposition order."""
        return (ENGINE_LABELS if self.scope == "engine" else ()) + self.labels


def _stem_and_unit(name: str) -> tuple[str, str]:
    stem, _, last = name.rpartition("_")
    return (stem, last) if last in _UCUM else (name, "")


def _counter(
    name: str, help_: str, *labels: str, scale: float = 1.0, scope: Scope = "engine"
) -> Metric:
    return Metric(name, "counter", help_, labels=labels, scale=scale, scope=scope)


def _gauge(
    name: str,
    help_: str,
    *labels: str,
    scale: float = 1.0,
    scope: Scope = "engine",
    otel: str = "",
) -> Metric:
    return Metric(name, "gauge", help_, labels=labels, scale=scale, scope=scope, otel=otel)


def _seconds(
    name: str, help_: str, *labels: str, buckets: tuple[float, ...], otel: str = ""
) -> Metric:
    return Metric(name, "histogram", help_, "seconds", labels, buckets, 1e-9, otel=otel)


# fmt: off
METRICS: tuple[Metric, ...] = (
    # what was in each batch
    _counter("iterations", "Completed iterations by phase (prefill, decode, mixed, empty).", "phase"),
    _counter("scheduled_tokens", "Tokens scheduled, by member phase; recompute after preemption is prefill.", "phase"),
    _counter("recomputed_tokens", "Part of prefill tokens that re-admissions after preemption caused."),
    _counter("cached_tokens", "Prompt tokens found in the prefix cache at first admission."),
    _counter("draft_tokens", "Draft tokens scheduled (speculative decoding), part of decode tokens."),
    _counter("output_tokens", "Tokens emitted."),
    _counter("member_steps", "Requests times iterations: the slots that were used."),
    Metric("batch_tokens", "histogram", "Tokens of one iteration, prefill and decode together.", buckets=TOKENS),
    Metric("batch_requests", "histogram", "Members of one iteration.", buckets=REQUESTS),
    # how long, and why
    _seconds("iteration_interval_seconds", "Host and execution between successive completions, idle taken out.", "phase", buckets=FINE_SECONDS, otel="batchscope.iteration.interval"),
    _seconds("schedule_duration_seconds", "Time in the scheduler's own call.", buckets=HOST_SECONDS, otel="batchscope.schedule.duration"),
    _counter("host_seconds", "Time before dispatch in which nothing ran.", scale=1e-9),
    _counter("exec_seconds", "Time that batches ran.", scale=1e-9),
    _counter("idle_seconds", "Time without any live request.", scale=1e-9),
    _counter("empty_schedules", "Decisions that scheduled no token."),
    # who was left out, how often, why
    _counter("deferrals", "Requests left out of a decision: request x decision, scales with the iteration rate.", "reason"),
    _counter("deferred_seconds", "Request-seconds under decisions that left the request out; they run on while an engine is wedged.", "reason", scale=1e-9),
    _counter("deferred_requests", "Requests left out at least once for that reason before an admission.", "reason"),
    _gauge("running_requests", "Requests running after the last decision."),
    _gauge("waiting_requests", "Requests waiting after the last decision."),
    _counter("preemptions", "Running requests that lost their place."),
    _counter("preemption_lost_tokens", "Computed KV tokens given up by preemptions."),
    # where the KV pages are
    _gauge("kv_blocks", "KV blocks by state (used, evictable, free); the states sum to the total.", "state", otel="batchscope.kv.blocks"),
    _gauge("kv_waste_tokens", "Token slots of the last, partly filled block of each request; a reservation ahead is not in it."),
    # requests
    _counter("requests_arrived", "Requests that entered the scheduler."),
    _counter("requests_finished", "Requests that left, by reason; every arrival gets exactly one.", "reason"),
    _gauge("live_requests", "Requests that arrived and did not finish."),
    _seconds("queue_duration_seconds", "Arrival to first scheduled.", buckets=COARSE_SECONDS, otel="batchscope.queue.duration"),
    _seconds("time_to_first_token_seconds", "Arrival in the scheduler to first output token.", buckets=COARSE_SECONDS, otel="gen_ai.server.time_to_first_token"),
    _seconds("time_between_tokens_seconds", "Gaps between successive tokens of one request, token-weighted.", buckets=FINE_SECONDS, otel="batchscope.time_between_tokens"),
    _seconds("request_duration_seconds", "Arrival in the scheduler to last output token.", buckets=COARSE_SECONDS, otel="gen_ai.server.request.duration"),
    # was the work useful
    _counter("slo_requests", "Requests by joint verdict (met, missed, undetermined, failed, aborted, shed).", "slo", "verdict"),
    _counter("slo_missed", "Requests that missed a term of the SLO.", "slo", "term"),
    _counter("on_time_tokens", "Tokens emitted within the SLO's deadlines.", "slo"),
    # is it alive, is it true
    _gauge("last_completion_timestamp_seconds", "Wall clock of the last completed iteration: requests waiting and this standing still is a wedged engine.", scale=1e-9),
    _gauge("engine_start_time_seconds", "Wall clock at which the adapter attached.", scale=1e-9),
    _gauge("engine_up", "1 while the engine holds its ring, 0 after it left or died."),
    Metric("engine_info", "info", "Engine version and configuration.", labels=("version", "config_hash")),
    _gauge("engine_config", "Numeric settings of the engine.", "setting"),
    _seconds("observer_duration_seconds", "Our own time on the engine's thread, per iteration.", buckets=HOST_SECONDS, otel="batchscope.observer.duration"),
    _counter("lost_records", "Ring records overwritten or invalid before they could be read."),
    _counter("lost_iterations", "Iterations among them."),
    _counter("rejected_records", "Places in a ring whose bytes did not validate."),
    _counter("unresolved_members", "Members whose request is unknown since its announcement was lost."),
    _counter("clamped_durations", "Durations that came out negative and were clamped to 0."),
    _counter("notices", "What adapters said about themselves, by kind.", "kind"),
    _counter("audit_checks", "Laws put to the test against independent facts.", "law"),
    _counter("audit_violations", "Laws that failed.", "law"),
    # the exporter itself
    Metric("build_info", "info", "Version of batchscope.", labels=("version", "schema_version"), scope="exporter"),
    _gauge("rings", "Ring files by state (live, closed, dead, refused).", "state", scope="exporter"),
    _gauge("store_queue_bytes", "Folded rows waiting for the store.", scope="exporter"),
    _gauge("store_up", "1 while the store takes rows, 0 while it can't (disk full, say).", scope="exporter"),
    _gauge("store_bytes", "Used blocks of the store times block size.", scope="exporter"),
    _counter("store_commits", "Transactions committed.", scope="exporter"),
    _counter("store_commit_seconds", "Time in commits.", scale=1e-9, scope="exporter"),
    _counter("stored_rows", "Rows committed, by table.", "table", scope="exporter"),
    _gauge("pipeline_lag_seconds", "Age of the newest completed iteration when it was folded.", scale=1e-9, scope="exporter"),
    _counter("spans", "Spans by what became of them (exported, dropped).", "result", scope="exporter"),
    _counter("collector_errors", "Faults of a part that was isolated.", "part", scope="exporter"),
    _gauge("collector_duration_seconds", "Time that a part of the last scrape took.", "part", scope="exporter"),
    # devices
    _gauge("gpu_sm_ratio", "Share of time that any kernel ran.", "device", scope="gpu"),
    _gauge("gpu_memory_busy_ratio", "Share of time that device memory was read or written.", "device", scope="gpu"),
    _gauge("gpu_memory_used_bytes", "Device memory in use.", "device", scope="gpu"),
    _gauge("gpu_memory_total_bytes", "Device memory.", "device", scope="gpu"),
    _gauge("gpu_power_watts", "Power draw.", "device", scale=1e-3, scope="gpu"),
    _gauge("gpu_sm_clock_hertz", "SM clock.", "device", scale=1e6, scope="gpu"),
    _gauge("gpu_temperature_celsius", "Temperature.", "device", scope="gpu"),
)
# fmt: on
BY_NAME = {metric.name: metric for metric in METRICS}
