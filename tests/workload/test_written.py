"""Traces as files of our own: what is written is read back, to the nanosecond and the block."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchscope.workload.presets import preset
from batchscope.workload.read import read_trace
from batchscope.workload.shape import at_rate, impatient
from batchscope.workload.trace import Trace, TraceError
from batchscope.workload.written import write

S = 10**9
ROW = {
    "at_ns": 5,
    "prompt_tokens": 40,
    "output_tokens": 3,
    "abort_after_ns": None,
    "session": None,
    "model": None,
    "block_tokens": None,
    "prefix": None,
}


def rows(folder: Path, *changes: dict[str, Any]) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(ROW | change) + "\n" for change in changes))
    return path


def test_a_trace_survives_the_way_through_a_file(tmp_path: Path) -> None:
    drawn = preset("chat", rate_per_s=3, requests=300, seed=1)
    whole = impatient(drawn, abort_ratio=0.1, mean_patience_ns=S, seed=2)
    write(tmp_path / "t.jsonl", whole)
    read = read_trace(tmp_path / "t.jsonl")
    assert list(read) == list(whole)
    assert read.facts["format"] == "batchscope"


def test_unknown_sharing_stays_unknown(tmp_path: Path) -> None:
    read = read_trace(rows(tmp_path, {}, {"at_ns": 9, "session": "red"}))
    assert (read.prefix, read.block_tokens, read.abort_after_ns) == (None, None, None)
    assert read.session == (None, "red")
    assert read.at_ns.tolist() == [0, 4]


def test_no_file_is_written_over(tmp_path: Path) -> None:
    path = rows(tmp_path, {})
    with pytest.raises(TraceError, match=r"can't write .*own\.jsonl: File exists"):
        write(path, [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (({}, {"prefix": [1], "block_tokens": 16}), "some rows name shared blocks"),
        (
            ({"prefix": [1], "block_tokens": 16}, {"prefix": [1], "block_tokens": 32}),
            "blocks of 32",
        ),
        (({"prefix": [1], "block_tokens": 0},), "line 1: block_tokens is 0, not above 0"),
        (({}, {"abort_after_ns": -1}), "line 2: abort_after_ns is -1, not above 0"),
        (({}, {"prompt_tokens": 10.7}), r"line 2: prompt_tokens is 10\.7, not a count of tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, changes: tuple[dict[str, Any], ...], why: str
) -> None:
    with pytest.raises(TraceError, match=why):
        read_trace(rows(tmp_path, *changes))


def test_a_later_row_that_lacks_a_column_names_its_line(tmp_path: Path) -> None:
    path = rows(tmp_path, {})
    with path.open("a") as file:
        file.write(json.dumps({name: ROW[name] for name in ROW if name != "output_tokens"}))
    with pytest.raises(TraceError, match="line 2: output_tokens is missing"):
        read_trace(path)


def test_a_trace_by_hand_names_only_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"at_ns": 0, "prompt_tokens": 40, "output_tokens": 3}\n'
        '{"at_ns": 7, "prompt_tokens": 41, "output_tokens": 4, "session": "red"}\n'
    )
    read = read_trace(path)
    assert read.facts["format"] == "batchscope"
    assert (read.prompt_tokens.tolist(), read.session) == ([40, 41], (None, "red"))
    assert (read.prefix, read.model, read.abort_after_ns) == (None, None, None)


def test_blocks_of_unknown_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"at_ns": 0, "prompt_tokens": 40, "output_tokens": 3, "prefix": [1]}\n')
    with pytest.raises(TraceError, match="line 1: block_tokens is missing"):
        read_trace(path)


def test_a_rate_is_met_exactly_and_a_short_trace_begins_anew() -> None:
    three = Trace(
        at_ns=np.array([10, 10 + S, 10 + 4 * S]),
        prompt_tokens=np.array([1, 2, 3]),
        output_tokens=np.array([4, 5, 6]),
        session=("a", None, "c"),
    )
    lapped = at_rate(three, 2.0, requests=7)
    assert lapped.prompt_tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert lapped.session == ("a", None, "c", "a", None, "c", "a")
    assert (lapped.at_ns[0], lapped.at_ns[-1]) == (0, 3 * S)
    assert np.all(np.diff(lapped.at_ns) > 0)
    first, second = np.diff(lapped.at_ns)[:2]
    assert second == pytest.approx(3 * first, abs=2)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(TraceError, match="above 0 requests per second"):
        at_rate(preset("chat", rate_per_s=1, requests=2, seed=0), rate, requests=2)


def test_an_empty_trace_has_nothing_to_repeat() -> None:
    none = np.array([], dtype=np.int64)
    empty = Trace(at_ns=none, prompt_tokens=none, output_tokens=none)
    with pytest.raises(TraceError, match="no arrival"):
        at_rate(empty, 1.0, requests=3)
