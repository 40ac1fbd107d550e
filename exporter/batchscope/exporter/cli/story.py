"""A request's rows as sentences in the order of time: arrival, waits, chunks, preemptions, end.

Pure: rows of the exporter's /request in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from batchscope.exporter.cli.spoken import count, duration, instant, plural, size

Row = dict[str, Any]
Event = tuple[int | None, str]
"""(ns since the story's beginning, what happened)."""

MOST_GAPS = 5
MOST_CHUNKS = 8
VERDICTS = {
    "met": "met the SLO",
    "missed": "missed the SLO",
    "undetermined": "can't be judged by the SLO: fewer than two tokens",
    "failed": "failed, so the SLO was not met",
    "aborted": "ended by its client, not judged",
    "shed": "dropped by the engine, so the SLO was not met",
}


def lines(one: Row, *, asked: str) -> list[str]:
    """The story of one request that was asked for by `asked`, times in ms after its arrival."""
    events = [event for part in PARTS for event in part(one)]
    timed = sorted(events, key=_place)
    return [
        _title(one, asked),
        *(f"{instant(at):>12}  {text}" for at, text in timed),
        *_verdict(one),
    ]


def _place(event: Event) -> tuple[bool, int]:
    """What lies within 0.1 ms stays in the order of PARTS: two clocks are that far apart."""
    return event[0] is None, round((event[0] or 0) / 1e5)


def begin(one: Row) -> tuple[int | None, int | None]:
    """(engine's clock, wall clock) at ms 0: its arrival, else the first instant that is known."""
    known = ("arrived_at_ns", "first_scheduled_at_ns", "first_token_at_ns", "last_token_at_ns")
    at = next((one[name] for name in known if one[name] is not None), None)
    if one["arrived_at_ns"] is not None:
        return at, one["arrived_unix_ns"]
    if at is None or one["finished_at_ns"] is None:
        return at, None
    return at, one["unix_ns"] - (one["finished_at_ns"] - at)


def _title(one: Row, asked: str) -> str:
    labels = [one.get(name) for name in ("model", "lora", "tenant")]
    of = ", ".join(str(label) for label in labels if label)
    engine = one.get("engine") or "an engine"
    return f"{asked}: serial {one['serial']} of {engine}{f' ({of})' if of else ''}"


def _arrival(one: Row) -> Iterator[Event]:
    most = f", at most {count(one['max_tokens'])} to come" if one["max_tokens"] else ""
    prompt = f"prompt of {_tokens_of(one['prompt_tokens'])}{most}"
    if one["arrived_at_ns"] is None:
        yield None, f"was here before recording began; {prompt}"
    else:
        yield 0, f"arrived, {prompt}"


def _admissions(one: Row) -> Iterator[Event]:
    """One event per admission that was waited for, and the first in any case."""
    waits: dict[int, list[Row]] = {}
    for wait in one["waits"]:
        waits.setdefault(wait["admission"], []).append(wait)
    if one["first_scheduled_at_ns"] is not None:
        first = [_in_step(one), *map(_wait, waits.pop(0, []))]
        because = ", ".join(filter(None, first))
        took = duration(one["queue_ns"])
        yield _since(one, at=one["first_scheduled_at_ns"]), f"admitted after {took}: {because}"
    for admission, rows in sorted(waits.items()):
        word = "admitted again, waited" if admission else "waited"
        ended = _since(one, unix=max(row["unix_ns"] for row in rows))
        yield ended, f"{word} {', '.join(map(_wait, rows))}"


def _in_step(one: Row) -> str:
    return f"{duration(one['in_step_ns'])} to the next decision"


def _wait(row: Row) -> str:
    passed = ", passed over" if row["skipped"] else ""
    left_out = plural(row["decisions"], "decision")
    return f"{row['reason']} {duration(row['wait_ns'])} ({left_out}{passed})"


def _chunks(one: Row) -> Iterator[Event]:
    if one["cached_tokens"]:
        found = f"found {plural(one['cached_tokens'], 'prompt token')} in the prefix cache"
        yield _since(one, at=one["first_scheduled_at_ns"]), found
    for (phase, recompute), group in groupby(one["runs"], itemgetter("phase", "recompute")):
        if phase == "prefill":
            runs = list(group)
            word = "recomputed" if recompute else "computed"
            yield _since(one, unix=runs[-1]["unix_ns"]), f"{word} {_sizes(runs)}"


def _sizes(runs: Iterable[Row]) -> str:
    """`512 + 88 tokens in iterations 7 to 8`."""
    steps = [
        (run["tokens_each"], run["first_iteration"] + i * run["stride"])
        for run in runs
        for i in range(run["n_iterations"])
    ]
    sizes = [count(tokens) for tokens, _ in steps[: MOST_CHUNKS - 1]]
    rest = steps[MOST_CHUNKS - 1 :]
    if rest:
        sizes.append(count(sum(tokens for tokens, _ in rest)))
    more = f" (the last of {plural(len(rest), 'chunk')})" if len(rest) > 1 else ""
    first, last = steps[0][1], steps[-1][1]
    where = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    return f"{' + '.join(sizes)} tokens{more} in {where}"


def _preemptions(one: Row) -> Iterator[Event]:
    for row in one["preemptions"]:
        why = f" for {row['reason']}" if row["reason"] else ""
        lost = plural(row["lost_tokens"], "computed token")
        yield _since(one, at=row["at_ns"]), f"preempted{why}, {lost} lost"


def _tokens(one: Row) -> Iterator[Event]:
    if one["first_token_at_ns"] is not None:
        ttft = duration(one["ttft_ns"])
        yield _since(one, at=one["first_token_at_ns"]), f"first token (TTFT {ttft})"
    longest = sorted(one["gaps"], key=lambda row: -row["gap_ns"])[:MOST_GAPS]
    for row in longest:
        within = ", a preemption within" if row["preempted"] else ""
        span = f"over iterations {row['from_iteration']} to {row['iteration_id']}"
        yield _since(one, unix=row["unix_ns"]), f"a gap of {duration(row['gap_ns'])} {span}{within}"


def _end(one: Row) -> Iterator[Event]:
    tokens = _tokens_of(one["output_tokens"])
    if one["finished_at_ns"] is None:
        yield None, f"still here, {tokens} so far"
        return
    spread = f"TBT p50 {duration(one['tbt_p50_ns'])}, p99 {duration(one['tbt_p99_ns'])}"
    rates = f"{spread}, longest {duration(one['tbt_max_ns'])}, TPOT {duration(one['tpot_ns'])}"
    ended = f"ended by {one['finish_reason']}: {tokens}, E2E {duration(one['e2e_ns'])}"
    yield _since(one, at=one["finished_at_ns"]), f"{ended}; {rates}"
    if one["recomputed_tokens"] or one["cached_on_resume_tokens"]:
        again = f"recomputed {_tokens_of(one['recomputed_tokens'])} in all"
        found = f"{_tokens_of(one['cached_on_resume_tokens'])} found in the cache again"
        yield _since(one, at=one["finished_at_ns"]), f"{again}, {found}"


def _tokens_of(number: int | None) -> str:
    return "unknown length" if number is None else plural(number, "token")


def _handed(one: Row) -> Iterator[Event]:
    """What its front end did with the tokens: when the stream of its client had them."""
    for row in one.get("deliveries", ()):
        first = _since(one, unix=row["first_unix_ns"])
        if first is not None:
            lag = duration(row["lag_first_ns"])
            ttft = f"TTFT there {duration(row['ttft_ns'])}, {lag} after the core had it"
            yield first, f"first token handed to its stream by the front end ({ttft})"
        tokens = f"{_tokens_of(row['delivered_tokens'])} handed over"
        pieces = f"{tokens} in {plural(row['deliveries'], 'piece')}"
        lags = f"lag {duration(row['lag_mean_ns'])}, longest {duration(row['lag_max_ns'])}"
        gaps = f"longest gap {duration(row['gap_max_ns'])}"
        ended = f"E2E there {duration(row['e2e_ns'])}, {gaps}, {lags}"
        yield _since(one, unix=row["last_unix_ns"]), f"{pieces}: {ended}"


def _transfers(one: Row) -> Iterator[Event]:
    """Hops of its KV between engines."""
    for row in one.get("transfers", ()):
        ended = _since(one, at=row["end_ns"])
        peer = row["peer"] or "another engine"
        if row["failed"]:
            yield ended, f"its KV was offered to {peer} and not taken"
            continue
        verb = "came from" if row["direction"] == "in" else "went to"
        held = plural(row["blocks"], "block") if row["blocks"] is not None else "blocks"
        much = f", {size(row['bytes'])}" if row["bytes"] is not None else ""
        took = duration(row["end_ns"] - row["start_ns"])
        yield ended, f"its KV {verb} {peer}: {held}{much} in {took}"


PARTS = (_arrival, _admissions, _chunks, _preemptions, _tokens, _transfers, _end, _handed)


def _verdict(one: Row) -> Iterator[str]:
    judged = one["verdict"]
    if judged is not None:
        name = f" ({one['slo']})" if one["slo"] else ""
        yield f"{'verdict':>12}  {VERDICTS.get(judged, judged)}{name}"
    if one["broken"]:
        yield f"{'':>12}  records about it were lost: what needs them is unknown"


def _since(one: Row, *, at: int | None = None, unix: int | None = None) -> int | None:
    """Time since the beginning in ns, of an instant on either clock."""
    begin_at, begin_unix = begin(one)
    if at is not None and begin_at is not None:
        return int(at - begin_at)
    return int(unix - begin_unix) if unix is not None and begin_unix is not None else None
