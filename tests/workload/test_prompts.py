"""Token ids: repeatable, and shared exactly where the trace says so."""

from hypothesis import given
from hypothesis import strategies as st

from batchscope.workload.prompts import prompt_ids
from batchscope.workload.trace import Arrival


def arrival(
    ordinal: int, prompt_tokens: int, prefix: tuple[int, ...] | None = None, block_tokens: int = 16
) -> Arrival:
    return Arrival(ordinal, 0, prompt_tokens, 1, prefix=prefix, block_tokens=block_tokens)


def ids(
    ordinal: int,
    prompt_tokens: int,
    prefix: tuple[int, ...] | None = None,
    *,
    vocab: int = 32_000,
    seed: int = 1,
) -> list[int]:
    return prompt_ids(arrival(ordinal, prompt_tokens, prefix), vocab=vocab, seed=seed)


def shared_length(one: list[int], two: list[int]) -> int:
    length = min(len(one), len(two))
    return next((n for n in range(length) if one[n] != two[n]), length)


def test_the_same_block_is_the_same_tokens_in_two_prompts() -> None:
    one, two = ids(1, 100, (7, 8, 9)), ids(2, 90, (7, 8, 10))
    assert shared_length(one, two) == 32


def test_a_last_block_that_is_not_full_holds_the_first_tokens_of_the_block() -> None:
    assert ids(1, 20, (7, 8)) == ids(2, 100, (7, 8, 9))[:20]


def test_a_block_does_not_depend_on_what_stands_before_it() -> None:
    assert ids(1, 32, (7, 8))[16:] == ids(2, 16, (8,))


def test_requests_that_share_nothing_share_no_token_sequence() -> None:
    assert shared_length(ids(1, 500), ids(2, 500)) == 0
    assert ids(1, 500, ()) == ids(1, 500)


def test_a_request_and_a_block_of_the_same_number_have_nothing_in_common() -> None:
    assert shared_length(ids(7, 16), ids(1, 16, (7,))) == 0


def test_another_seed_is_another_text() -> None:
    assert shared_length(ids(1, 64, (7,)), ids(1, 64, (7,), seed=2)) == 0


def test_tokens_are_spread_over_the_vocabulary() -> None:
    tokens = ids(1, 100_000, vocab=1000)
    counts = [tokens.count(token) for token in (0, 1, 500, 999)]
    assert min(counts) > 50
    assert max(counts) < 160
    assert max(tokens) == 999


def test_any_integer_is_a_block_id() -> None:
    assert len(ids(1, 64, (-1, 2**70, 0))) == 64
    assert ids(1, 16, (-1,)) != ids(1, 16, (1,))


@given(
    prompt=st.integers(1, 200),
    blocks=st.lists(st.integers(0, 5), max_size=20),
    vocab=st.integers(2, 10**6),
    block_tokens=st.integers(1, 64),
)
def test_a_prompt_has_its_length_and_stays_in_the_vocabulary(
    prompt: int, blocks: list[int], vocab: int, block_tokens: int
) -> None:
    request = arrival(3, prompt, tuple(blocks), block_tokens)
    tokens = prompt_ids(request, vocab=vocab, seed=9)
    assert len(tokens) == prompt
    assert all(type(token) is int and 0 <= token < vocab for token in tokens)
    assert tokens == prompt_ids(request, vocab=vocab, seed=9)
