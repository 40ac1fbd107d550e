"""Laws that can fail: what the fold derived, put to the test against facts it did not use.

A law that a loss makes undecidable is not judged. fold/ judges, the audit table and /metrics show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

E2E_TOLERANCE_NS = 5_000_000
"""Our E2E may exceed the engine's own by this: its clock starts no later than ours."""

LAWS = {
    "tokens_emitted": "Tokens counted per request are what the engine says at its end.",
    "scheduled_completed": "Every batch completes, fails with a member, or is among the latest 64.",
    "context_continuity": "A prefill chunk begins where the computed context ends.",
    "prefill_sum": "Prefill tokens = sum over admissions (target - hit) - remainder at exit.",
    "batch_budget": "Batch tokens never exceed the token budget.",
    "kv_total": "Used and evictable KV blocks never exceed the total.",
    "live_requests": "Arrivals - ends = running + waiting.",
    "deferred_waiting": "Requests left out of a decision never exceed those waiting.",
    "member_sums": "Token counts of a batch are the sums over its members.",
    "one_end": "Every end belongs to one live request.",
    "engine_e2e": "Our E2E doesn't exceed the engine's own by more than 5 ms.",
    "seq_continuity": "Records received + lost = records written.",
}


@dataclass
class Audit:
    """Checks, violations and the first failure in words, by law."""

    checks: dict[str, int] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def judge(self, law: str, holds: npt.NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Count one check per element; `describe(i)` words the first failure ever."""
        if not len(holds):
            return
        self.checks[law] = self.checks.get(law, 0) + len(holds)
        if np.count_nonzero(holds) == len(holds):
            return
        failed = np.flatnonzero(~holds)
        self.violations[law] = self.violations.get(law, 0) + len(failed)
        if law not in self.examples:
            self.examples[law] = describe(int(failed[0]))

    def rows(self) -> dict[str, Any]:
        """Columns of the audit table, but for ring_id."""
        laws = [law for law in LAWS if law in self.checks]
        return {
            "law": laws,
            "checks": np.array([self.checks[law] for law in laws], np.int64),
            "violations": np.array([self.violations.get(law, 0) for law in laws], np.int64),
            "example": [self.examples.get(law) for law in laws],
        }

    def to_json(self) -> dict[str, Any]:
        """The arguments that make it again, in a fixed order."""
        return {name: dict(sorted(counts.items())) for name, counts in vars(self).items()}

    def counters(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """As catalogue counters."""
        out: dict[tuple[str, tuple[str, ...]], int] = {}
        for law, checks in self.checks.items():
            out["audit_checks", (law,)] = checks
            out["audit_violations", (law,)] = self.violations.get(law, 0)
        return out
