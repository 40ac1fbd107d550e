"""Who enters: ARRIVED and LIVE records become rows of the roll."""

from __future__ import annotations

import numpy as np

from batchscope.exporter.clock import Offsets
from batchscope.exporter.fold.layout import NULL, Bools, Ints, Rows, indices_of, live_rows, stacked
from batchscope.exporter.fold.pieces import Part, Piece, needs_telling
from batchscope.exporter.fold.roll import Roll, announced, fresh
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.work import Table
from batchscope.schemas import records as r

_IDENTITY = (
    *("trace_hi", "trace_lo", "model", "lora", "tenant", "parent", "key", "external"),
    *("max_tokens", "priority", "prompt", "named"),
)


def enter(state: State, piece: Piece, offsets: Offsets) -> tuple[Roll, Ints, Table | None]:
    """(roll with all newcomers, position of each one's birth, rows of _arrivals)."""
    known = Roll(state.live)
    arrivals: list[Table] = []
    born: list[Rows] = [live_rows(0)]
    births: list[Ints] = [np.empty(0, np.int64)]
    for record, make in ((r.ARRIVED, _arrived), (r.LIVE, _lived)):
        part = piece.of(record)
        if part is None:
            continue
        serials = part.wide("serial")
        new = fresh(serials, known.joined(stacked(born)), state.gone["serial"])
        if record is r.LIVE:
            _retold(state, known, part)
        rows = make(part, offsets).compress(new)
        born.append(rows)
        births.append(part.pos[new])
        arrivals.append(_for_spans(part, new, offsets))
        _keep_texts(state, part, indices_of(new))
    everyone, pos = stacked(born), np.concatenate(births)
    roll = known.joined(everyone)
    return roll, _positions(roll, everyone["serial"], pos), _in_order(arrivals, pos)


def _in_order(parts: list[Table], pos: Ints) -> Table | None:
    """Rows of both kinds as they came."""
    if not len(pos):
        return None
    order = np.argsort(pos)
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def _positions(roll: Roll, serials: Ints, births: Ints) -> Ints:
    out = np.full(len(roll), -1, np.int64)
    out[roll.find(serials)] = births
    return out


def _arrived(part: Part, offsets: Offsets) -> Rows:
    rows = announced(part)
    at = part.wide("at_ns")
    rows["arrived"] = rows["wait_since"] = at
    rows["arrived_unix"] = at + offsets.at(part.pos)
    rows["wait"] = 1
    return rows


def _lived(part: Part, _: Offsets) -> Rows:
    """Here before us: when it arrived is unknown, and so is the past of what has one."""
    rows = announced(part)
    _tell(rows, part, np.arange(len(part)))
    rows["broken"] = _has_past(part)
    return rows


def _has_past(part: Part) -> Bools:
    fields = part.fields
    names = ("computed_tokens", "output_tokens", "preemptions", "phase")
    return np.asarray(np.any([fields[name] > 0 for name in names], axis=0))


def _tell(rows: Rows, part: Part, which: Ints) -> None:
    """Where a request stands, into rows of which this was not known."""
    told = {name: part.wide(name)[which] for name in ("computed_tokens", "output_tokens")}
    rows["ctx"], rows["out"] = told["computed_tokens"], told["output_tokens"]
    rows["out_known"] = 1
    rows["gaps_ok"] = told["output_tokens"] == 0
    rows["first_ok"] = (part.wide("phase")[which] == 0) & (rows["first_sched"] == NULL)
    rows["cached"] = rows["hit"] = part.wide("cached_tokens", r.NULL32)[which]
    again = part.wide("preemptions")[which]
    rows["preemptions"] = rows["admission"] = again
    rows["first_preempt"] = np.where(again > 0, 0, rows["first_preempt"])
    rows["target"] = np.where(again > 0, NULL, rows["prompt"])


def _retold(state: State, known: Roll, part: Part) -> None:
    """LIVE about requests that lived before a loss, or were seen before they were announced."""
    at = known.find(part.wide("serial"))
    which = indices_of(at >= 0)
    which = which[needs_telling(known.rows.take(at[which]))]
    if not len(which):
        return
    rows, names = known.rows.take(at[which]), announced(part).take(which)
    for name in _IDENTITY:
        rows[name] = names[name]
    _tell(rows, part, which)
    rows["suspect"] = 0
    known.rows[at[which]] = rows
    _keep_texts(state, part, which)


def _for_spans(part: Part, new: Bools, offsets: Offsets) -> Table:
    at = part.wide("at_ns")[new]
    ids = {name: part.wide(name)[new] for name in ("trace_hi", "trace_lo", "parent_span")}
    unix = at + offsets.at(part.pos[new])
    return {"serial": part.wide("serial")[new], **ids, "at_ns": at, "unix_ns": unix}


def _keep_texts(state: State, part: Part, which: Ints) -> None:
    """Ids in plain words, in rings that carry them."""
    lengths = part.fields["n_key_text"] | part.fields["n_external_text"]
    for i in which[lengths[which] > 0].tolist():
        texts = [_text(part, name, i) for name in ("key_text", "external_text")]
        state.texts[int(part.fields["serial"][i])] = texts


def _text(part: Part, name: str, i: int) -> str | None:
    offsets, rows = part.tail(name)
    return rows["byte"][offsets[i] : offsets[i + 1]].tobytes().decode("utf-8", "replace") or None
