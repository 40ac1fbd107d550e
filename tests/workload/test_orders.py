"""Requests as they are sent: lengths, what is shared, and orders made ahead of their instant."""

import json
from typing import Any

import pytest

from batchscope.workload.orders import Ahead, Dialect, Order
from batchscope.workload.trace import Arrival

BLOCK = 32


def arrival(ordinal: int, prefix: tuple[int, ...], *, prompt: int = 5 * BLOCK) -> Arrival:
    return Arrival(ordinal, ordinal, prompt, 7, prefix=prefix, block_tokens=BLOCK, model="m")


def sent(one: Arrival, **changes: Any) -> Any:
    settings: dict[str, Any] = {"model": None, "run": "r", "vocab": 50_000} | changes
    return json.loads(Dialect(**settings).order(one).body)


def common(first: Any, second: Any) -> int:
    """Length of the common beginning."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@pytest.mark.parametrize("shared", [0, 1, 3])
def test_requests_share_exactly_the_tokens_of_their_common_blocks(shared: int) -> None:
    same = tuple(range(shared))
    first = sent(arrival(0, (*same, 100, 101)))["prompt"]
    second = sent(arrival(1, (*same, 200, 201)))["prompt"]
    assert len(first) == len(second) == 5 * BLOCK
    assert common(first, second) == shared * BLOCK


@pytest.mark.parametrize(
    ("spelled", "text"),
    [("text", lambda body: body["prompt"]), ("chat", lambda body: body["messages"][0]["content"])],
)
def test_as_text_a_word_stands_for_a_token_and_shared_blocks_are_shared_words(
    spelled: str, text: Any
) -> None:
    first, second = (
        text(sent(arrival(n, (1, 2, 10 + n)), prompt=spelled)).split(" ") for n in (0, 1)
    )
    assert len(first) == 5 * BLOCK
    assert 2 * BLOCK <= common(first, second) < 2 * BLOCK + 8  # 93 words: the next may agree


def test_extensions_ask_for_exact_lengths_and_plain_openai_does_without() -> None:
    one = arrival(3, ())
    full, plain = sent(one), sent(one, extensions=False)
    assert (full["max_tokens"], full["stream"]) == (7, True)
    assert (full["ignore_eos"], full["return_token_ids"]) == (True, True)
    assert full.keys() - plain.keys() == {"ignore_eos", "return_token_ids"}
    assert plain["stream_options"] == {"include_usage": True}


def test_the_model_is_the_one_that_is_said_or_the_traces_own() -> None:
    assert sent(arrival(0, ()))["model"] == "m"
    assert sent(arrival(0, ()), model="other")["model"] == "other"
    assert "model" not in sent(arrival(0, ())._replace(model=None))


def test_every_request_has_an_id_of_its_run_and_its_place() -> None:
    order = Dialect(None, "run7").order(arrival(4, ()))
    assert order.request_id == order.headers["X-Request-Id"] == "run7-4"


def order_of(one: Arrival) -> Order:
    return Order(str(one.ordinal), "/", {}, b"x" * 10)


def test_orders_are_made_ahead_up_to_a_bound_and_come_in_their_order() -> None:
    made = []

    def make(one: Arrival) -> Order:
        made.append(one.ordinal)
        return order_of(one)

    ahead = Ahead((arrival(n, ()) for n in range(6)), make, most_bytes=25)
    ahead.fill()
    assert made == [0, 1, 2]  # the third was begun while there was room
    assert [ahead.take().request_id for _ in range(5)] == ["0", "1", "2", "3", "4"]
    assert ahead.make_one()
    assert not ahead.make_one()
    assert ahead.take().request_id == "5"
