#!/usr/bin/env bash
# bench/gpu.sh OUTDIR [--tiny]: the bundled engine's CUDA path on one device, in at most 8 minutes.
# Needs a Python with torch (PYTHON=..., else python3) and this tree; nothing is installed or fetched.
# OUTDIR gets gpu.json and log.txt. Where pytest is there, the tests that need a device run as well.
# --tiny: a small shape and no tests, seconds on any machine, to see that the script runs.
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(mkdir -p "${1:?usage: bench/gpu.sh OUTDIR [--tiny]}" && cd "$1" && pwd)
shift
python=${PYTHON:-python3}
for part in schemas adapters engine; do PYTHONPATH="$tree/$part:${PYTHONPATH:-}"; done
export PYTHONPATH="$tree:$PYTHONPATH" PYTHONUNBUFFERED=1

everything() {
    local status=0
    timeout 330 "$python" -m bench.gpu "$out" "$@" || status=$?
    if [ $# = 0 ] && "$python" -c 'import pytest' 2>/dev/null; then
        # -W default: warnings of another torch than ours are no failures here
        (cd "$tree" && timeout 140 "$python" -m pytest -q -m gpu -W default -p no:cacheprovider \
            tests/engine/test_cuda.py tests/engine/test_torch_runner.py) || status=$?
    fi
    return $status
}

everything "$@" 2>&1 | tee "$out/log.txt"
