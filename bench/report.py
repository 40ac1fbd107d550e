"""docs/overhead.md from bench/results.json: what was measured, how, against which bar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
OVERHEAD = Path(__file__).parent.parent / "docs" / "overhead.md"

HEAD = """# Overhead and limits, measured

Made by `make bench` from `bench/results.json`: do not edit. Figures of a shared machine: trust the
ratios, which are taken side by side in one run, more than the absolutes.
"""

Row = tuple[str, str, str, str]


def render(results: dict[str, Any]) -> str:
    """The page; a bench that was not run has no rows."""
    parts = [HEAD]
    for name, (title, note, rows) in SECTIONS.items():
        if name in results:
            found = results[name]
            parts.append(f"\n## {title}\n\n{note}\n\n{_conditions(found['conditions'])}\n\n")
            parts.append(_table(rows(found["figures"])))
    return "".join([*parts, GPU])


def _conditions(c: dict[str, Any]) -> str:
    return (
        f"*{c['date']}, {c['cpu']}, {c['cores']} cores, load {c['load_before']} before,"
        f" CPython {c['python']}.*"
    )


def _table(rows: Iterator[Row]) -> str:
    head = "| figure | measured | bar | met |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _met(value: float, bar: float) -> str:
    return "yes" if value <= bar else "**no**"


def _observer(figures: dict[str, Any]) -> Iterator[Row]:
    for name, case in figures["cases"].items():
        spread = " / ".join(f"{case[q]:.1f}" for q in ("p10", "p50", "p99", "max"))
        bars = figures["bars"].get(name, {})
        said = ", ".join(f"{q} <= {bar:g}" for q, bar in bars.items())
        met = "yes" if all(case[q] <= bar for q, bar in bars.items()) else "**no**"
        yield (f"{name}: p10 / p50 / p99 / max us", spread, said, met if bars else "")


def _vllm_hooks(figures: dict[str, Any]) -> Iterator[Row]:
    for name, case in figures["cases"].items():
        for what in ("hooks", "schedule + update, bare", "schedule + update, hooked"):
            spread = " / ".join(f"{case[what][q]:,.0f}" for q in ("p10", "p50", "p99", "max"))
            yield (f"{name}: {what}, p10 / p50 / p99 / max us", spread, "", "")
        for what, bar in figures["bars"].items():
            yield (
                f"{name}: hooks, {what}",
                f"{case[what]:.1%}",
                f"<= {bar:.0%}",
                _met(case[what], bar),
            )


def _impact(figures: dict[str, Any]) -> Iterator[Row]:
    for name, label in (("on_off", "on against off"), ("a_a", "off against off")):
        for what in ("interval", "cpu"):
            f = figures[name][what]
            held = f["contains_0"] and f["half_width"] <= 0.01
            yield (
                f"{label}, {what} of a {figures[name]['interval_ms']:.1f} ms iteration",
                f"{f['difference']:+.2%} +- {f['half_width']:.2%}",
                "0 inside, +- <= 1 %",
                "yes" if held else "**no**",
            )


def _ingest(figures: dict[str, Any]) -> Iterator[Row]:
    for name, case in figures.items():
        if name.startswith("P3"):
            yield from _sustained(name, case)
        elif name.startswith("P4"):
            yield from _fresh(case)


def _sustained(name: str, case: dict[str, Any]) -> Iterator[Row]:
    if "fleet" in name:
        yield (f"{name}: of one core", f"{case['cores']:.1%}", "<= 25 %", _met(case["cores"], 0.25))
    else:
        rate, steps = case["iterations_per_s"], case["member_steps_per_s"]
        bar = (
            ("10 k it/s", rate >= 10_000) if "steady" in name else ("1.5 M steps/s", steps >= 1.5e6)
        )
        said = f"{rate:,} iterations, {steps:,} member steps a CPU second"
        yield (name, said, f">= {bar[0]}", "yes" if bar[1] else "**no**")
    yield (f"{name}: records lost", f"{case['lost_records']:,}", "0", _met(case["lost_records"], 0))
    yield (
        f"{name}: peak RSS",
        f"{case['peak_rss_mib']} MiB",
        "<= 500",
        _met(case["peak_rss_mib"], 500),
    )
    disk = case.get("disk")
    if disk:
        yield (
            f"P7 runs on disk, {disk['steps_per_run']:,.0f} steps a run",
            f"{disk['bytes_per_member_step']} B a member step",
            "<= 0.3",
            _met(disk["bytes_per_member_step"], 0.3),
        )
        size = disk["bytes_per_iteration"]
        yield ("P7 iterations on disk", f"{size} B each", "<= 60", _met(size, 60))


def _fresh(case: dict[str, Any]) -> Iterator[Row]:
    for where in ("metrics", "api"):
        p99 = case[where]["p99"]
        yield (
            f"P4 completion to {where}, p99, beside a heavy query",
            f"{p99} s",
            "<= 1 s",
            _met(p99, 1),
        )
    scrape = case["scrape"]
    yield (
        "P6 scrape of 8 engines, p95",
        f"{scrape['p95_ms']} ms",
        "<= 50",
        _met(scrape["p95_ms"], 50),
    )
    yield ("P6 size before gzip", f"{scrape['kB']} kB", "<= 300", _met(scrape["kB"], 300))


def _whatif(figures: dict[str, Any]) -> Iterator[Row]:
    speed = figures["times_real_time"]
    yield (
        f"P8 {figures['trace']}, adapter on",
        f"{speed:.0f}x real time",
        f">= {figures['bar']:.0f}x",
        "yes" if figures["passed"] else "**no**",
    )


OBSERVER = """\
Time added to one iteration (SCHEDULED and COMPLETED) by the adapter: hooked minus bare, in a tight
loop over an engine that does nothing else. In a real engine, whose own work evicts our code and
data from the caches, the same hooks take several times as long; each iteration's own figure is
recorded as `observer_ns` and shown on the Now page."""
VLLM_HOOKS = """Two schedulers without a model, 256 running members each, one hooked and one bare,
stepped in turn under the same load, so that both find cold caches. "queued": 64 more wait for a
slot. "changed": one request ends and one arrives in every iteration. What the hooks count of
themselves (`observer_ns`) is set against schedule() and update_from_output() of the bare one, and
against vLLM's own statistics (IterationStats and PrometheusStatLogger), at p50."""
IMPACT = """\
Bundled engine, 64 requests in steady decode; the detail level is flipped by the control word every
200 iterations of one run (ABBA), paired by quads; 95 % interval."""
VLLM_IMPACT = """\
A real vLLM with a random model on the CPU, engine core and output processing in one process, 64
requests in steady decode; otherwise as above."""
INGEST = """\
A real `batchscope serve` fed by synthetic engines of 256 members in processes of their own; rates
are per CPU second of the exporter. "Churn in 2 %" means that membership changes in 2 % of the
iterations."""
GPU = """
## The CUDA path of the bundled engine

Not run on a GPU yet, so no figure. `bench/gpu.sh OUTDIR` is prepared: on a machine with a GPU and a
Python that has torch it takes at most 8 minutes and installs nothing. It checks logits against a
dense recomputation, times steady decode of a 1 B model at batch 1, 8, 64 and 256 beside the floor
that the measured bandwidth sets, and compares on with off. What is tested on a CPU: page lists,
padding, the compiled FlexAttention over pages, and the script itself on a small shape.
"""
SECTIONS = {
    "observer": ("P1. The hook, on the engine's thread", OBSERVER, _observer),
    "vllm_hooks": ("P1. The hooks on a real vLLM's scheduler", VLLM_HOOKS, _vllm_hooks),
    "impact": ("P2. The engine, with and without us", IMPACT, _impact),
    "vllm_impact": ("P2. A real vLLM, with and without us", VLLM_IMPACT, _impact),
    "ingest": ("P3, P4, P6, P7. The exporter", INGEST, _ingest),
    "whatif": ("P8. Virtual time", "The cost-model engine on a virtual clock.", _whatif),
}
