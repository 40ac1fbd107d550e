"""Everything a fold knows between two records of its ring, and its way to bytes and back.

Canonical: two folds that have seen the same records dump the same bytes, however they were cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from batchscope.exporter.audit import Audit
from batchscope.exporter.fold import layout
from batchscope.exporter.fold.layout import NULL, REASONS, Ints, Rows
from batchscope.exporter.fold.pack import pack, unpack
from batchscope.exporter.totals import Totals

FOLD_VERSION = 1
"""Changes whenever a state of before could not be continued."""

_INT = np.dtype(np.int64)
_ARRAYS = {
    "live": layout.LIVE,
    "flight": layout.FLIGHT,
    "gone": layout.GONE,
    "prefill": layout.PREFILL,
    "drafts": layout.DRAFTS,
    "links": layout.LINKS,
    "gaps": layout.GAPS,
    "emitted": layout.EMITTED,
    "skips": layout.SKIPS,
    "deliveries": layout.DELIVERIES,
    **dict.fromkeys(("history", "cum_n", "cum_t", "deferred"), _INT),
    "set_offsets": _INT,
    "set_serials": _INT,
}
_DICTS = ("gauges", "strings", "texts", "blocked", "ending")
Blocked = dict[int, list[Any]]
"""serial -> [reason, from_ns, sums of decisions and time at its first one, None: none yet]."""


def _zeros() -> Ints:
    return np.zeros(REASONS, np.int64)


def _no(name: str) -> Callable[[], Any]:
    """Makes an empty array of that name's layout."""
    return partial(np.zeros, 0, _ARRAYS[name])


@dataclass
class State:
    """One ring. Instants are the engine's monotonic clock; `_id` are iteration ids."""

    # completions: k = their number so far, c = the last one
    k: int = 0
    c: int = NULL
    completed_unix: int = NULL
    # idle: live count, whether it is exact (and was at the last completion), latest mark, idle
    # since the last completion
    live_count: int = 0
    synced: bool = False
    c_synced: bool = False
    mark: int = NULL
    idle: int = 0
    # decisions
    next_id: int = NULL
    decisions: int = 0
    d: int = NULL
    stop: int = 0
    lossy: bool = False
    check_id: int = NULL
    check_step: int = 0
    # the latest record
    offset: int = 0
    at: int = NULL
    seq: int = NULL
    last_set: int = -1
    gauges: dict[str, int] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    texts: dict[int, list[str | None]] = field(default_factory=dict)
    blocked: Blocked = field(default_factory=dict)
    ending: Blocked = field(default_factory=dict)
    """Unblocked behind the last decision, whose reason lasts to the next one."""
    totals: Totals = field(default_factory=Totals)
    audit: Audit = field(default_factory=Audit)
    # arrays
    live: Rows = field(default_factory=_no("live"))
    flight: Rows = field(default_factory=_no("flight"))
    gone: Rows = field(default_factory=_no("gone"))
    prefill: Rows = field(default_factory=_no("prefill"))
    drafts: Rows = field(default_factory=_no("drafts"))
    links: Rows = field(default_factory=_no("links"))
    gaps: Rows = field(default_factory=_no("gaps"))
    emitted: Rows = field(default_factory=_no("emitted"))
    skips: Rows = field(default_factory=_no("skips"))
    deliveries: Rows = field(default_factory=_no("deliveries"))
    history: Ints = field(default_factory=_no("history"))
    """Instants of the last completions, the newest is number k - 1."""
    cum_n: Ints = field(default_factory=_zeros)
    """Decisions so far, by the reason at which they stopped."""
    cum_t: Ints = field(default_factory=_zeros)
    """Time under them, up to the last one."""
    deferred: Ints = field(default_factory=_zeros)
    """Requests that the last decision left out, by reason."""
    set_offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    set_serials: Ints = field(default_factory=_no("set_serials"))
    """Decode members of the batches in flight and of the last one, set after set."""

    @property
    def unix(self) -> int:
        """Wall clock of the latest record, NULL before the first."""
        return NULL if self.at == NULL else self.at + self.offset

    def dump(self, extra: dict[str, Any]) -> bytes:
        """As bytes; `extra` is JSON that the caller wants back."""
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        head |= {"totals": self.totals.to_json(), "audit": self.audit.to_json(), "extra": extra}
        head |= {name: sorted(head[name].items()) for name in _DICTS}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        # each piece appends what it saw: only the order of one request's emissions has a meaning
        arrays["emitted"] = self.emitted.take(np.argsort(self.emitted["serial"], kind="stable"))
        for name in ("gaps", "skips", "links"):
            arrays[name] = np.sort(arrays[name])
        return pack(FOLD_VERSION, head=head, arrays=arrays)

    @classmethod
    def load(cls, blob: bytes) -> tuple[State, dict[str, Any]]:
        """(state, extra). Raises ValueError."""
        head, arrays = unpack(blob, version=FOLD_VERSION, dtypes=_ARRAYS)
        extra = head.pop("extra")
        head["totals"] = Totals.from_json(head["totals"])
        head["audit"] = Audit(**head["audit"])
        for name in _DICTS:
            head[name] = dict(head[name])
        told: dict[str, Any] = {**head, **arrays}
        return cls(**told), extra
