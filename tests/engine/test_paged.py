"""Decode rows that attend their pages in place: padding, page lists, the same tokens.

On the CPU the pages are read by a plain reference, once by the compiled kernel; what only a graph
can get wrong needs a device.
"""

from __future__ import annotations

import shutil
from array import array
from typing import Any

import pytest
import torch
from bench.references import listed_attention
from tests.support.served_batches import serve

from batchscope.engine.batch import Batch, Member
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.graphs import DecodeSteps
from batchscope.engine.packing import pack
from batchscope.engine.paged import DecodeRows, Pages, flex_kernel, padded_size, told_rows
from batchscope.engine.policies import POLICIES
from batchscope.engine.sequence import Sequence
from batchscope.engine.torch_runner import TorchRunner, pick_kernel

MODEL = ModelConfig(dtype="float64", num_layers=3)
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def config(**changes: Any) -> EngineConfig:
    base: dict[str, Any] = {"model": MODEL, "num_blocks": 400, "max_model_len": 512}
    return EngineConfig(device="cpu", **(base | changes))


def in_place(settings: EngineConfig) -> Engine:
    return Engine(settings, runner=TorchRunner(settings, kernel=listed_attention))


def member(blocks: list[int], start: int, last: int = 9) -> Member:
    seq = Sequence("a", [1] * start + [last], 4, arrival_ns=0)
    seq.block_table = blocks
    return Member(seq, start, 1, is_prefill=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_blocks": 24, "max_num_seqs": 11},
        {"max_num_batched_tokens": 7, "num_blocks": 12, "max_num_seqs": 6},
        {"block_size": 1, "num_blocks": 300},
        {"block_size": 64, "num_blocks": 12},
        *({"policy": policy, "max_model_len": 128} for policy in sorted(POLICIES)),
    ],
    ids=str,
)
def test_pages_read_in_place_give_the_same_tokens_as_gathered_ones(
    changes: dict[str, Any],
) -> None:
    settings = config(**changes)
    gathered, _ = serve(Engine(settings), 14)
    found, batches = serve(in_place(settings), 14)
    assert found == gathered
    assert any(batch.num_prefill_tokens == 0 for batch in batches)


def test_a_batch_says_how_many_tokens_were_launched_for_it() -> None:
    _, gathered = serve(Engine(config(max_num_batched_tokens=48)), 14)
    _, padded = serve(in_place(config(max_num_batched_tokens=48, max_num_seqs=12)), 14)
    for batch in gathered:
        assert batch.launched is not None
        assert (batch.launched.tokens, batch.launched.graph) == (batch.num_tokens, False)
    sizes = set()
    for batch in padded:
        assert batch.launched is not None
        alone = sum(member.tokens == 1 for member in batch.members)
        wanted = next((size for size in (1, 2, 4, 8, 12) if size >= alone), 0) if alone else 0
        assert batch.launched.tokens == batch.num_tokens - alone + wanted
        sizes.add(wanted)
    assert {4, 8, 12} <= sizes


def test_padding_writes_to_nobodys_page() -> None:
    engine = in_place(config(num_blocks=40))
    for name in "abc":
        engine.submit(name, [5] * 20, 6)
    used: set[int] = set()
    while engine.has_work():
        engine.step()
        used |= {block for seq in engine.scheduler.running for block in seq.block_table}
    runner = engine.runner
    assert isinstance(runner, TorchRunner)
    pages = runner.cache.view(3, 2, 41, 16, -1)
    written = {block for block in range(41) if pages[:, :, block].any()}
    assert written == used | {40}


def test_rows_are_padded_to_powers_of_two_up_to_the_most_there_can_be() -> None:
    sizes = [padded_size(rows, most=12) for rows in range(1, 13)]
    assert sizes == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]


def test_what_a_step_tells_the_device_is_rows_then_their_blocks_then_padding() -> None:
    pages = Pages(block_size=4, num_blocks=9, width=3)
    members = [member([7, 2], start=5, last=33), member([4], start=0, last=44)]
    assert told_rows(members, 3, pages) == array(
        "i", [33, 44, 0, 5, 0, 0, 2 * 4 + 1, 16, 36, 7, 2, 0, 4, 0, 0, 9, 0, 0]
    )


def test_a_blocks_list_longer_than_a_request_can_be_is_cut() -> None:
    pages = Pages(block_size=4, num_blocks=9, width=2)
    assert told_rows([member([7, 2, 5], start=5)], 1, pages)[3:].tolist() == [7, 2]


def test_a_row_lists_its_pages_and_hides_the_tail_of_the_last() -> None:
    rows = DecodeRows(
        2, pages=Pages(block_size=4, num_blocks=9, width=3), device=CPU, kernel=listed_attention
    )
    rows.fill([member([7, 2], start=5)])
    rows.settle()
    (part,) = rows.inputs.parts
    mask = part.mask  # type: ignore[attr-defined]
    assert mask.kv_num_blocks.flatten().tolist() == [2, 1]
    assert mask.kv_indices[0, 0, 0, :2].tolist() == [7, 2]
    assert mask.kv_indices[1, 0, 0, :1].tolist() == [9]
    listed = torch.tensor([28, 29, 30, 31, 8, 9, 10, 11])
    zero = torch.tensor(0)
    assert mask.mask_mod(zero, zero, zero, listed).tolist() == [True] * 6 + [False] * 2
    assert mask.shape == (2, 1, 1, 40)


def test_buffers_stay_where_they_are_from_step_to_step() -> None:
    """A captured graph has their addresses in it."""
    pages = Pages(block_size=4, num_blocks=9, width=3)
    rows = DecodeRows(2, pages=pages, device=CPU, kernel=listed_attention)

    def addresses() -> list[int]:
        inputs = rows.inputs
        mask = inputs.parts[0].mask  # type: ignore[attr-defined]
        parts = (inputs.ids, inputs.positions, inputs.slots, mask.kv_num_blocks, mask.kv_indices)
        return [part.data_ptr() for part in parts]

    before = addresses()
    for start in (5, 3):
        rows.fill([member([7, 2], start=start)])
        rows.settle()
    assert addresses() == before
    assert rows.inputs.positions.tolist() == [3, 0]


def test_every_size_can_be_made_ahead_and_leaves_the_pool_alone() -> None:
    runner = TorchRunner(config(max_num_seqs=5, num_blocks=8), kernel=listed_attention)
    runner.prepare()
    steps = runner.decodes
    assert isinstance(steps, DecodeSteps)
    assert sorted(steps._steps) == [1, 2, 4, 5]
    assert not runner.cache[:, :, : 8 * 16].any()


def test_chunks_stand_behind_the_padded_rows() -> None:
    pages = Pages(block_size=4, num_blocks=9, width=3)
    rows = DecodeRows(2, pages=pages, device=CPU, kernel=listed_attention)
    one = member([7, 2], start=5, last=33)
    seq = Sequence("b", [1, 2, 3], 4, arrival_ns=0)
    seq.block_table = [4]
    rows.fill([one])
    rows.settle()
    chunk = Member(seq, 0, 3, is_prefill=True)
    packed = pack([one, chunk], block_size=4, device=CPU, decodes=rows)
    assert packed.ids.tolist() == [33, 0, 1, 2, 3]
    assert packed.slots.tolist() == [9, 36, 16, 17, 18]
    assert packed.sample.tolist() == [0, 4]
    assert [part.rows for part in packed.parts] == [slice(0, 2), slice(2, 5)]


def test_single_tokens_of_which_none_is_the_last_give_no_logits() -> None:
    """A prompt whose chunk is one token long."""
    runner = TorchRunner(config(num_blocks=8), kernel=listed_attention)
    seq = Sequence("a", [5] * 9, 4, arrival_ns=0)
    seq.block_table = [5]
    chunk = Member(seq, 3, 1, is_prefill=True)
    assert runner.logits([chunk]).shape == (0, 512)
    assert runner.run(Batch(0, None, members=[chunk])) == {}
    last = Member(seq, 8, 1, is_prefill=True)
    assert len(runner.run(Batch(0, None, members=[last, chunk]))) == 1


def test_pages_move_to_another_runner_and_the_request_goes_on_there() -> None:
    here, there = (TorchRunner(config(num_blocks=8)) for _ in range(2))
    seq = Sequence("a", list(range(40)), 4, arrival_ns=0)
    seq.block_table = [5, 1, 3]
    here.logits([Member(seq, 0, 40, is_prefill=True)])
    seq.output.append(7)
    expected = here.logits([Member(seq, 40, 1, is_prefill=False)])
    content = here.read_pages([5, 1, 3])
    assert len(content) == 3 * here.page_bytes == 3 * 16 * 3 * 2 * 2 * 16 * 8
    there.write_pages([0], content[: here.page_bytes])
    there.write_pages([6, 2], content[here.page_bytes :])
    seq.block_table = [0, 6, 2]
    assert torch.equal(there.logits([Member(seq, 40, 1, is_prefill=False)]), expected)
    assert not there.cache[:, :, 16:32].any()
    with pytest.raises(ValueError, match="are not 2 x"):
        there.write_pages([0, 6], content)


def test_pages_are_read_in_place_where_the_device_has_a_kernel_for_it() -> None:
    cuda = torch.device("cuda")
    assert pick_kernel("auto", cuda, torch.bfloat16) is flex_kernel()
    assert pick_kernel("auto", cuda, torch.float64) is None
    assert pick_kernel("auto", CPU, torch.float32) is None
    assert pick_kernel("flex", CPU, torch.float32) is flex_kernel()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="needs AVX2")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_the_compiled_kernel_reads_the_same_pages_as_the_reference() -> None:
    pages = Pages(block_size=16, num_blocks=40, width=8)
    rows = DecodeRows(5, pages=pages, device=CPU, kernel=flex_kernel())
    tables, starts = torch.split(torch.randperm(40), 8), (0, 16, 32, 89, 127)
    rows.fill([member(t.tolist(), start) for t, start in zip(tables, starts, strict=True)])
    with torch.inference_mode():
        rows.settle()
        (part,) = rows.inputs.parts
        q, cache = torch.randn(5, 4, 16), torch.randn(2, pages.slots, 2, 16)
        found = part.attend(q, cache)
        expected = part._replace(kernel=listed_attention).attend(q, cache)  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
