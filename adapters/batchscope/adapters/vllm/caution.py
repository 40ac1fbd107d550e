"""How a vLLM that we were never run on is met, and how we say so. For both ends of an engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from batchscope.adapters.vllm.shape import CHECKED, is_checked


def careful(env: Mapping[str, str], version: str) -> Mapping[str, str]:
    """The environment; without the word that wakes us for a version that nobody ran us on."""
    if is_checked(version):
        return env
    first, last = (".".join(map(str, bound[:2])) for bound in CHECKED)
    say(f"vLLM {version} is not one of {first} to {last}: dormant, `batchscope attach` wakes it")
    return {name: value for name, value in env.items() if name != "BATCHSCOPE"}


def say(text: str) -> None:
    """One line to the operator, in the engine's log."""
    print(f"batchscope: {text}", file=sys.stderr)
