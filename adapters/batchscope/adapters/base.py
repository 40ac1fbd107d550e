"""What an adapter is: data about one kind of engine, and one function that attaches to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from batchscope.adapters.facts import Traits
from batchscope.adapters.guard import Seam
from batchscope.schemas.reasons import Provides


class Handle(Protocol):
    """An attached engine, in the process and thread of its steps."""

    @property
    def attached(self) -> bool:
        """Whether hooks are still in place."""

    @property
    def ring_uuid(self) -> str | None:
        """Hex name of the ring, also while it is dormant; None when there can be none."""

    def detach(self) -> None:
        """Put the originals back and leave; safe to repeat. On the stepping thread, or at rest."""


@dataclass(frozen=True)
class Adapter:
    """One kind of engine as data. Its first seam is the scheduling decision, which `opens`.

    `subject(engine)` is what translations read beside their arguments; `hello(engine)` gives the
    keys of HELLO that this kind knows (version, model_name, config, block_tokens, ...), unknown
    ones left out.
    """

    kind: str
    seams: tuple[Seam, ...]
    provides: Mapping[str, Provides]
    traits: Traits
    subject: Callable[[Any], Any]
    hello: Callable[[Any], dict[str, Any]]
