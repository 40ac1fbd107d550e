"""How parts of a batch look at the paged cache: pages gathered for torch's SDPA, or left in place.

packing.py and paged.py make the parts, the model calls attend() of each. Queries are
[rows, heads, head_dim], a layer's cache is [2, slots, kv_heads, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Kernel = Callable[[Tensor, Tensor, Tensor, "BlockMask"], Tensor]
"""(q [B, heads, 1, D], keys, values [1, kv_heads, slots, D], pages) -> [B, heads, 1, D]."""


class Part(Protocol):
    """Some neighbouring rows of a batch."""

    @property
    def rows(self) -> slice:
        """Their span in the flat batch."""

    def attend(self, q: Tensor, cache: Tensor) -> Tensor:
        """What the rows see, in the shape of q."""


class Gathered(NamedTuple):
    """B requests with Q query rows each, and the L cache slots that they look at.

    `slots` [B, L] in position order, `visible` [B, 1, Q, L] which of them each query may attend
    (causal, padding excluded).
    """

    rows: slice
    slots: Tensor
    visible: Tensor

    def attend(self, q: Tensor, cache: Tensor) -> Tensor:
        """By SDPA over a copy of the pages."""
        rows = q.view(len(self.slots), -1, *q.shape[1:]).transpose(1, 2)
        keys, values = cache[:, self.slots].transpose(2, 3)
        mixed = scaled_dot_product_attention(
            rows, keys, values, attn_mask=self._mask(q), enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(0, 1)

    def _mask(self, q: Tensor) -> Tensor:
        """`visible`; where torch's flash kernel runs, the same for one request by its shape alone:
        that kernel takes no mask.
        """
        if q.is_cuda and q.element_size() == 2 and len(self.slots) == 1:
            return causal_lower_right(*self.visible.shape[-2:])
        return self.visible


class InPlace(NamedTuple):
    """B requests with one query row each; `mask` lists the pages of each, `kernel` reads them."""

    rows: slice
    mask: BlockMask
    kernel: Kernel

    def attend(self, q: Tensor, cache: Tensor) -> Tensor:
        """Over the whole pool as one context, of which a row reads its own pages."""
        keys, values = cache.transpose(1, 2).unsqueeze(1)
        return self.kernel(q.unsqueeze(2), keys, values, self.mask).squeeze(2)
