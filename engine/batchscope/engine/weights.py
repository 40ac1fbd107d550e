"""Tensors of a local folder of safetensors into a model. Used by torch_runner alone.

The format: u64 length of a JSON header, the header {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from batchscope.engine.checkpoint import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
MOST_HEADER_BYTES = 100_000_000


def load_weights(model: nn.Module, folder: Path) -> None:
    """Fill every parameter of `model` from the folder's safetensors, cast to the model's dtype.

    Raises CheckpointError when a tensor is missing, left over or of another shape.
    """
    parameters = dict(model.named_parameters())
    missing = set(parameters)
    for name, tensor in _folder_tensors(folder):
        parameter = parameters.get(name)
        if parameter is None:
            if _is_expected(name):
                continue
            raise CheckpointError(f"{folder}: this model has no {name}")
        if parameter.shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(parameter.shape)}"
            raise CheckpointError(f"{folder}: {name} is {shapes}")
        parameter.data.copy_(tensor)
        missing.discard(name)
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing: {min(missing)}, ...")


def _is_expected(name: str) -> bool:
    """A head that is tied to the embedding is often stored too; old Llamas store frequencies."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def _folder_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors under our names, which are theirs without the outermost module."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no .safetensors file")
    for path in files:
        for name, tensor in _file_tensors(path):
            yield name.removeprefix("model."), tensor


def _file_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with path.open("rb") as file:
            # copy on write: torch wants a writable buffer, the file stays as it is
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        size = int.from_bytes(data[:8], "little")
        if not 0 < size <= min(len(data) - 8, MOST_HEADER_BYTES):
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, told in header.items():
            yield name, _tensor(data, 8 + size, told)
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise CheckpointError(f"{path}: not a safetensors file we can read: {why}") from why


def _tensor(data: mmap.mmap, origin: int, told: dict[str, Any]) -> Tensor:
    dtype, (begin, end) = DTYPES[told["dtype"]], told["data_offsets"]
    if not 0 <= begin <= end <= len(data) - origin:
        raise ValueError(f"data at {begin}..{end} of {len(data) - origin}")
    count = (end - begin) // dtype.itemsize
    flat = torch.frombuffer(data, dtype=dtype, count=count, offset=origin + begin)
    return flat.view(told["shape"])
