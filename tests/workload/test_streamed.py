"""Streams of several servers' habits: what counts as a token, and what as an error."""

import json
from typing import Any

import pytest

from batchscope.workload.outcome import Outcome
from batchscope.workload.streamed import Stream, StreamError
from batchscope.workload.trace import Arrival


def heard(*events: Any, cut: int = 10**6) -> tuple[Outcome, Stream]:
    """Each event is read at 10, 20, ...; `cut` bytes at a time."""
    outcome = Outcome(Arrival(0, 0, 1, 1), "r-0", 0)
    stream = Stream(outcome)
    for at, event in enumerate(events, start=1):
        text = event if isinstance(event, str) else f"data: {json.dumps(event)}\r\n\r\n"
        data = text.encode()
        for start in range(0, len(data), cut):
            stream.take(10 * at, data[start : start + cut])
    return outcome, stream


def piece(**choice: Any) -> dict[str, Any]:
    return {"id": "cmpl-9", "choices": [{"index": 0, **choice}]}


def delta(**said: Any) -> dict[str, Any]:
    return piece(delta=said)


def test_what_is_of_another_type_than_agreed_does_no_harm() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": "5", "completion_tokens": 2.0}}
    end = {"id": 7, "error": None, "choices": [{"text": "a", "finish_reason": 3}]}
    outcome, stream = heard("data:\n\n", end, usage, "data: [DONE]\n\n")
    assert (outcome.answer_id, outcome.finish_reason, stream.done) == ("7", "3", True)
    assert outcome.prompt_tokens is outcome.output_tokens is None
    half, _ = heard('data: {"id": "x\\ud800", "choices": [{"finish_reason": "\\udfff"}]}\n\n')
    assert (half.answer_id, half.finish_reason) == ("x?", "?")
    with pytest.raises(StreamError, match="makes no sense"):
        heard("data: " + "[" * 100_000 + "\n\n")


@pytest.mark.parametrize("cut", [1, 7, 10**6])
def test_text_pieces_count_once_each_however_the_bytes_are_cut(cut: int) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    end = piece(text="", finish_reason="length")
    outcome, stream = heard(
        piece(text="a"), piece(text="b c"), end, usage, "data: [DONE]\n\n", cut=cut
    )
    assert list(outcome.token_ns) == [10, 20]
    assert (outcome.prompt_tokens, outcome.output_tokens) == (5, 3)
    assert (outcome.finish_reason, outcome.answer_id, stream.done) == ("length", "cmpl-9", True)


def test_ids_say_how_many_tokens_a_piece_brings_text_or_not() -> None:
    outcome, _ = heard(piece(text="", token_ids=[4]), piece(text="abc", token_ids=[5, 6, 7]))
    assert list(outcome.token_ns) == [10, 20, 20, 20]
    assert outcome.gaps_ns == [10, 0, 0]


def test_a_chats_first_piece_names_the_speaker_and_is_no_token() -> None:
    outcome, _ = heard(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="yes"),
        delta(tool_calls=[{"function": {"name": "f"}}]),
        delta(),
    )
    assert list(outcome.token_ns) == [20, 30, 40]


def test_comments_and_other_fields_of_the_stream_are_passed_over() -> None:
    outcome, _ = heard(": keep-alive\n\n", "event: x\nid: 1\n", piece(text="a"))
    assert list(outcome.token_ns) == [30]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"error": {"message": "out of memory"}}, "the server says: out of memory"),
        ({"error": "gone"}, "the server says: gone"),
        ("data: {nonsense\n", "makes no sense"),
        ("data: [1]\n", "makes no sense"),
        ("data: null\n", "makes no sense"),
        ({"choices": [3]}, "makes no sense"),
    ],
)
def test_errors_within_the_stream_are_said(event: Any, why: str) -> None:
    with pytest.raises(StreamError, match=why):
        heard(event)
