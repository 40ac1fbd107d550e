"""The runner with a real model: packs a batch, runs it on CPU or CUDA, samples greedily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from batchscope.engine.attention import Kernel
from batchscope.engine.batch import Batch, Launched, Member
from batchscope.engine.config import EngineConfig
from batchscope.engine.graphs import DecodeSteps
from batchscope.engine.model import Inputs, Llama, rope_table, seed_weights
from batchscope.engine.packing import pack, row_order, singles
from batchscope.engine.paged import Pages, flex_kernel
from batchscope.engine.runner import samples
from batchscope.engine.weights import load_weights


def pick_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA when present, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called `name`; "auto" is bfloat16 on CUDA, float32 on the CPU.

    Raises ValueError for a name that is no floating dtype of torch.
    """
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"{name} is not a floating point dtype")
    return dtype


def pick_kernel(name: str, device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """What reads the pages of decode rows in place, None where they are gathered.

    "auto" is FlexAttention on CUDA, but not for float64, which its kernels don't take.
    """
    if name == "auto":
        name = "flex" if device.type == "cuda" and dtype != torch.float64 else "gather"
    return flex_kernel() if name == "flex" else None


class TorchRunner:
    """A model, of real or of seeded random weights, and the KV cache that block tables point into.

    The cache is [layers, 2, slots, kv_heads, head_dim] and zeroed, for padded slots are read (and
    masked) before anything was written to them. With a `kernel` that reads pages in place single
    tokens are padded to few sizes, which `decodes` launches, and the cache has one more block, for
    the padding. Kernel and model are what the configuration says unless given; a given model is of
    its shape, on its device.
    """

    def __init__(
        self, config: EngineConfig, *, kernel: Kernel | None = None, model: Llama | None = None
    ) -> None:
        self.device = pick_device(config.device)
        dtype = pick_dtype(config.model.dtype, self.device)
        self.model = model or _model(config, self.device, dtype)
        self.rope = rope_table(config.model, config.max_model_len).to(self.device, dtype)
        self.block_size = config.block_size
        kernel = kernel or pick_kernel(config.attention, self.device, dtype)
        blocks = config.num_blocks + (kernel is not None)
        slots = (config.model.num_layers, 2, blocks * config.block_size)
        heads = (config.model.num_kv_heads, config.model.head_dim)
        self.cache = torch.zeros((*slots, *heads), dtype=dtype, device=self.device)
        self.decodes = None if kernel is None else self._steps(config, kernel)

    @torch.inference_mode()
    def run(self, batch: Batch) -> dict[str, int]:
        """Compute the batch and pick each sampling member's likeliest token.

        Reading the tokens is the one wait for the device. Where there is none to read the wait is
        made all the same: to an observer the iteration would end before it was computed.
        """
        members = row_order(batch)
        if not members:
            return {}
        picks, batch.launched = self._launch(members)
        sampling = [member.seq.request_id for member in members if samples(member)]
        if not sampling and self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return dict(zip(sampling, picks.tolist(), strict=True))

    @torch.inference_mode()
    def logits(self, members: list[Member]) -> Tensor:
        """Logits [S, vocab] of the S members, in row_order, that sample; their KV is written."""
        return self._forward(self._packed(members))

    @torch.inference_mode()
    def prepare(self) -> None:
        """Compile and capture now what the first batches would else wait for, on CUDA seconds."""
        if self.decodes is not None:
            self.decodes.prepare()

    @property
    def page_bytes(self) -> int:
        """Bytes of one block: keys and values of all layers."""
        return self._paged().select(2, 0).numel() * self.cache.element_size()

    @torch.inference_mode()
    def read_pages(self, blocks: Sequence[int]) -> bytes:
        """The content of `blocks`, page_bytes each, one after the other; waits for the device."""
        pages = self._paged()[:, :, list(blocks)].movedim(2, 0).contiguous()
        content: bytes = pages.view(torch.uint8).cpu().numpy().tobytes()
        return content

    @torch.inference_mode()
    def write_pages(self, blocks: Sequence[int], content: bytes) -> None:
        """Put what read_pages gave, of an equal model, into `blocks`. Raises ValueError when the
        sizes don't agree.
        """
        if len(content) != len(blocks) * self.page_bytes:
            raise ValueError(f"{len(content)} bytes are not {len(blocks)} x {self.page_bytes}")
        pages = self._paged()
        shape = (len(blocks), *pages.shape[:2], *pages.shape[3:])
        told = torch.frombuffer(bytearray(content), dtype=pages.dtype).view(shape)
        pages[:, :, list(blocks)] = told.to(self.device).movedim(0, 2)

    def _paged(self) -> Tensor:
        """The cache as [layers, 2, blocks, block_size, kv_heads, head_dim]."""
        layers, both, _, *rest = self.cache.shape
        return self.cache.view(layers, both, -1, self.block_size, *rest)

    def _steps(self, config: EngineConfig, kernel: Kernel) -> DecodeSteps:
        width = min(-(-config.max_model_len // config.block_size), config.num_blocks)
        return DecodeSteps(
            self._forward,
            pages=Pages(config.block_size, config.num_blocks, width),
            most=config.max_num_seqs,
            device=self.device,
            kernel=kernel,
        )

    def _launch(self, members: list[Member]) -> tuple[Tensor, Launched]:
        """The token of each member that samples, in order, and what was launched for them."""
        count, steps = singles(members), self.decodes
        padding = 0 if steps is None else steps.padding(count)
        tokens = sum(member.tokens for member in members) + padding
        if steps is None or count < len(members):
            return self.logits(members).argmax(dim=-1), Launched(tokens, graph=False)
        picks = steps.picks(steps.filled(members))[:count]
        keep = [row for row, member in enumerate(members) if samples(member)]
        told = picks if len(keep) == count else picks[keep]
        return told, Launched(tokens, graph=steps.graphs)

    def _packed(self, members: list[Member]) -> Inputs:
        count, decodes = singles(members), None
        if self.decodes is not None and count:
            decodes = self.decodes.filled(members[:count])
            decodes.settle()
        return pack(members, block_size=self.block_size, device=self.device, decodes=decodes)

    def _forward(self, inputs: Inputs) -> Tensor:
        out: Tensor = self.model(inputs, self.rope, self.cache)
        return out


def _model(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Llama:
    """On `device`, with the folder's weights or seeded random ones."""
    with torch.device("meta"):
        model = Llama(config.model).to(dtype)
    model.to_empty(device=device).eval()
    if config.weights is None:
        seed_weights(model, seed=config.seed)
    else:
        load_weights(model, Path(config.weights))
    return model
