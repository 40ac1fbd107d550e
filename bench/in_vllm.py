"""A bench that runs in vLLM's own environment, `.venvs/vllm`; its figures are its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venvs/vllm/bin/python"


def figures(module: str, *args: str, env: Mapping[str, str]) -> dict[str, Any] | None:
    """What `module` printed, as JSON; None, and said why, where there is no vLLM."""
    if not PYTHON.exists():
        print("no vLLM here: `make test-engines` makes .venvs/vllm", file=sys.stderr)
        return None
    done = subprocess.run(
        [str(PYTHON), "-m", module, *args],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
