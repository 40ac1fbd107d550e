"""Batches of single tokens: padded to few sizes and, on CUDA, launched as one graph each.

Used by torch_runner alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from batchscope.engine.attention import Kernel
from batchscope.engine.batch import Member
from batchscope.engine.model import Inputs
from batchscope.engine.paged import DecodeRows, Pages, padded_size

WARM_UPS = 3
"""Runs before a capture: they compile, choose algorithms and allocate workspaces."""
Step = Callable[[], Tensor]


class DecodeSteps:
    """The buffers of each padded size up to `most` rows, and the step that computes them.

    `forward` gives the logits of all rows. Made when first needed: on CUDA seconds per size.
    """

    def __init__(
        self,
        forward: Callable[[Inputs], Tensor],
        *,
        pages: Pages,
        most: int,
        device: torch.device,
        kernel: Kernel,
    ) -> None:
        self._forward, self._most = forward, most
        self._pages, self._device, self._kernel = pages, device, kernel
        self._rows: dict[int, DecodeRows] = {}
        self._steps: dict[int, Step] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def graphs(self) -> bool:
        """Whether a step is a graph."""
        return self._pool is not None

    def padding(self, count: int) -> int:
        """Rows beside `count` real ones; none where there is no row at all."""
        return padded_size(count, most=self._most) - count if count else 0

    def filled(self, members: Sequence[Member]) -> DecodeRows:
        """Rows that hold `members`, of one token each, and padding."""
        rows = self._sized(padded_size(len(members), most=self._most))
        rows.fill(members)
        return rows

    def picks(self, rows: DecodeRows) -> Tensor:
        """The likeliest token of each row; the next step of this size overwrites it."""
        if rows.size not in self._steps:
            self._steps[rows.size] = self._made(rows)
        return self._steps[rows.size]()

    def prepare(self) -> None:
        """Make every step now. Largest first: the others then fit into its memory."""
        sizes = {padded_size(rows + 1, most=self._most) for rows in range(self._most)}
        for size in sorted(sizes, reverse=True):
            rows = self._sized(size)
            rows.fill([])
            self.picks(rows)

    def _sized(self, size: int) -> DecodeRows:
        if size not in self._rows:
            self._rows[size] = DecodeRows(
                size, pages=self._pages, device=self._device, kernel=self._kernel
            )
        return self._rows[size]

    def _made(self, rows: DecodeRows) -> Step:
        def step() -> Tensor:
            rows.settle()
            return self._forward(rows.inputs).argmax(dim=-1)

        return step if self._pool is None else captured(step, pool=self._pool)


def captured(step: Step, *, pool: Any) -> Step:
    """`step` as a CUDA graph, whose replay gives the same tensor, overwritten.

    All that it reads and writes must stay in place; graphs of one `pool` (graph_pool_handle) share
    their memory, so only one may be in flight. Raises what the device raises.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = step()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
