"""P1 on a real vLLM's scheduler, as `bench.vllm_observer` measures it in vLLM's environment."""

from __future__ import annotations

from typing import Any

from bench import in_vllm


def run() -> dict[str, Any] | None:
    """{unit, members, bars, cases}; None without a vLLM."""
    return in_vllm.figures("bench.vllm_observer", env={"OMP_NUM_THREADS": "1"})
