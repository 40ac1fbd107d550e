"""Member steps of a piece as flat columns: who took part in which completion, with what.

Successive completions with the very same decode members and nothing else are two entries per
member, whatever their number: the first of them, and all the rest. At 256 members and changes in
2 % of iterations that is 1/25 of the steps. Nothing here is Python per member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchscope.exporter.fold.flight import set_members
from batchscope.exporter.fold.layout import (
    NULL,
    Bools,
    Ints,
    Rows,
    among,
    differences,
    extended,
    heads_of,
    indices_of,
)
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r

PREEMPT, RESUME = 2, 3
_EDGES = (r.PREEMPTED, r.RESUMED, r.FINISHED)


@dataclass
class Steps:
    """n entries in order of (request, position).

    kind: 0 decode, 1 prefill, PREEMPT, RESUME. `times` completions from number j of the piece on,
    `first` the iteration id of the first; `tokens` scheduled and `emitted` in each; `start` is
    the context that a prefill begins at. `heads`: where each request begins.
    """

    actor: Ints
    pos: Ints
    kind: Ints
    j: Ints
    times: Ints
    first: Ints
    tokens: Ints
    start: Ints
    emitted: Ints
    heads: Ints
    edges: Ints
    """Entries that are no steps: preemptions and resumptions."""
    blocks: tuple[Ints, Ints]
    """(first j, number) of the completions behind each entry with times > 1 or the like."""
    late: tuple[Ints, Ints, Ints]
    """Decode members that had finished before: (j, times, serial)."""

    def __len__(self) -> int:
        return len(self.actor)

    @property
    def lasts(self) -> Ints:
        """Last entry of each request."""
        return extended(self.heads[1:], len(self))[: len(self.heads)] - 1


def steps_of(work: Work) -> Steps:
    """All member steps that completed in this piece, in order of (request, time)."""
    heads, rest, times = _blocks(work)
    actor, j, serial = _decodes(work, np.concatenate([heads, rest]))
    many = np.concatenate([np.ones(len(heads), np.int64), times])
    each = _per_completion(work, np.concatenate([heads, rest]), many)
    over = (actor < 0) | (work.completions.pos[j] > extended(work.ends, 0)[actor])
    late = j[over], each[over], serial[over]
    decode = _columns(0, actor[~over], work.completions.pos[j[~over]], each[~over])
    prefill = _prefills(work)
    parts = [decode, prefill, _edges(work, r.PREEMPTED, PREEMPT), _edges(work, r.RESUMED, RESUME)]
    return _sorted(work, parts, blocks=(rest, times), late=late)


def _blocks(work: Work) -> tuple[Ints, Ints, Ints]:
    """(first completions of each block, seconds of those with more, how many follow)."""
    n = len(work.completions)
    goes_on = _goes_on(work)
    heads = indices_of(~goes_on)
    lengths = differences(extended(heads, n))
    more = lengths > 1
    return heads, heads[more] + 1, lengths[more] - 1


def _goes_on(work: Work) -> Bools:
    """Which completions repeat the one before: same decodes, one token each, nothing between."""
    done = work.completions
    rows = work.flight.take(done.rows)
    ids, sets = rows["iteration_id"], rows["members"]
    simple = _simple(work, rows) & done.plain
    out = np.zeros(len(done), bool)
    if len(done) < 2:
        return out
    edges = np.sort(np.concatenate([_positions(work, record) for record in _EDGES]))
    quiet = differences(edges.searchsorted(done.pos)) == 0
    same = (differences(ids) == 1) & (differences(sets) == 0) & (sets[1:] >= 0)
    out[1:] = simple[1:] & simple[:-1] & same & quiet
    # a preemption decided with batches in flight: those before its decision are stale, it is not
    taken = work.next_id(_positions(work, r.PREEMPTED))
    out &= ~among(ids, np.concatenate([work.rows["preempt_id"], taken]))
    return out


def _simple(work: Work, rows: Rows) -> Bools:
    part = work.piece.of(r.COMPLETED)
    if part is None:
        return np.empty(0, bool)
    uneven = part.fields["n_emitted"][work.completions.record] > 0
    with_drafts = among(rows["iteration_id"], work.drafts["iteration_id"])
    return np.asarray(~uneven & ~with_drafts & (rows["n_prefill"] == 0))


def _positions(work: Work, record: r.Record) -> Ints:
    part = work.piece.of(record)
    return np.empty(0, np.int64) if part is None else part.pos


def _decodes(work: Work, at: Ints) -> tuple[Ints, Ints, Ints]:
    """(request, completion, serial) of the decode members of some completions."""
    rows = work.completions.rows[at]
    counts, index = set_members(work, work.flight["members"][rows])
    return work.set_actors[index], at.repeat(counts), work.set_serials[index]


def _per_completion(work: Work, at: Ints, values: Ints) -> Ints:
    counts, _ = set_members(work, work.flight["members"][work.completions.rows[at]])
    return values.repeat(counts)


def _columns(kind: int, actor: Ints, pos: Ints, times: Ints, **more: Ints) -> dict[str, Ints]:
    n = len(actor)
    columns = {
        "actor": actor,
        "pos": pos,
        "kind": np.full(n, kind, np.int64),
        "times": times,
        "tokens": np.ones(n, np.int64),
        "start": np.full(n, NULL, np.int64),
        "emitted": np.ones(n, np.int64),
    }
    return columns | more


def _prefills(work: Work) -> dict[str, Ints]:
    done, flight = work.completions, work.flight
    j_of = np.full(len(flight) + 1, -1, np.int64)
    j_of[done.rows] = np.arange(len(done))
    owner = flight["iteration_id"].searchsorted(work.prefill["iteration_id"])
    j, actor = j_of[owner], work.prefill_actors
    kept = (j >= 0) & (actor >= 0)
    pos = extended(done.pos, -1)[j]
    kept &= pos <= work.ends[actor] if len(work.ends) else False
    rows = work.prefill.compress(kept)
    ones = np.ones(len(rows), np.int64)
    return _columns(1, actor[kept], pos[kept], ones, tokens=rows["tokens"], start=rows["start"])


def _edges(work: Work, record: r.Record, kind: int) -> dict[str, Ints]:
    """Preemptions, `first` = the decision that took the place; resumptions, `start` = cached."""
    part = work.piece.of(record)
    if part is None:
        return _columns(kind, *[np.empty(0, np.int64)] * 3)
    kept, actor = work.concerned(part.fields["serial"], part.pos)
    pos, zeros = part.pos[kept], np.zeros(len(kept), np.int64)
    start = part.wide("cached_tokens")[kept] if record is r.RESUMED else zeros
    return _columns(kind, actor, pos, zeros, tokens=zeros, emitted=zeros, start=start)


def _sorted(
    work: Work,
    parts: list[dict[str, Ints]],
    *,
    blocks: tuple[Ints, Ints],
    late: tuple[Ints, Ints, Ints],
) -> Steps:
    """One sort of packed keys (14 ns an entry; an argsort takes 60)."""
    actor = np.concatenate([part["actor"] for part in parts])
    pos = np.concatenate([part["pos"] for part in parts]) - work.piece.lo
    n = len(actor)
    low, middle = n.bit_length(), (work.piece.hi - work.piece.lo).bit_length()
    assert low + middle + len(work.roll).bit_length() < 63
    keys = np.sort((actor << (low + middle)) | (pos << low) | np.arange(n))
    order = keys & ((1 << low) - 1)
    actor, pos = keys >> (low + middle), ((keys >> low) & ((1 << middle) - 1)) + work.piece.lo
    columns = _gathered(parts, order)
    j = _completion_at(work, pos)
    first = extended(work.flight["iteration_id"][work.completions.rows], NULL)[j]
    heads = indices_of(heads_of(actor))
    edges = indices_of(columns["kind"] >= PREEMPT)
    first[edges] = work.next_id(pos[edges])
    steps = Steps(
        actor, pos, j=j, first=first, heads=heads, edges=edges, blocks=blocks, late=late, **columns
    )
    _override(work, steps, keys >> low, middle)
    return steps


def _gathered(parts: list[dict[str, Ints]], order: Ints) -> dict[str, Ints]:
    """Columns in order. Most entries are decode steps of one token: only the others are fetched."""
    n_decode = len(parts[0]["actor"])
    others = indices_of(order >= n_decode)
    which = order[others] - n_decode
    out = {}
    for name, blank in (("kind", 0), ("tokens", 1), ("start", NULL), ("emitted", 1)):
        out[name] = np.full(len(order), blank, np.int64)
        out[name][others] = np.concatenate([part[name] for part in parts[1:]])[which]
    out["times"] = np.concatenate([part["times"] for part in parts])[order]
    return out


def _completion_at(work: Work, pos: Ints) -> Ints:
    piece, done = work.piece, work.completions
    table = np.full(piece.hi - piece.lo, -1, np.int64)
    table[done.pos - piece.lo] = np.arange(len(done))
    return table[pos - piece.lo]


def _override(work: Work, steps: Steps, keys: Ints, shift: int) -> None:
    """Emissions that are not 1, and decode members scheduled with more than one token."""
    done, part = work.completions, work.piece.of(r.COMPLETED)
    if part is not None and len(done):
        offsets, rows = part.tail("emitted")
        owner = np.repeat(np.arange(len(part)), differences(offsets))
        j_of = np.full(len(part), -1, np.int64)
        j_of[done.record] = np.arange(len(done))
        _put(work, steps.emitted, keys, shift, j_of[owner], rows["serial"], rows["tokens"])
    if len(work.drafts) and len(done):
        j_of = np.full(len(work.flight) + 1, -1, np.int64)
        j_of[done.rows] = np.arange(len(done))
        owner = work.flight["iteration_id"].searchsorted(work.drafts["iteration_id"])
        d = work.drafts
        inside = steps.kind == 1  # a prompt's end with drafts behind it: its own tokens are told
        own = steps.tokens[inside]
        _put(work, steps.tokens, keys, shift, j_of[owner], d["serial"], d["tokens"])
        steps.tokens[inside] = own


def _put(
    work: Work, column: Ints, keys: Ints, shift: int, j: Ints, serials: Any, values: Any
) -> None:
    actor = work.roll.find(serials)
    kept = (j >= 0) & (actor >= 0)
    pos = work.completions.pos[j[kept]] - work.piece.lo
    wanted = (actor[kept] << shift) | pos
    at = np.minimum(keys.searchsorted(wanted), len(keys) - 1) if len(keys) else wanted[:0]
    hit = keys[at] == wanted[: len(at)]
    column[at[hit]] = values[kept][: len(at)][hit]
