"""Iteration-level scheduling over a paged KV pool: the mechanism under every policy.

schedule() decides a batch, update() books what came out of it. Called by Engine.step, on one
thread. add, schedule, update, preempt, finish and transferred are looked up on the instance at each
call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batchscope.engine.batch import Batch, Member, StopReason
from batchscope.engine.blocks import BlockManager, block_key
from batchscope.engine.config import EngineConfig
from batchscope.engine.hop import Hop
from batchscope.engine.limits import RequestRejected, check_request
from batchscope.engine.policies import POLICIES
from batchscope.engine.sequence import FinishReason, Sequence, Status
from batchscope.engine.totals import Totals


class Scheduler:
    """The waiting queue, the running list and the KV pool, and all that moves between them.

    `running` is in order of admission, `waiting` in order of arrival with preempted requests ahead.
    `live` maps the id of each request that has arrived and not ended. `held` have ended and keep
    slot and blocks, under a policy that wants it so. `kept` have ended here and go on elsewhere:
    their `kept_blocks` (a shared one counts for each) wait to be taken. `clock` gives nanoseconds.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], int]) -> None:
        self.config = config
        self.clock = clock
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.held: list[Sequence] = []
        self.kept: dict[str, Sequence] = {}
        self.kept_blocks = 0
        self.live: dict[str, Sequence] = {}
        self.blocks = BlockManager(
            config.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.policy = POLICIES[config.policy]()
        self.totals = Totals()
        self._steps = 0
        self._admitted_at = -1

    def add(self, seq: Sequence) -> None:
        """Let a request arrive. Raises RequestRejected when it could never run, or runs already."""
        self._check(seq)
        self.live[seq.request_id] = seq
        self.waiting.append(seq)
        self.totals.arrived += 1

    def schedule(self) -> Batch:
        """Decide the next batch: members get blocks now, their tokens are booked by update()."""
        batch = Batch(self._steps, self.policy.budget(self))
        self._steps += 1
        batch.stop = self.policy.fill(batch, self)
        batch.stop_head = self.waiting[0] if self.waiting else None
        self.totals.decided(batch, waiting=len(self.waiting))
        return batch

    def place_running(self, batch: Batch) -> None:
        """Place each running request in order; preemption shortens the list from its end."""
        index = 0
        while index < len(self.running):
            self._place(batch, self.running[index])
            index += 1

    def admit_waiting(self, batch: Batch) -> StopReason | None:
        """Move heads of the queue into the batch; why the next one stays, None when none is left.

        Each needs room for its whole target although only its first chunk is allocated: a request
        admitted on the room of one chunk would be preempted for the next.
        """
        reluctant = self._reluctance(batch)
        stop = None
        while self.waiting and stop is None:
            stop = self.policy.full(batch, self) or reluctant or self._admit(batch)
        return stop

    def update(self, batch: Batch, tokens: dict[str, int]) -> list[Sequence]:
        """Book a batch that ran; `tokens` holds the new token of each request that reached its
        target. Returns those that finished by it. Members that have left meanwhile are skipped.
        """
        now = self.clock()
        finished = []
        for member in batch.members:
            seq = member.seq
            if seq.status is not Status.RUNNING:
                continue
            self._computed(member)
            token = tokens.get(seq.request_id)
            if token is not None and self._emit(seq, token, now):
                finished.append(seq)
        return finished

    def preempt(self, seq: Sequence) -> None:
        """Take a running request's place and blocks; it goes to the front of the queue and will
        recompute what the cache doesn't keep.
        """
        self._leave_running(seq)
        self._release(seq)
        seq.num_computed = 0
        seq.num_preemptions += 1
        seq.status = Status.PREEMPTED
        self.waiting.appendleft(seq)
        self.totals.preemptions += 1

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """End a live request, wherever it stands, and give back its blocks, unless its slot is held
        until the rest of its batch has ended, or another engine is to have them.
        """
        if seq.status is not Status.RUNNING:
            self.waiting.remove(seq)
            self._release(seq)
        elif seq.keeps_kv and reason is FinishReason.LENGTH:
            self.kept[seq.request_id] = seq
            self.kept_blocks += len(seq.block_table)
            self._leave_running(seq)
        elif self.policy.holds_slots:
            self.held.append(seq)
            self._leave_running(seq)
        else:
            self._leave_running(seq)
            self._release(seq)
        seq.status = Status.FINISHED
        seq.finish_reason = reason
        seq.finished_ns = self.clock()
        del self.live[seq.request_id]
        self.totals.ended(reason)
        if seq.on_end is not None:
            seq.on_end(reason)

    def abort(self, request_id: str) -> bool:
        """End a request on its client's behalf; False when no such request is live."""
        seq = self.live.get(request_id)
        if seq is None:
            return False
        self.finish(seq, FinishReason.ABORT)
        return True

    def reserve(self, seq: Sequence) -> bool:
        """Take blocks for a request whose KV another engine offers; False while there is no room.

        DistServe's rule (OSDI 2024): it must fit, and those that were taken and wait for a slot
        hold less than their share of the pool; whoever lost its place here goes first. Blocks are
        those of an admission, so that this will want no more. What the prefix cache has
        (`num_cached` tokens) is shared and needs no hop. Raises RequestRejected as add() does.
        """
        self._check(seq)
        if self.waiting and not self.waiting[0].block_table:
            return False
        if sum(len(other.block_table) for other in self.waiting) >= self.config.backlog_blocks:
            return False
        hit = self._cached_prefix(seq)
        if self._no_room(seq, hit) is not None:
            return False
        self._share(seq, hit)
        self._grow(seq, self._wanted(seq))
        return True

    def unreserve(self, seq: Sequence) -> None:
        """Give back what reserve() took: the KV won't come."""
        self._release(seq)

    def receive(self, seq: Sequence) -> None:
        """The KV of a reserved request has come: it arrives, and later prompts find its blocks."""
        self._seal(seq, 0, seq.received)
        self.add(seq)

    def let_go(self, request_id: str) -> None:
        """Give back the blocks of a kept request: another engine has its KV, or never will."""
        seq = self.kept.pop(request_id)
        self.kept_blocks -= len(seq.block_table)
        self._release(seq)

    def transferred(self, seq: Sequence, hop: Hop) -> None:  # noqa: ARG002  (whose it was)
        """Count a hop of a request's KV that ended here, in or out."""
        self.totals.hopped(hop)

    def _check(self, seq: Sequence) -> None:
        check_request(self.config, seq)
        if seq.request_id in self.live or seq.request_id in self.kept:
            raise RequestRejected(f"{seq.request_id}: this id is in use")

    def _leave_running(self, seq: Sequence) -> None:
        if self.running[-1] is seq:
            self.running.pop()
        else:
            self.running.remove(seq)
        if not self.running:
            while self.held:
                self._release(self.held.pop())

    def _release(self, seq: Sequence) -> None:
        self.blocks.release(seq.block_table)
        seq.block_table = []

    def _reluctance(self, batch: Batch) -> StopReason | None:
        """Why free slots are left free for now; never while nobody runs."""
        if not self.running:
            return None
        if batch.step - self._admitted_at <= self.config.admit_delay:
            return StopReason.ADMIT_DELAY
        if self.config.max_num_seqs - len(self.running) < self.config.admit_min_free:
            return StopReason.ADMIT_MIN_FREE
        return None

    def _admit(self, batch: Batch) -> StopReason | None:
        seq = self.waiting[0]
        hit = self._cached_prefix(seq)
        stop = self._no_room(seq, hit)
        if stop is not None and not self.running and self._bring_forward():
            return None
        if stop is None:
            self._begin(self.waiting.popleft(), hit, batch)
            self._place(batch, seq)
        return stop

    def _bring_forward(self) -> bool:
        """Let one that waits with its pages overtake the head, which waits for just these."""
        ready = next((seq for seq in self.waiting if seq.block_table), None)
        if ready is None:
            return False
        self.waiting.remove(ready)
        self.waiting.appendleft(ready)
        return True

    def _place(self, batch: Batch, seq: Sequence) -> None:
        """Add the next tokens of `seq`, preempting the latest admitted, in the end itself."""
        tokens = min(seq.num_tokens - seq.num_computed, batch.left)
        while not self._grow(seq, seq.num_computed + tokens):
            victim = self.running[-1]
            batch.preempted.append((victim, victim.num_computed))
            self.preempt(victim)
            if victim is seq:
                return
        batch.add(seq, tokens)

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        missing = -(-tokens // self.blocks.block_size) - len(seq.block_table)
        if missing > 0:
            if missing > self.blocks.available:
                return False
            seq.block_table += self.blocks.allocate(missing)
        return True

    def _cached_prefix(self, seq: Sequence) -> list[int]:
        if seq.block_table:  # they came with it
            return seq.block_table
        # the last token is always computed: its logits are what the request came for
        if not self.blocks.caching:
            return []
        full = (seq.num_tokens - 1) // self.blocks.block_size
        return self.blocks.match(self._keys(seq, full))

    def _no_room(self, seq: Sequence, hit: list[int]) -> StopReason | None:
        need = -(-self._wanted(seq) // self.blocks.block_size) - len(hit)
        if need <= 0:
            return None
        room = self.blocks.available - self.blocks.unreferenced(hit)
        if self._backed_up(need - room):
            return StopReason.UNACCEPTED
        if need > room:
            return StopReason.NO_BLOCKS
        if need > room - self.config.watermark_blocks:
            return StopReason.WATERMARK
        return None

    def _wanted(self, seq: Sequence) -> int:
        """Tokens that must have blocks, or room for them, at its admission."""
        return max(seq.num_tokens, self.policy.reserved(self, seq))

    def _backed_up(self, missing: int) -> bool:
        """Whether pages that wait to be taken are too many, or would be the `missing` ones."""
        return self.kept_blocks > self.config.unaccepted_blocks or 0 < missing <= self.kept_blocks

    def _begin(self, seq: Sequence, hit: list[int], batch: Batch) -> None:
        if hit is not seq.block_table:
            self._share(seq, hit)
        seq.target = seq.num_tokens
        if seq.received and not seq.num_preemptions:
            self._grow(seq, seq.received)
            seq.target = seq.num_computed = seq.received
        if seq.status is Status.PREEMPTED:
            batch.resumed.append(seq)
        else:
            self.totals.cached += seq.num_cached
        seq.status = Status.RUNNING
        self.running.append(seq)
        self._grow(seq, self.policy.reserved(self, seq))
        self._admitted_at = batch.step

    def _share(self, seq: Sequence, hit: list[int]) -> None:
        self.blocks.share(hit)
        seq.block_table = hit
        seq.num_cached = seq.num_computed = len(hit) * self.blocks.block_size

    def _computed(self, member: Member) -> None:
        """Book a member's KV: a failed step fills no block."""
        member.seq.num_computed = member.start + member.tokens
        self._seal(member.seq, member.start, member.seq.num_computed)

    def _seal(self, seq: Sequence, start: int, end: int) -> None:
        """Let the blocks be found that KV tokens [start, end) have filled."""
        size = self.blocks.block_size
        first, full = start // size, end // size
        if full > first and self.blocks.caching:
            keys = self._keys(seq, full)
            for index in range(first, full):
                self.blocks.seal(seq.block_table[index], keys[index])

    def _keys(self, seq: Sequence, count: int) -> list[bytes]:
        """The first `count` block keys, each computed once in a request's life."""
        size, keys = self.blocks.block_size, seq.block_keys
        for index in range(len(keys), count):
            parent = keys[-1] if keys else b""
            keys.append(block_key(parent, seq.tokens(index * size, (index + 1) * size)))
        return keys if len(keys) == count else keys[:count]

    def _emit(self, seq: Sequence, token: int, now: int) -> bool:
        seq.output.append(token)
        self.totals.output += 1
        if seq.first_token_ns is None:
            seq.first_token_ns = now
        if seq.on_token is not None:
            seq.on_token(token)
        reason = self._end(seq, token)
        if reason is not None:
            self.finish(seq, reason)
        return reason is not None

    def _end(self, seq: Sequence, token: int) -> FinishReason | None:
        if not seq.ignore_eos and token in self.config.model.eos_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(seq.output) >= seq.max_tokens else None
