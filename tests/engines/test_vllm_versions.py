"""The same load on every version: what was found, kept in docs/vllm_versions.json for its table.

`BATCHSCOPE_VERSIONS=write make test-engines-all` writes the file anew.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tests.engines.test_vllm_scheduler import EXPECTED, REASON, decisions, deferred
from tests.engines.versions import ROOT, Run, Scenarios, run_of

pytestmark = pytest.mark.engines

KEPT = ROOT / "docs/vllm_versions.json"
SUMS = ("requests_arrived", "iterations", "output_tokens", "cached_tokens", "preemptions")


def found(scenarios: Scenarios) -> dict[str, Any]:
    """Sums of the ring over the load, the ways to be left out that showed, those that can't be."""
    run = run_of(scenarios, "workload")
    counters = run.fold().totals.counters
    sums = {name: sum(v for (m, _), v in counters.items() if m == name) for name in SUMS}
    phases = {f"{p}_tokens": counters["scheduled_tokens", (p,)] for p in ("prefill", "decode")}
    runs = {name: of for name in EXPECTED if isinstance(of := scenarios[name], Run)}
    absent = sorted(name for name, of in scenarios.items() if isinstance(of, str))
    reached = sorted(name for name, of in runs.items() if shows(name, of))
    return {**sums, **phases, "recount": recount(run), "reached": reached, "absent": absent}


def shows(name: str, run: Run) -> bool:
    return EXPECTED[name] in [(REASON[d["admission_stop"]], deferred(d)) for d in decisions(run)]


def recount(run: Run) -> dict[str, int]:
    """The same by vLLM's own outputs."""
    names = ("arrived", "iterations", "output", "cached", "preempted", "prefill", "decode")
    return {name: run.counted[name] for name in names}


def test_what_is_kept_of_this_version_is_what_is_found(scenarios: Scenarios) -> None:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    version, now = run_of(scenarios, "workload").version, found(scenarios)
    if os.environ.get("BATCHSCOPE_VERSIONS") == "write":
        KEPT.write_text(json.dumps({**kept, version: now}, indent=1, sort_keys=True) + "\n")
    else:
        assert now == kept[version]
    ours = [now[name] for name in (*SUMS, "prefill_tokens", "decode_tokens")]
    assert ours == list(now["recount"].values())
