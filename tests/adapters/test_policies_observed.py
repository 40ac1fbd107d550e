"""Every policy of the bundled engine under the adapter: the same tokens, the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.drivers import MiniDriver
from tests.adapters.test_fold_agrees import counted, folded

CONFIG: dict[str, Any] = {"num_blocks": 60, "max_num_seqs": 8, "max_model_len": 320}
REASON = {
    "static": "policy",
    "orca": "kv_blocks",
    "paged": "kv_blocks",
    "chunked": "token_budget",
}


@pytest.mark.parametrize("policy", sorted(REASON))
def test_the_fold_counts_what_the_engine_counted(tmp_path: Path, policy: str) -> None:
    driver = MiniDriver(**CONFIG, policy=policy)
    fold, totals = folded(driver, tmp_path, requests=200, reads=lambda step: step % 50 == 0)
    counters = fold.totals.counters
    assert counted(fold, "audit_violations") == 0 < counted(fold, "audit_checks")
    for name in ("iterations", "member_steps", "preemptions"):
        assert counted(fold, name) == totals[name], name
    for phase in ("prefill", "decode"):
        assert counters["scheduled_tokens", (phase,)] == totals["tokens"][phase]
    assert counted(fold, "output_tokens") == totals["tokens"]["output"]
    assert counted(fold, "deferrals") == sum(totals["deferrals"].values()) > 0
    assert counters["deferrals", (REASON[policy],)] > 0


@pytest.mark.parametrize("policy", sorted(REASON))
def test_watching_changes_no_token(tmp_path: Path, policy: str) -> None:
    driver = MiniDriver(**CONFIG, policy=policy)
    bare = driver.run(driver.engine())
    _, totals = folded(driver, tmp_path, requests=40, reads=lambda step: False)
    assert totals == bare[1]


@pytest.mark.parametrize("knob", ["admit_delay", "admit_min_free"])
def test_patience_with_free_slots_is_a_throttle(tmp_path: Path, knob: str) -> None:
    driver = MiniDriver(**CONFIG | {"max_num_batched_tokens": 512}, **{knob: 4})
    fold, totals = folded(driver, tmp_path, requests=60, reads=lambda step: False)
    assert fold.totals.counters["deferrals", ("prefill_throttle",)] == totals["deferrals"][knob]
