"""`bench/gpu.sh OUTDIR [--tiny]`: the bundled engine's CUDA path on one device.

A Llama of random weights is checked against a dense recomputation, timed in steady decode beside
the bandwidth floor, and timed with and without an observer. Each part's figures are in
OUTDIR/gpu.json as soon as it has ended; one that fails leaves its traceback there.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import gpu_parts as parts

Figures = dict[str, Any]
PARTS: dict[str, Callable[[parts.Subject], Figures]] = {
    "ceiling": parts.ceiling,
    "correct, gathered": parts.gathered(parts.correct),
    "decode, gathered": parts.gathered(parts.decode),
    "correct": parts.correct,
    "decode": parts.decode,
    "observer": parts.observer,
}
"""What is likeliest to fail comes last: after a fault of the device nothing works any more."""


def main(argv: list[str]) -> int:
    """Run all parts; 1 when one failed or what it found is wrong, 2 without a device."""
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a small shape, seconds on a CPU")
    parser.add_argument("--seconds", type=float, default=260, help="begin no case after this long")
    args = parser.parse_args(argv)
    if not (args.tiny or torch.cuda.is_available()):
        print("bench/gpu.sh: no CUDA device here; --tiny runs anywhere", file=sys.stderr)
        return 2
    began = time.monotonic()
    subject = parts.Subject(parts.TINY if args.tiny else parts.ONE_B, deadline=began + args.seconds)
    found: Figures = {"conditions": conditions(subject), "parts": {}}
    for name, part in PARTS.items():
        found["parts"][name] = attempt(part, subject)
        found["seconds"] = round(time.monotonic() - began, 1)
        (args.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(lines(name, found["parts"][name])), flush=True)
    print(f"{found['seconds']} s in all")
    return 0 if all(right(figures) for figures in found["parts"].values()) else 1


def attempt(part: Callable[[parts.Subject], Figures], subject: parts.Subject) -> Figures:
    """What the part found, or how it failed."""
    try:
        return part(subject)
    except Exception:  # noqa: BLE001  (whatever the device raises; the other parts may work)
        return {"error": traceback.format_exc()}


def right(figures: Figures) -> bool:
    """Whether the part ended and nothing it checks was wrong."""
    return "error" not in figures and figures.get("passed", True)


def conditions(subject: parts.Subject) -> Figures:
    """What the figures depend on."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": subject.device_name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "plan": subject.plan._asdict() | {"model": vars(subject.plan.model)},
        "dtype": str(subject.runner.cache.dtype),
        "parameters": subject.parameters,
    }


def lines(name: str, figures: Figures) -> list[str]:
    """A part for a person: one line of what it says, then a row per case."""
    if "error" in figures:
        return [f"{name}: FAILED", figures["error"]]
    told = {key: value for key, value in figures.items() if key != "cases"}
    rows = [f"  {case}: {_words(values)}" for case, values in figures.get("cases", {}).items()]
    return [f"{name}: {_words(told)}", *rows]


def _words(values: Figures) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
