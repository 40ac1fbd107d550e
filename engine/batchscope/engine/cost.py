"""A runner without a model: each batch takes the time that a cost table says, then it "samples".

The same scheduler runs above it, paced by the clock it is given: the wall's or a virtual one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from batchscope.engine.batch import Batch, Member
from batchscope.engine.runner import samples


@dataclass(frozen=True)
class CostTable:
    """Time of one iteration: fixed + max(floor, tokens x per_token) + context x per_kv_token.

    `context` sums, over the members, the KV tokens each attends: what it had plus what it adds.
    """

    name: str
    fixed_ns: int
    floor_ns: int
    per_token_ns: int
    per_kv_token_ns: int

    def price_ns(self, batch: Batch) -> int:
        """Nanoseconds that `batch` takes."""
        context = sum(member.start + member.tokens for member in batch.members)
        work = max(self.floor_ns, self.per_token_ns * batch.num_tokens)
        return self.fixed_ns + work + self.per_kv_token_ns * context


# A roofline of a 7 B model with grouped-query attention (7.24 B parameters, 32 layers, 8 KV heads
# of 128, bfloat16) on an A100-40GB: weights 14.5 GB / 1.555 TB/s = 9.3 ms; 2 x 7.24 GFLOP a token
# at two thirds of 312 TFLOP/s = 0.07 ms; KV 131,072 B a token / 1.555 TB/s = 0.084 us. The fixed
# 1 ms stands for launch and host work.
SEVEN_B_A100 = CostTable(
    name="7b-gqa-a100-40gb",
    fixed_ns=1_000_000,
    floor_ns=9_300_000,
    per_token_ns=70_000,
    per_kv_token_ns=85,
)


class CostRunner:
    """Waits as long as `table` says; `clock` reads nanoseconds, `sleep` takes seconds.

    Tokens depend on a request's own last token and position alone, so no schedule changes them,
    and are never 0: a request ends by its length.
    """

    def __init__(
        self,
        table: CostTable = SEVEN_B_A100,
        *,
        vocab_size: int = 512,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.table = table
        self._modulus = vocab_size - 1
        self._clock = clock
        self._sleep = sleep

    def run(self, batch: Batch) -> dict[str, int]:
        """Sample, then wait for the rest of the batch's price."""
        ends_at = self._clock() + self.table.price_ns(batch)
        tokens = {m.seq.request_id: self._sample(m) for m in batch.members if samples(m)}
        self._sleep(max(0, ends_at - self._clock()) / 1e9)
        return tokens

    def _sample(self, member: Member) -> int:
        seq = member.seq
        last = (seq.output or seq.prompt)[-1]
        return 1 + (31 * last + 7 * seq.num_tokens) % self._modulus
