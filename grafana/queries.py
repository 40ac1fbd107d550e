"""PromQL for the board: scoped to the chosen engines, counters always as rates."""

from __future__ import annotations

ENGINE = 'engine=~"$engine",model_name=~"$model_name"'


def of(name: str, **labels: str) -> str:
    """A gauge of the chosen engines."""
    wanted = "".join(f',{label}=~"{value}"' for label, value in labels.items())
    return f"batchscope_{name}{{{ENGINE}{wanted}}}"


def rate(name: str, **labels: str) -> str:
    """Per-second increase of a counter of the chosen engines."""
    return f"rate({of(name, **labels)}[$__rate_interval])"


def own(name: str) -> str:
    """Per-second increase of a counter of the exporter itself."""
    return f"rate(batchscope_{name}[$__rate_interval])"


def quantile(q: float, name: str, by: str = "") -> str:
    """Over all chosen engines together: buckets are added, quantiles never."""
    labels = "le" + (f", {by}" if by else "")
    return f"histogram_quantile({q}, sum by ({labels}) ({rate(f'{name}_bucket')}))"


def quantiles(name: str, *qs: float) -> tuple[tuple[str, str], ...]:
    """One line per quantile."""
    return tuple((quantile(q, name), f"p{100 * q:g}") for q in qs)


def buckets(name: str) -> tuple[tuple[str, str], ...]:
    """For a heatmap."""
    return ((f"sum by (le) (increase({of(f'{name}_bucket')}[$__rate_interval]))", "{{le}}"),)


def per_iteration(expression: str) -> str:
    """Divides a per-second figure with a label by iterations per second."""
    return f"{expression} / on () group_left () sum({rate('iterations_total')})"


def by(label: str, expression: str) -> tuple[str, str]:
    """Added over engines, one line per value of a label."""
    return f"sum by ({label}) ({expression})", f"{{{{{label}}}}}"


def total(expression: str, legend: str) -> tuple[str, str]:
    """Added over everything."""
    return f"sum({expression})", legend
