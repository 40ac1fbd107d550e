"""/metrics: families of the catalogue, read from the folded state at scrape, as text.

api.py mounts it. Nothing here raises (a negative increment once took a serving process down): a
figure that can't be is clamped or left out, and counted in collector_errors. The text is made
here, from remembered line heads: for 8 engines prometheus_client took 47 to 73 ms, this 7.
"""

from __future__ import annotations

import gzip
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.exposition import choose_encoder

from batchscope.exporter.exemplars import Exemplar, Exemplars
from batchscope.exporter.figures import Histogram, Series, Values, View, plain
from batchscope.schemas.catalogue import BY_NAME, ENGINE_LABELS, METRICS, Metric
from batchscope.schemas.records import NULL64, SCHEMA_VERSION

GZIP_LEVEL = 4
MAX_HEADS, MAX_BUCKET_HEADS = 8_192, 1_024
"""Remembered series: heads are 150 B each, those of a histogram 7 kB together."""
Pairs = Iterator[tuple[str, str]]
Lines = Iterator[tuple[str, str]]
"""(name of the family in the catalogue, line of a sample)"""


class Exposition:
    """Renders /metrics in the classic text or OpenMetrics, as the scraper asks; thread-safe.

    Three parts (engines, gpu, exporter) are isolated from each other, and so is every engine.
    """

    def __init__(
        self,
        views: Callable[[], Iterable[View]],
        exporter_values: Callable[[], Values],
        gpu: Callable[[], Values] | None = None,
        exemplars: Exemplars | None = None,
    ) -> None:
        self._views = views
        self._exporter_values = exporter_values
        self._gpu = gpu
        self._exemplars = exemplars or Exemplars()
        self._version = version("batchscope")
        self._errors: Counter[str] = Counter()
        self._took_s: dict[str, float] = {}

    def render(self, accept: str, accept_encoding: str) -> tuple[bytes, str, str | None]:
        """(body, content type, content encoding or None) for a scraper's two Accept headers."""
        _, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith("application/openmetrics")
        exemplars = self._exemplars if openmetrics else Exemplars()
        body = _document(self._lines(exemplars), openmetrics=openmetrics).encode()
        if "gzip" not in accept_encoding:
            return body, content_type, None
        return gzip.compress(body, GZIP_LEVEL, mtime=0), content_type, "gzip"

    def _lines(self, exemplars: Exemplars) -> Lines:
        """The parts one after the other; last what this class knows of itself and their faults."""
        yield from self._guarded("engines", lambda: self._engines(exemplars))
        yield from self._guarded("gpu", lambda: self._plain(self._gpu() if self._gpu else {}, ()))
        yield from self._guarded("exporter", lambda: self._plain(self._exporter_values(), ()))
        yield from self._plain(self._own(), ())

    def _guarded(self, part: str, lines_of: Callable[[], Lines]) -> list[tuple[str, str]]:
        """A part's lines; after a fault those before it, and the fault is counted."""
        lines: list[tuple[str, str]] = []
        began = time.perf_counter()
        try:
            lines.extend(lines_of())
        except Exception:  # noqa: BLE001 - one part must not take the others down
            self._errors[f"metrics_{part}"] += 1
        self._took_s[part] = time.perf_counter() - began
        return lines

    def _engines(self, exemplars: Exemplars) -> Lines:
        for view in self._views():
            yield from self._isolated(view, exemplars)

    def _isolated(self, view: View, exemplars: Exemplars) -> list[tuple[str, str]]:
        """All lines of an engine or none: one engine must not hide the others."""
        try:
            return list(self._engine(view, exemplars))
        except Exception:  # noqa: BLE001
            self._errors["metrics_engine"] += 1
            return []

    def _engine(self, view: View, exemplars: Exemplars) -> Lines:
        engine = tuple(view.labels.get(name) or "" for name in ENGINE_LABELS)
        yield from self._plain(plain(view), engine)
        newest = exemplars.of(engine)
        for series, histogram in view.totals.histograms.items():
            lines = self._histogram(series, histogram, engine, newest.get(series, {}))
            yield from ((series[0], line) for line in lines)

    def _own(self) -> dict[Series, float]:
        values: dict[Series, float] = {("build_info", (self._version, str(SCHEMA_VERSION))): 1}
        for part, took_s in list(self._took_s.items()):
            values["collector_duration_seconds", (part,)] = took_s
        for part, faults in list(self._errors.items()):
            values["collector_errors", (part,)] = faults
        return values

    def _plain(self, values: Values, engine: tuple[str, ...]) -> Lines:
        """Counters, gauges and infos; what the catalogue does not know is counted."""
        for (name, labels), value in values.items():
            metric = BY_NAME.get(name)
            if metric is None or len(labels) != len(metric.labels):
                self._errors["metrics_unknown"] += 1
            elif value != NULL64 and math.isfinite(value):
                clamped = self._clamp(value) if metric.kind == "counter" else value
                yield name, _head(name, engine, labels) + _number(clamped * metric.scale)

    def _clamp(self, value: float) -> float:
        """A counter never runs below zero."""
        if value < 0:
            self._errors["metrics_clamped"] += 1
            return 0
        return value

    def _histogram(
        self,
        series: Series,
        histogram: Histogram,
        engine: tuple[str, ...],
        exemplars: Mapping[int, Exemplar],
    ) -> Iterator[str]:
        """Buckets, count and sum; raises when the counts don't fit the metric's bounds."""
        name, labels = series
        counts = [self._clamp(count) for count in histogram.counts.tolist()]
        heads = _bucket_heads(name, engine, labels)
        for i, (head, total) in enumerate(zip(heads[:-2], accumulate(counts), strict=True)):
            yield f"{head}{total}{_exemplar(exemplars[i])}" if i in exemplars else f"{head}{total}"
        yield f"{heads[-2]}{sum(counts)}"
        yield heads[-1] + _number(self._clamp(int(histogram.sum)) * BY_NAME[name].scale)


def _document(lines: Lines, *, openmetrics: bool) -> str:
    """Families that have a sample, in the order of the catalogue, each under its head."""
    families: dict[str, list[str]] = {metric.name: [] for metric in METRICS}
    for name, line in lines:
        families[name].append(line)
    texts = [
        "\n".join((*_family_head(BY_NAME[name], openmetrics=openmetrics), *found, ""))
        for name, found in families.items()
        if found
    ]
    return "".join(texts) + ("# EOF\n" if openmetrics else "")


def _family_head(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    """HELP, TYPE and UNIT: the classic text names a counter with its _total."""
    suffix = "_total" if metric.kind == "counter" and not openmetrics else ""
    name, kind = metric.full_name + suffix, "gauge" if metric.kind == "info" else metric.kind
    yield f"# HELP {name} {_escaped(metric.help)}"
    yield f"# TYPE {name} {kind}"
    if metric.unit and openmetrics:
        yield f"# UNIT {name} {metric.unit}"


@lru_cache(maxsize=MAX_HEADS)
def _head(name: str, engine: tuple[str, ...], labels: tuple[str, ...]) -> str:
    """The line of a counter, gauge or info up to its value."""
    metric = BY_NAME[name]
    suffix = "_total" if metric.kind == "counter" else ""
    return _line_head(metric.full_name + suffix, (*_pairs(metric, engine, labels),))


@lru_cache(maxsize=MAX_BUCKET_HEADS)
def _bucket_heads(name: str, engine: tuple[str, ...], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a histogram up to their values: one per bucket, then count and sum."""
    metric = BY_NAME[name]
    pairs = (*_pairs(metric, engine, labels),)
    bounds = (*(str(bound) for bound in metric.buckets), "+Inf")
    buckets = (_line_head(f"{metric.full_name}_bucket", (*pairs, ("le", b))) for b in bounds)
    rest = (_line_head(f"{metric.full_name}_{part}", pairs) for part in ("count", "sum"))
    return (*buckets, *rest)


def _pairs(metric: Metric, engine: tuple[str, ...], labels: tuple[str, ...]) -> Pairs:
    """Label names and values; an empty value is an absent label, as Prometheus has it."""
    names = metric.label_names if engine else metric.labels
    yield from ((n, v) for n, v in zip(names, (*engine, *labels), strict=True) if v)


def _line_head(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
    return f"{name}{{{labels}}} " if labels else f"{name} "


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _exemplar(exemplar: Exemplar) -> str:
    trace = f'{{trace_id="{exemplar.trace_id}"}}'
    return f" # {trace} {_number(exemplar.value_s)} {exemplar.unix_s:.3f}"


def _number(value: float) -> str:
    """Shortest text that reads back as the same number."""
    return repr(int(value)) if value == int(value) else repr(float(value))
