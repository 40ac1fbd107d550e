"""What is scheduled: SCHEDULED records join the table of batches in flight, with their members.

A decode set is stored once however many batches share it.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.layout import (
    DRAFTS,
    LINKS,
    PREFILL,
    Bools,
    Ints,
    Rows,
    among,
    differences,
    extended,
    flight_rows,
    heads_of,
    indices_of,
    spread,
    stacked,
    table,
)
from batchscope.exporter.fold.pieces import Part, flags_of, hides_members, sources
from batchscope.exporter.fold.roll import unannounced
from batchscope.exporter.fold.work import Decisions, Work
from batchscope.schemas import records as r

PREFILL_LINK, PREEMPTED_LINK = 1, 2
_WIRE = (
    ("iteration_id", "iteration_id", None),
    ("at", "at_ns", None),
    ("schedule_ns", "schedule_ns", None),
    ("budget", "budget_tokens", "I"),
    ("prefill", "prefill_tokens", None),
    ("decode", "decode_tokens", None),
    ("draft", "draft_tokens", None),
    ("running", "running", None),
    ("waiting", "waiting", None),
    ("head", "head_serial", None),
    ("stop", "admission_stop", None),
    ("kv_total", "kv_total_blocks", "I"),
    ("kv_used", "kv_used_blocks", "I"),
    ("kv_evictable", "kv_evictable_blocks", "I"),
    ("n_decode", "n_decode", None),
    ("n_prefill", "n_prefill", None),
)


def schedule(work: Work) -> None:
    """Take the piece's decisions in; then every member has a row in the roll, or is gone."""
    state = work.state
    work.set_offsets, work.set_serials = state.set_offsets, state.set_serials
    work.prefill, work.drafts = state.prefill, state.drafts
    part = work.piece.of(r.SCHEDULED)
    if part is not None:
        _append(work, part)
    _follow_ids(work)
    _resolve(work)


def _append(work: Work, part: Part) -> None:
    state, first = work.state, len(work.flight)
    flags = flags_of(part.fields["flags"], last_set=state.last_set)
    rows = _rows(part, flags)
    rows["sched_unix"] = rows["at"] + work.offsets.at(part.pos)
    _add_sets(work, part, flags, rows)
    work.flight = stacked([work.flight, rows])
    n = len(part)
    work.decisions = Decisions(
        part.pos, rows["at"], rows["iteration_id"], rows["stop"], np.arange(first, first + n)
    )
    _observe(work.flight, rows["iteration_id"], part.wide("observer_ns", r.NULL64))
    _add_members(work, part, rows["iteration_id"])


def _rows(part: Part, flags: Ints) -> Rows:
    rows = flight_rows(len(part))
    for name, field, code in _WIRE:
        rows[name] = part.wide(field, None if code is None else r.NULL[code])
    rows["flags"] = flags
    rows["judged"] = 1
    return rows


def _add_sets(work: Work, part: Part, flags: Ints, rows: Rows) -> None:
    """Give each batch the number of its decode set, -1 when its members are unknown."""
    offsets, serials = part.tail("decode")
    known = len(work.set_offsets) - 1
    source = sources(flags)
    sets = np.where(source >= 0, known + source, work.state.last_set)
    sets[flags & r.NO_MEMBERS != 0] = -1
    rows["members"] = sets
    work.state.last_set = int(sets[-1])
    work.set_offsets = np.concatenate([work.set_offsets, work.set_offsets[-1] + offsets[1:]])
    work.set_serials = np.concatenate([work.set_serials, serials["serial"].astype(np.int64)])


def _observe(flight: Rows, ids: Ints, observer: Ints) -> None:
    """A record tells what the iteration before it cost."""
    before = flight["iteration_id"].searchsorted(ids - 1)
    hit = flight["iteration_id"][before] == ids - 1
    flight["observer"][before[hit]] = observer[hit]


def _add_members(work: Work, part: Part, ids: Ints) -> None:
    if part.fields["n_prefill"].any():
        _add_prefills(work, part, ids)
    if part.fields["n_drafts"].any():
        offsets, rows = part.tail("drafts")
        owner = ids.repeat(differences(offsets))
        drafts = table(DRAFTS, iteration_id=owner, serial=rows["serial"], tokens=rows["tokens"])
        work.drafts = stacked([work.drafts, drafts])


def _add_prefills(work: Work, part: Part, ids: Ints) -> None:
    offsets, rows = part.tail("prefill")
    owner = ids.repeat(differences(offsets))
    columns = {name: rows[name].astype(np.int64) for name in ("serial", "tokens")}
    start = rows["start"].astype(np.int64)
    prefill = table(PREFILL, iteration_id=owner, start=start, **columns)
    links = table(LINKS, iteration_id=owner, link=np.full(len(owner), PREFILL_LINK), **columns)
    work.prefill = stacked([work.prefill, prefill])
    work.state.links = stacked([work.state.links, links])


def _follow_ids(work: Work) -> None:
    """Which decision comes next, at every position: SCHEDULED and SEGMENT both tell."""
    segments, decisions = work.piece.of(r.SEGMENT), work.decisions
    pos, ids = decisions.pos, decisions.ids + 1
    if segments is not None:
        pos = np.concatenate([pos, segments.pos])
        ids = np.concatenate([ids, segments.wide("iteration_id")])
    order = np.argsort(pos, kind="stable")
    work.next_ids = pos[order], np.concatenate([[work.state.next_id], ids[order]])
    work.state.next_id = int(work.next_ids[1][-1])


def _resolve(work: Work) -> None:
    """Members nobody announced get a row, but for those that finished with batches in flight."""
    work.set_actors = work.roll.find(work.set_serials)
    work.prefill_actors = work.roll.find(work.prefill["serial"])
    found = [_strange_decodes(work), _strange_prefills(work), _lost_ends(work)]
    serials = np.concatenate([serial for serial, _ in found])
    pos = np.concatenate([at for _, at in found])
    order = np.lexsort((pos, serials))
    serials, pos = serials[order], pos[order]
    first = (heads_of(serials)) & ~among(serials, work.state.gone["serial"])
    if first.any():
        _add_strangers(work, serials[first], pos[first])


def _strange_decodes(work: Work) -> tuple[Ints, Ints]:
    """(serials, positions where they turn up) of decode members without a row."""
    missing = indices_of(work.set_actors < 0)
    old = len(work.set_offsets) - 1 - len(work.decisions)
    number = work.set_offsets.searchsorted(missing, side="right") - 1 - old
    return work.set_serials[missing], extended(work.decisions.pos, -1)[np.maximum(number, -1)]


def _strange_prefills(work: Work) -> tuple[Ints, Ints]:
    missing = indices_of(work.prefill_actors < 0)
    rows = work.prefill.take(missing)
    decisions = work.decisions
    at = decisions.ids.searchsorted(rows["iteration_id"])
    known = among(rows["iteration_id"], decisions.ids)
    return rows["serial"].copy(), np.where(known, extended(decisions.pos, -1)[at], -1)


def _lost_ends(work: Work) -> tuple[Ints, Ints]:
    """Requests whose end is all that a loss left of them."""
    finished = work.piece.of(r.FINISHED)
    if finished is None or not work.state.lossy:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    serials = finished.wide("serial")
    missing = work.roll.find(serials) < 0
    return serials[missing], finished.pos[missing]


def _add_strangers(work: Work, serials: Ints, pos: Ints) -> None:
    before = work.roll
    work.roll = before.joined(unannounced(serials))
    births = np.full(len(work.roll), -1, np.int64)
    births[work.roll.find(before.serials)] = work.births
    births[work.roll.find(serials)] = pos
    work.births = births
    work.set_actors = work.roll.find(work.set_serials)
    work.prefill_actors = work.roll.find(work.prefill["serial"])


def set_members(work: Work, sets: Ints) -> tuple[Ints, Ints]:
    """(counts, indices into set_serials) of several decode sets; -1 is empty."""
    starts = work.set_offsets[np.maximum(sets, 0)]
    counts = np.where(sets >= 0, work.set_offsets[sets + 1] - starts, 0)
    return counts, spread(starts, counts)


def keep_in_flight(work: Work, kept: Bools) -> None:
    """The flight table and its members as the next piece needs them; sets are renumbered."""
    state, flight = work.state, work.flight.compress(kept)
    waiting = flight["done"] == 0
    used = [*flight["members"][waiting].tolist(), state.last_set]
    numbers = {old: new for new, old in enumerate(dict.fromkeys(u for u in used if u >= 0))}
    counts, index = set_members(work, np.array(list(numbers), np.int64))
    state.set_offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    state.set_serials = work.set_serials[index]
    flight["members"] = [
        numbers.get(old, -1) if open_ else -1
        for old, open_ in zip(flight["members"].tolist(), waiting.tolist(), strict=True)
    ]
    state.last_set = numbers.get(state.last_set, -1)
    state.flight = flight
    open_ids = flight["iteration_id"][waiting]
    state.prefill = work.prefill.compress(among(work.prefill["iteration_id"], open_ids))
    state.drafts = work.drafts.compress(among(work.drafts["iteration_id"], open_ids))


def unknown_members(flight: Rows) -> Bools:
    """Batches whose members nobody knows."""
    return hides_members(flight["flags"])
