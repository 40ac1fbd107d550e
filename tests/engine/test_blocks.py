"""The KV pool: counts that always sum, content that is found again, eviction in order of use."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchscope.engine.blocks import BlockManager, block_key


def sealed(blocks: BlockManager, keys: list[bytes]) -> list[int]:
    table = blocks.allocate(len(keys))
    for block, key in zip(table, keys, strict=True):
        blocks.seal(block, key)
    return table


def chain(*contents: int) -> list[bytes]:
    keys = [b""]
    for content in contents:
        keys.append(block_key(keys[-1], [content]))
    return keys[1:]


def test_a_fresh_pool_is_all_free() -> None:
    blocks = BlockManager(8, 16)
    assert (blocks.total, blocks.free, blocks.evictable, blocks.used) == (8, 8, 0, 0)


def test_released_content_is_evictable_and_unsealed_blocks_are_free() -> None:
    blocks = BlockManager(8, 16)
    table = sealed(blocks, chain(1, 2)) + blocks.allocate(1)
    assert (blocks.free, blocks.evictable, blocks.used) == (5, 0, 3)
    blocks.release(table)
    assert (blocks.free, blocks.evictable, blocks.used) == (6, 2, 0)


def test_a_prefix_is_found_up_to_the_first_block_that_differs() -> None:
    blocks = BlockManager(8, 16)
    table = sealed(blocks, chain(1, 2, 3))
    assert blocks.match(chain(1, 2, 9)) == table[:2]
    assert blocks.match(chain(2, 3)) == []


def test_equal_tokens_after_different_prefixes_are_different_content() -> None:
    assert block_key(b"", [7, 7]) != block_key(block_key(b"", [1, 1]), [7, 7])
    assert block_key(b"", [1, 2]) != block_key(b"", [2, 1])


def test_a_shared_block_counts_once_and_stays_until_its_last_holder_leaves() -> None:
    blocks = BlockManager(8, 16)
    table = sealed(blocks, chain(1))
    blocks.share(table)
    assert blocks.used == 1
    blocks.release(table)
    assert blocks.used == 1
    blocks.release(table)
    assert (blocks.used, blocks.evictable) == (0, 1)


def test_free_blocks_are_taken_before_cached_content_is_evicted() -> None:
    blocks = BlockManager(4, 16)
    blocks.release(sealed(blocks, chain(1, 2)))
    blocks.allocate(2)
    assert blocks.match(chain(1, 2)) != []
    assert (blocks.free, blocks.evictable) == (0, 2)


def test_the_end_of_the_least_recently_released_chain_is_evicted_first() -> None:
    blocks = BlockManager(4, 16)
    old, new = chain(1, 2), chain(3, 4)
    tables = sealed(blocks, old), sealed(blocks, new)
    for table in tables:
        blocks.release(table)
    blocks.allocate(1)
    assert len(blocks.match(old)) == 1
    assert len(blocks.match(new)) == 2


def test_a_hit_renews_content() -> None:
    blocks = BlockManager(2, 16)
    first, second = chain(1), chain(2)
    for keys in (first, second):
        blocks.release(sealed(blocks, keys))
    hit = blocks.match(first)
    blocks.share(hit)
    blocks.release(hit)
    blocks.allocate(1)
    assert blocks.match(first)
    assert not blocks.match(second)


def test_content_computed_twice_keeps_its_first_block() -> None:
    blocks = BlockManager(4, 16)
    first, second = sealed(blocks, chain(1)), sealed(blocks, chain(1))
    assert blocks.match(chain(1)) == first
    blocks.release(second)
    assert blocks.free == 3


def test_without_caching_nothing_is_ever_found() -> None:
    blocks = BlockManager(4, 16, enable_prefix_caching=False)
    blocks.release(sealed(blocks, chain(1, 2)))
    assert (blocks.match(chain(1, 2)), blocks.free) == ([], 4)


def test_more_than_available_is_refused_loudly() -> None:
    with pytest.raises((IndexError, KeyError)):
        BlockManager(2, 16).allocate(3)


class Pool(RuleBasedStateMachine):
    """Requests over few prompts, against a recount of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(12, 4)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=5), tail=st.integers(0, 2))
    def enter(self, prompt: list[int], tail: int) -> None:
        keys = chain(*prompt)
        hit = self.blocks.match(keys)
        assert [self.content[block] for block in hit] == keys[: len(hit)]
        missing = len(keys) - len(hit) + tail
        if missing > self.blocks.available - self.blocks.unreferenced(hit):
            return
        self.blocks.share(hit)
        new = self.blocks.allocate(missing)
        assert not set(new) & {block for table in self.tables for block in table}
        self.tables.append(hit + new)
        self.fill(new, keys[len(hit) :])

    def fill(self, new: list[int], keys: list[bytes]) -> None:
        for block in new:
            self.content.pop(block, None)
        for block, key in zip(new, keys, strict=False):
            self.content[block] = key
            self.blocks.seal(block, key)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.blocks.release(self.tables.pop(index))

    @invariant()
    def counts_are_those_of_a_recount(self) -> None:
        held = Counter(block for table in self.tables for block in table)
        assert self.blocks.used == len(held)
        assert self.blocks.used + self.blocks.evictable + self.blocks.free == 12
        assert min(self.blocks.free, self.blocks.evictable) >= 0

    def teardown(self) -> None:
        for table in self.tables:
            self.blocks.release(table)
        assert self.blocks.used == 0


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
