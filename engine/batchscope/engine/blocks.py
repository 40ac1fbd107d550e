"""The KV pool as numbers: which block holds what, who refers to it, what may be evicted.

Used by the scheduler alone. No memory lives here; a runner maps block b to slots
[b * block_size, (b + 1) * block_size) of its own tensors.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name of a full block's content: its tokens and, through `parent`, all tokens before it.

    128 bits of BLAKE2b rather than hash(): a collision would hand out another prompt's KV.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockManager:
    """Reference counts and a content index over `num_blocks` blocks.

    A block is *used* (someone refers to it), *evictable* (sealed under a key, nobody refers to it,
    least recently used first) or *free* (holds nothing worth keeping). The three sum to `total`.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        self.total = num_blocks
        self.block_size = block_size
        self.caching = enable_prefix_caching
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        # not a dict: finding its first key is O(n) after many removals at the front
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Blocks that hold nothing: never used, or released without sealed content."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Sealed blocks that nobody refers to: a later prompt may still hit them."""
        return len(self._evictable)

    @property
    def used(self) -> int:
        """Blocks that some request refers to, shared ones counted once."""
        return self.total - len(self._free) - len(self._evictable)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free) + len(self._evictable)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest prefix of `keys` that is in the pool; takes no reference."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def unreferenced(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` sharing would take out of `available`."""
        return sum(self._refs[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference to each matched block."""
        for block in blocks:
            self._refs[block] += 1
            self._evictable.pop(block, None)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, evicting only when none is free.

        Raises IndexError or KeyError beyond `available`: callers ask first.
        """
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            del self._by_key[self._key_of.pop(block)]
        self._refs[block] = 1
        return block

    def seal(self, block: int, key: bytes) -> None:
        """Let later prompts find this full block; the first block of a content keeps the key."""
        if self.caching and key not in self._by_key:
            self._by_key[key] = block
            self._key_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each block of a table, given in table order.

        The end of the chain becomes evictable first: a block is of no use without those before it.
        """
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._retire(block)

    def _retire(self, block: int) -> None:
        if block in self._key_of:
            self._evictable[block] = None
        else:
            self._free.append(block)
