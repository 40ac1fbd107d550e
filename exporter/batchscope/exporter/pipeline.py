"""Rings in, store and metrics out: one thread tails and folds, one commits, sinks on their own.

Exactly once: rows and the positions they belong to go to the store in one transaction (offers.py).
When the store can't write, folded rows wait in memory up to a bound, then reading stops: the rings
hold the rest. Nothing is dropped here.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchscope.exporter import facts
from batchscope.exporter.burial import burial
from batchscope.exporter.discover import Followed, discover, follow, restore
from batchscope.exporter.errors import StoreError
from batchscope.exporter.offers import Offer, take_config
from batchscope.exporter.pending import Rows
from batchscope.exporter.retention import Bounds
from batchscope.exporter.sinks import Sink, SinkThread
from batchscope.exporter.store import RingState, Store
from batchscope.exporter.views import EngineView, Key, merged, view
from batchscope.exporter.writer import StoreThread
from batchscope.schemas.reasons import Role
from batchscope.schemas.records import NULL64
from batchscope.schemas.ring import list_rings, lock_exporter, retire
from batchscope.schemas.ring.folder import drop, prepare
from batchscope.schemas.ring.layout import RingUnavailable
from batchscope.schemas.slo import Slo

log = logging.getLogger(__name__)

MOST_POSTED = 100_000
"""Rows of a table that may wait for a commit."""
REST_SHARE = 10
"""A pause is this many rounds long: a fold has a fixed cost (3 ms), so fewer and larger ones are
cheaper. 8 rings of 256 members: rounds of 40 ms, a tenth of a core, and fewer commits."""
TICK_S = 0.05
"""How soon after a slow commit the next one is handed over."""


@dataclass(frozen=True)
class Options:
    """How a pipeline works.

    commit_s: least time between commits. rest_s: bounds of the pause between two rounds over all
    rings; the longest is what freshness costs. look_s: how often the folder is listed and the life
    of quiet engines checked. queue_bytes: bound of rows that wait for the store.
    """

    slo: Slo | None = None
    commit_s: float = 0.25
    rest_s: tuple[float, float] = (0.1, 0.5)
    look_s: float = 0.5
    queue_bytes: int = 64 << 20
    bounds: Bounds = field(default_factory=Bounds)
    group: str | None = None


class Pipeline:
    """A running exporter without its outputs. `start`, then `stop`; any thread may ask the rest."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        options: Options = Options(),
        sinks: Mapping[str, Sink] | None = None,
        samples: Callable[[], Rows] | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self.folder, self.store, self.options = folder, store, options
        self.refused: dict[Path, str] = {}
        self.faults: Counter[str] = Counter()
        self._wall, self._samples = wall, samples
        self._sinks = [SinkThread(name, s, self.faults) for name, s in (sinks or {}).items()]
        self._rings: dict[Path, Followed] = {}
        self._past: list[EngineView] = []
        self._slo = options.slo
        self._posted: dict[str, list[facts.Row]] = {}
        self._versions: dict[str, int] = {}
        self._posting, self._moving = threading.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._lag_ns = 0
        self._lock: int | None = None
        self._next_look = self._next_commit = 0.0
        self._tail = threading.Thread(target=self._tail_loop, name="tail", daemon=True)
        self._writer = StoreThread(store, bounds=options.bounds, faults=self.faults, wall=wall)

    def start(self) -> None:
        """Take the folder, load what the store knows, begin. Raises RingError, StoreError."""
        self._take_folder()
        self._states = self.store.ring_states()
        hellos = self.store.hellos()
        self._ends = {h["ring_id"]: (h["state"], h["ended_unix_ns"]) for h in hellos}
        self._configs = {row[0] for row in self.store.rows("SELECT config_hash FROM configs")}
        self._announce_slo()
        self._discover()
        self._bury(hellos)
        self._remember_past(hellos)
        for sink in self._sinks:
            sink.start()
        self._tail.start()
        self._writer.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Read what is there, commit it, let go. Bounded even when the store can't write."""
        self._stopping.set()
        self._tail.join(timeout_s)
        self._writer.close(timeout_s)
        for sink in self._sinks:
            sink.close()
        for ring in self._rings.values():
            ring.reader.close()
        if self._lock is not None:
            drop(self._lock)
            self._lock = None

    @property
    def store_error(self) -> str | None:
        """Why the store takes no rows at the moment, None while it does."""
        return self._writer.error

    @property
    def slo(self) -> Slo | None:
        """The SLO in force."""
        return self._slo

    def engines(self) -> list[EngineView]:
        """One view per engine label set; counters add up over restarts. Front ends are none: what
        they count, their engines have counted.
        """
        with self._moving:
            views = [*self._past, *(ring.view for ring in self._rings.values())]
        return merged(one for one in views if one.labels["role"] != Role.FRONTEND.value)

    def exporter_values(self) -> dict[Key, int]:
        """Values of the catalogue's exporter scope, by (name, label values)."""
        values: dict[Key, int] = {
            ("store_queue_bytes", ()): self._backlog(),
            ("pipeline_lag_seconds", ()): self._lag_ns,
        }
        values |= self._ring_counts() | self._writer.values()
        values |= {("collector_errors", (part,)): n for part, n in list(self.faults.items())}
        for sink in self._sinks:
            values |= sink.sink.values()
        return values

    def mark(self, text: str, *, kind: str = "user", engine: str | None = None) -> facts.Row:
        """Put a mark on every chart, from the next commit on."""
        row = facts.mark(kind, text, unix_ns=self._wall(), engine=engine)
        self.post("marks", [row])
        return row

    def post(self, table: str, rows: list[facts.Row]) -> None:
        """Append rows from outside, from the next commit on. StoreError when too many wait."""
        with self._posting:
            waiting = [*self._posted.get(table, ()), *rows]
            if len(waiting) > MOST_POSTED:
                raise StoreError(self.store_error or "the store is behind; try again in a moment")
            self._posted[table] = waiting

    def judge_by(self, slo: Slo) -> Slo:
        """Another SLO from now on, as the next version of its name. What is judged stays so."""
        with self._posting:
            fresh = self._slo = self._numbered(slo)
            row = facts.slo(fresh, since_unix_ns=self._wall())
        self.post("slo", [row])
        self.mark(f"{fresh.name} v{fresh.version}: {fresh}", kind="slo")
        return fresh

    def _numbered(self, slo: Slo) -> Slo:
        """As the next version of its name: (name, version) never means two sets of targets."""
        version = self._versions[slo.name] = self._versions.get(slo.name, 0) + 1
        return replace(slo, version=version)

    def _tail_loop(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._guarded(self._round)
            self._rest(0.0 if self._hurried() else self._pause(time.monotonic() - began))
        self._guarded(self._finish)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A fault of ours is counted and said; the thread lives on."""
        try:
            work()
        except Exception:
            self.faults["tail"] += 1
            log.exception("a fault in the tail thread")

    def _round(self) -> None:
        """Read, look around when it is time, hand over."""
        now = time.monotonic()
        self._read_all()
        if now >= self._next_look:
            self._look_around()
            self._next_look = now + self.options.look_s
        self._offer()

    def _pause(self, round_s: float) -> float:
        shortest, longest = self.options.rest_s
        return min(max(REST_SHARE * round_s, shortest), longest)

    def _rest(self, seconds: float) -> None:
        """Pause, but hand over what the store thread had no time for."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stopping.wait(min(left, TICK_S)):
            self._guarded(self._offer)

    def _hurried(self) -> bool:
        """Whether some ring fills so fast that a pause could lose records."""
        if self._backlog() >= self.options.queue_bytes:
            return False
        return any(ring.hurried for ring in self._rings.values())

    def _read_all(self) -> bool:
        """Poll every ring once; whether any had something."""
        if self._backlog() >= self.options.queue_bytes:
            return False
        return sum(self._read(path, ring) for path, ring in list(self._rings.items())) > 0

    def _read(self, path: Path, ring: Followed) -> bool:
        return self._folded(path, ring, ring.read)

    def _folded(self, path: Path, ring: Followed, fold: Callable[[], Rows | None]) -> bool:
        """Pass on what a fold makes; whether it made something."""
        ring.fold.slo = self._slo
        try:
            rows = fold()
        except Exception as error:  # noqa: BLE001 (isolated)
            self._isolate(path, ring, error)
            return False
        if rows is None:
            return False
        self._note_lag(rows)
        for sink in self._sinks:
            sink.put(ring, rows)
        ring.publish()
        return True

    def _isolate(self, path: Path, ring: Followed, error: Exception) -> None:
        """A ring whose fold failed is left alone: what is stored of it stays true, others go on."""
        log.exception("ring %s can't be followed any further", path.name)
        self.faults["fold"] += 1
        self.refused[path] = f"{path.name}: {type(error).__name__} while folding"
        ring.state = "refused"
        ring.publish()
        self._leave(path, ring)

    def _look_around(self) -> None:
        try:
            self._discover()
        except OSError as error:
            self.faults["discover"] += 1
            log.warning("can't list %s: %s", self.folder, error.strerror)
        for path, ring in list(self._rings.items()):
            self._check_life(path, ring)

    def _discover(self) -> None:
        broken = {path for path, why in self.refused.items() if why.endswith("while folding")}
        known = self._rings.keys() | broken
        fresh, refused = discover(self.folder, known=set(known), open_ring=self._open)
        for path in refused.keys() - self.refused.keys():
            log.warning("refused: %s", refused[path])
        self.refused = {p: why for p, why in self.refused.items() if p in broken} | refused
        for ring in fresh:
            log.info("following %s (%s)", ring.engine, ring.reader.path.name)
            with self._moving:
                self._rings[ring.reader.path] = ring

    def _open(self, path: Path) -> Followed:
        return follow(path, states=self._states, ends=self._ends, slo=self._slo)

    def _check_life(self, path: Path, ring: Followed) -> None:
        if ring.reader.alive() or not ring.reader.drained():
            ring.publish()  # who waits goes on waiting, also when nothing is recorded
            return
        if ring.state == "live":
            log.info("%s is gone", ring.engine)
            if not self._folded(path, ring, lambda: ring.die(self._wall())):
                return
        if not ring.dirty and ring.committed == ring.reader.position:
            self._retire(path, ring)

    def _retire(self, path: Path, ring: Followed) -> None:
        if not retire(path):
            return  # a read-only folder: its engine's next start sweeps it
        self._leave(path, ring)
        ring.reader.close()

    def _leave(self, path: Path, ring: Followed) -> None:
        """Follow it no longer; its counters stay, and no scrape meets them twice or not at all."""
        past = merged([*self._past, ring.view])
        with self._moving:
            self._past = past
            del self._rings[path]

    def _note_lag(self, rows: Rows) -> None:
        ends = rows.get("iterations", {}).get("unix_ns", ())
        if len(ends) and int(ends[-1]) != NULL64:
            self._lag_ns = max(0, self._wall() - int(ends[-1]))

    def _offer(self) -> None:
        """Hand a snapshot to the store thread when it is free and one is due."""
        now = time.monotonic()
        if self._writer.in_flight or now < self._next_commit:
            return
        made = self._snapshot()
        if made is not None:
            self._next_commit = now + self.options.commit_s
            self._writer.offer(made)

    def _snapshot(self) -> Offer | None:
        extra = self._samples() if self._samples else {}
        with self._posting:
            made, self._posted = Offer(own=self._posted, rows=[extra] if extra else []), {}
        for path, ring in list(self._rings.items()):
            if ring.dirty:
                self._take(made, path, ring)
        return made if made.taken or made.own or made.rows else None

    def _take(self, made: Offer, path: Path, ring: Followed) -> None:
        try:
            made.take(ring)
        except Exception as error:  # noqa: BLE001 (isolated)
            self._isolate(path, ring, error)
            return
        take_config(made, ring, self._configs)

    def _finish(self) -> None:
        """Read what the rings still have and hand over a last snapshot, in bounded time."""
        self._look_around()
        deadline = time.monotonic() + 3.0
        while self._read_all() and time.monotonic() < deadline:
            pass
        self._writer.wait_until_free(3.0)
        self._next_commit = 0.0
        self._offer()

    def _backlog(self) -> int:
        return self._writer.in_flight + sum(ring.nbytes for ring in list(self._rings.values()))

    def _ring_counts(self) -> dict[Key, int]:
        seen = Counter(ring.state for ring in list(self._rings.values()))
        seen["refused"] = len(self.refused)
        return {("rings", (s,)): seen[s] for s in ("live", "closed", "dead", "refused")}

    def _take_folder(self) -> None:
        try:
            prepare(self.folder, group=self.options.group)
            self._lock = lock_exporter(self.folder)
        except OSError as error:
            why = error.strerror or error
            raise RingUnavailable(f"can't use {self.folder} for rings: {why}") from None

    def _remember_past(self, hellos: list[dict[str, Any]]) -> None:
        """Counters of rings that are gone, so that a restart of the exporter resets none."""
        here = {path.stem for path in list_rings(self.folder)}
        gone = [h for h in hellos if h["ring_uuid"] in self._states.keys() - here]
        self._past = merged(_past_view(h, self._states[h["ring_uuid"]]) for h in gone)

    def _bury(self, hellos: list[dict[str, Any]]) -> None:
        """End what rings left that went while no exporter ran."""
        here = {path.stem for path in list_rings(self.folder)}
        gone = [h for h in hellos if h["state"] == "live" and h["ring_uuid"] not in here]
        if gone:
            ended = burial(gone, self._states, unix_ns=self._wall())
            self.store.commit(ended)
            self._states |= {state.ring_uuid: state for state in ended.states}

    def _announce_slo(self) -> None:
        """Number the SLO: the stored version while its targets are the same, else the next one."""
        stored = self.store.rows("SELECT name, version, targets FROM slo ORDER BY version")
        self._versions = {name: version for name, version, _ in stored}
        if self._slo is None:
            return
        newest = {name: targets for name, _, targets in stored}
        if newest.get(self._slo.name) == str(self._slo):
            self._slo = replace(self._slo, version=self._versions[self._slo.name])
        else:
            self._slo = self._numbered(self._slo)
            self.post("slo", [facts.slo(self._slo, since_unix_ns=self._wall())])


def _past_view(hello: Mapping[str, Any], stored: RingState) -> EngineView:
    _, fold = restore(stored, hello=hello, slo=None)
    provides = json.loads(hello["provides"])  # a column of JSON, a dict in a ring's own hello
    known = dict(hello) | {"unix_ns": hello["attached_unix_ns"], "provides": provides}
    state = "closed" if hello["state"] == "closed" else "dead"
    return view(known, hello["ring_id"], state=state, totals=fold.totals, gauges=fold.gauges)
