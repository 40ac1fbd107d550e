"""Readers: every format by its header, exact instants, clear refusals."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from batchscope.workload.clients import ClientTable
from batchscope.workload.lengths import LengthTable
from batchscope.workload.read import read, read_trace
from batchscope.workload.trace import TraceError

BURST_V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_V2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
CLIENTS = "client,window_start_s,rate,cv,pattern,arg1,arg2"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "misleading_name.json"
    path.write_text("\n".join(lines) + "\n")
    return path


def mooncake(at_ms: int, prompt: int, output: int, blocks: list[int]) -> str:
    row = {"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": blocks}
    return json.dumps(row)


def qwen(chat: int, parent: int, at_s: str, prompt: int, blocks: list[int]) -> str:
    return (
        f'{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {at_s}, "input_length":'
        f' {prompt}, "output_length": 5, "type": "text", "turn": 1, "hash_ids": {blocks}}}'
    )


def test_azure_2023_keeps_seven_digits_of_a_second(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319601,3180,8")
    trace = read_trace(write(tmp_path, AZURE, *rows))
    assert trace.facts["format"] == "azure-2023"
    assert trace.at_ns.tolist() == [0, 52_000_100]
    assert trace[0][:4] == (0, 0, 4808, 10)
    assert trace[0][4:] == (None,) * 5


def test_azure_2024_is_told_by_its_zone_and_may_lack_the_fraction(tmp_path: Path) -> None:
    rows = (
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01+00:00,2399,6",
        "2024-05-10 02:00:02+02:00,10,7",
    )
    trace = read_trace(write(tmp_path, AZURE, *rows))
    assert trace.facts["format"] == "azure-2024"
    assert trace.at_ns.tolist() == [0, 990_070_000, 1_990_070_000]


def test_burstgpt_failures_are_counted_and_left_out_unless_asked_for(tmp_path: Path) -> None:
    rows = (
        "5,ChatGPT,472,18,490,Conversation log",
        "45.0,GPT-4,1087,0,1087,API log",
        "118.0,GPT-4,417,276,693,Conversation log",
    )
    path = write(tmp_path, BURST_V1, *rows)
    trace = read_trace(path)
    assert trace.facts["format"] == "burstgpt-v1"
    assert trace.at_ns.tolist() == [0, 113 * 10**9]
    assert trace.model == ("ChatGPT", "GPT-4")
    assert (trace.facts["rows_read"], trace.facts["rows_skipped"]) == (3, {"failed": 1})
    kept = read_trace(path, keep_failures=True)
    assert kept.output_tokens.tolist() == [18, 0, 276]
    assert kept.facts["rows_skipped"] == {}


def test_a_trace_starts_at_its_first_row_even_when_that_row_is_left_out(tmp_path: Path) -> None:
    rows = ("10,GPT-4,7,0,7,API log", "12,GPT-4,7,3,10,API log")
    assert read_trace(write(tmp_path, BURST_V1, *rows)).at_ns.tolist() == [2 * 10**9]


def test_burstgpt_v2_has_sessions(tmp_path: Path) -> None:
    rows = ("1,s-1,2.5,GPT-4,3,4,7,Conversation log", "2,,2.5,GPT-4,3,4,7,API log")
    trace = read_trace(write(tmp_path, BURST_V2, *rows))
    assert trace.facts["format"] == "burstgpt-v2"
    assert trace.session == ("s-1", None)


def test_mooncake_counts_milliseconds_and_keeps_simultaneous_arrivals(tmp_path: Path) -> None:
    rows = (mooncake(0, 600, 9, [0, 1]), mooncake(3000, 512, 8, [0]), mooncake(3000, 10, 7, [2]))
    trace = read_trace(write(tmp_path, *rows))
    assert (trace.facts["format"], trace.block_tokens) == ("mooncake", 512)
    assert trace.at_ns.tolist() == [0, 3 * 10**9, 3 * 10**9]
    assert [arrival.prefix for arrival in trace] == [(0, 1), (0,), (2,)]
    assert trace.facts["rows_with_odd_prefix"] == 0


def test_a_prefix_that_does_not_fit_its_prompt_is_counted(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, mooncake(0, 600, 9, [0]), mooncake(0, 5, 9, [1])))
    assert trace.facts["rows_with_odd_prefix"] == 1


def test_qwen_bailian_counts_seconds_and_follows_chats_to_their_first(tmp_path: Path) -> None:
    rows = (
        qwen(10, -1, "61.114", 20, [1, 2]),
        qwen(11, 10, "62.5", 40, [1, 2, 3]),
        qwen(12, 11, "63", 50, [1, 2, 3, 4]),
        qwen(13, 9, "64", 5, [5]),
    )
    trace = read_trace(write(tmp_path, *rows))
    assert (trace.facts["format"], trace.block_tokens) == ("qwen-bailian", 16)
    assert trace.at_ns.tolist() == [0, 1_386_000_000, 1_886_000_000, 2_886_000_000]
    assert trace.session == ("10", "10", "10", "9")


def test_rows_out_of_order_are_sorted_and_counted_and_ties_keep_their_order(tmp_path: Path) -> None:
    rows = (mooncake(5, 1, 1, [7]), mooncake(2, 2, 1, [8]), mooncake(5, 3, 1, [9]))
    trace = read_trace(write(tmp_path, *rows))
    assert trace.prompt_tokens.tolist() == [2, 1, 3]
    assert trace.prefix == ((8,), (7,), (9,))
    assert trace.facts["rows_out_of_order"] == 1


def test_a_crowd_at_one_instant_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    crowd = (mooncake(9, 100 + n, 1, [n]) for n in range(300))
    trace = read_trace(write(tmp_path, *crowd, mooncake(2, 1, 1, [999])))
    assert trace.prompt_tokens.tolist() == [1, *range(100, 400)]


def test_gzip_is_told_by_content_and_carriage_returns_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_bytes(gzip.compress(f"\ufeff{AZURE}\r\n2023-11-16 18:17:03,1,2\r\n".encode()))
    assert len(read_trace(path)) == 1


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, *(mooncake(n, 1, 1, [n]) for n in range(9)), "not json")
    trace = read_trace(path, limit=4)
    assert (len(trace), trace.facts["read_limit"]) == (4, 4)


def test_a_lengths_file_becomes_a_table_and_is_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path, LENGTHS, "74,918,992,0.08", "290,0,290,0.3", "1402,711,2113,1.97")
    table = read(path)
    assert isinstance(table, LengthTable)
    assert table.prompt_tokens.tolist() == [74, 1402]
    assert table.facts["rows_skipped"] == {"no_tokens": 1}
    with pytest.raises(TraceError, match="holds lengths and no arrivals"):
        read_trace(path)


def test_client_statistics_become_windows(tmp_path: Path) -> None:
    rows = ("0,600,0.5,1.1,Gamma,0.8,2.0", "1,1200,0.0,0.0,,0.0,0.0")
    table = read(write(tmp_path, CLIENTS, *rows))
    assert isinstance(table, ClientTable)
    assert (len(table.windows), table.window_ns) == (1, 600 * 10**9)
    assert table.facts["rows_skipped"] == {"silent_window": 1}


ODD_FILES = {
    "line 3: ContextTokens is 'x', not a number": (
        AZURE,
        "2023-11-16 18:17:03,1,2",
        "2023-11-16 18:17:03,x,2",
    ),
    "line 2: TIMESTAMP is 'noon', not a date": (AZURE, "noon,1,2"),
    "line 2: 2 cells where the header names 3": (AZURE, "2023-11-16 18:17:03,1"),
    "line 2: GeneratedTokens is '-4', not a count": (AZURE, "2023-11-16 18:17:03,1,-4"),
    "line 2: GeneratedTokens is '1.5', not a count": (AZURE, "2023-11-16 18:17:03,1,1.5"),
    "line 2: Timestamp is '1e999999999', not a usable": (BURST_V1, "1e999999999,m,1,1,2,l"),
    "line 2: Timestamp is 'nan', not a usable": (BURST_V1, "nan,m,1,1,2,l"),
    "line 2: TIMESTAMP is '2023-13-16 18:17:03': month must be in": (
        AZURE,
        "2023-13-16 18:17:03,1,2",
    ),
    "line 2: not a JSON object": (mooncake(0, 1, 1, [1]), '{"timestamp": 1, "input'),
    "line 2: hash_ids is missing": (
        mooncake(0, 1, 1, [1]),
        '{"timestamp": 1, "input_length": 1, "output_length": 1}',
    ),
    "line 1: hash_ids is not a list": (
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 5}',
    ),
    "no known trace has the columns 'a,b' (known: azure-2023, ": ("a,b", "1,2"),
    "(nearest is batchscope: it also needs at_ns, output_tokens; it knows no at)": (
        '{"at": 1, "prompt_tokens": 1}',
    ),
    "a header and no rows": (AZURE,),
    "line 2: pattern is 'Pareto', not one of": (CLIENTS, "0,600,0.5,1.1,Pareto,0.8,2.0"),
    "line 2: rate is -1.0, below 0": (CLIENTS, "0,600,-1,1.1,Gamma,0.8,2.0"),
}


@pytest.mark.parametrize("why", ODD_FILES)
def test_what_can_not_be_read_is_refused_in_one_sentence_with_file_and_line(
    tmp_path: Path, why: str
) -> None:
    path = write(tmp_path, *ODD_FILES[why])
    with pytest.raises(TraceError) as error:
        read(path)
    text = str(error.value)
    assert text.startswith(str(path))
    assert why in text
    assert "\n" not in text


def test_files_that_are_missing_empty_truncated_or_not_text_are_refused(tmp_path: Path) -> None:
    empty, cut, binary = tmp_path / "empty", tmp_path / "cut.gz", tmp_path / "binary"
    empty.write_bytes(b"")
    packed = gzip.compress("\n".join(mooncake(n, n + 1, 1, []) for n in range(999)).encode())
    cut.write_bytes(packed[: len(packed) // 2])
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, empty, cut, binary):
        with pytest.raises(TraceError, match=str(path)):
            read(path)


@pytest.mark.parametrize(
    ("name", "rows", "rate", "cv"),
    [("azure2023_code", 8819, 2.57, 13.15), ("azure2023_conv", 19366, 5.53, 1.09)],
)
def test_the_azure_traces_read_as_published(
    traces: Path, name: str, rows: int, rate: float, cv: float
) -> None:
    trace = read_trace(traces / f"{name}.csv.gz")
    gaps = np.diff(trace.at_ns)
    assert len(trace) == rows
    assert 1e9 / gaps.mean() == pytest.approx(rate, abs=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.01)


def test_every_published_file_at_hand_is_recognised(traces: Path) -> None:
    contents = [read(path) for path in sorted(traces.glob("*.gz"))]
    assert {type(content).__name__ for content in contents} == {
        "Trace",
        "LengthTable",
        "ClientTable",
    }
    assert all(content.facts["rows_read"] > 0 for content in contents)
