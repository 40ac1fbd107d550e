"""Runs as rows: the ended ones written, the open ones kept in the roll and shown as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.exporter.fold.layout import (
    EMITTED,
    NULL,
    Ints,
    Rows,
    heads_of,
    indices_of,
    stacked,
    table,
)
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.work import Work

UNEVEN = -1
"""In place of the tokens emitted in each step, when they differ."""

KEPT = ("first", "n", "stride", "phase", "recompute", "tokens", "e", "ctx", "unix", "admission")
RUN = np.dtype([(name, "<i8") for name in ("actor", "pos", *KEPT)])
"""A run: `pos` is where it ended, FAR: it goes on."""
Tails = dict[int, list[npt.NDArray[np.int64]]]
"""request -> tokens of the steps of its open run so far, where they differ."""


def from_roll(work: Work, actors: Ints, pos: Ints) -> Rows:
    """The open runs of some requests, ended at `pos`."""
    out = np.zeros(len(actors), RUN)
    out["actor"], out["pos"] = actors, pos
    for name in KEPT:
        out[name] = work.rows[f"run_{name}"][actors]
    return out.compress((out["phase"] != 0) & (out["n"] > 0))


def close(
    work: Work,
    actors: Ints,
    ends: Ints,
    *,
    tails: Tails,
    done: list[Rows],
    texts: list[npt.NDArray[np.int64] | None],
) -> None:
    """End the runs of requests that left."""
    if not len(actors):
        return
    ended = from_roll(work, actors, ends[actors])
    done.append(ended)
    if tails:
        texts.extend(_text(int(run["actor"]), int(run["e"]), tails) for run in ended)
    else:
        texts.extend([None] * len(ended))


def _text(actor: int, e: int, tails: Tails) -> npt.NDArray[np.int64] | None:
    tail = tails.pop(actor, None)
    return np.concatenate(tail) if e == UNEVEN and tail else None


def write(work: Work, done: list[Rows], texts: list[npt.NDArray[np.int64] | None]) -> None:
    """Rows of `runs`, in order of their ends."""
    if not done:
        return
    rows = stacked([np.zeros(0, RUN), *done])
    if not len(rows):
        return
    order = np.lexsort((rows["actor"], rows["pos"]))
    rows = rows.take(order)
    serials = work.roll.serials[rows["actor"]]
    work.emit("runs", **columns(serials, rows), emitted=[texts[i] for i in order.tolist()])


def columns(serials: Ints, rows: Rows) -> dict[str, Ints]:
    """Columns of the runs table but `emitted`."""
    return {
        "serial": serials,
        "first_iteration": rows["first"].copy(),
        "n_iterations": rows["n"].copy(),
        "stride": np.maximum(rows["stride"], 1),
        "phase": rows["phase"].copy(),
        "recompute": rows["recompute"].copy(),
        "tokens_each": rows["tokens"].copy(),
        "emitted_each": np.where(rows["e"] == UNEVEN, NULL, rows["e"]),
        "context_first": rows["ctx"].copy(),
        "unix_ns": rows["unix"].copy(),
    }


def state_columns(state: State) -> dict[str, Any]:
    """Open runs as rows."""
    live = state.live.compress((state.live["run_phase"] != 0) & (state.live["run_n"] > 0))
    rows = np.zeros(len(live), RUN)
    for name in KEPT:
        rows[name] = live[f"run_{name}"]
    texts: list[npt.NDArray[np.int64] | None] = [None] * len(live)
    for i in indices_of(rows["e"] == UNEVEN).tolist():
        texts[i] = state.emitted["tokens"][state.emitted["serial"] == live["serial"][i]]
    return {**columns(live["serial"].copy(), rows), "emitted": texts}


def end_runs(work: Work, actors: Ints) -> None:
    """Write the open runs of requests whose end nobody saw."""
    tails = tails_of(work)
    done: list[Rows] = []
    texts: list[npt.NDArray[np.int64] | None] = []
    ends = np.full(len(work.roll), work.piece.hi, np.int64)
    close(work, np.sort(actors), ends, tails=tails, done=done, texts=texts)
    write(work, done, texts)
    keep_tails(work, tails)


def tails_of(work: Work) -> Tails:
    """Uneven emissions of earlier pieces, by request."""
    kept = work.state.emitted
    if not len(kept):
        return {}
    kept = kept.take(np.argsort(kept["serial"], kind="stable"))
    starts = indices_of(heads_of(kept["serial"]))
    actors = work.roll.find(kept["serial"][starts]).tolist()
    parts = np.split(kept["tokens"], starts[1:])
    return {actor: [part] for actor, part in zip(actors, parts, strict=True)}


def keep_tails(work: Work, tails: Tails) -> None:
    """Put what is open back into the state."""
    if not tails:
        work.state.emitted = work.state.emitted[:0]
        return
    parts = [
        table(
            EMITTED,
            serial=np.full(sum(map(len, tail)), work.roll.serials[actor]),
            tokens=np.concatenate(tail),
        )
        for actor, tail in sorted(tails.items())
    ]
    work.state.emitted = stacked([np.zeros(0, EMITTED), *parts])
