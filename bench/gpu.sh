#!/usr/bin/env bash
# bench/gpu.sh OUTDIR [--tiny]: the bundled engine's CUDA path on one device, in at most 8 minutes.
# Needs a Python with torch (PYTHON=..., else python3) and this tree; nothing is installed or fetched.
# OUTDIR gets gpu.json and log.txt. --tiny: seconds on any machine, to see that the script runs.
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:?usage: bench/gpu.sh OUTDIR [--tiny]}
shift
mkdir -p "$out"
for part in schemas adapters engine; do PYTHONPATH="$tree/$part:${PYTHONPATH:-}"; done
export PYTHONPATH="$tree:$PYTHONPATH" PYTHONUNBUFFERED=1
timeout 480 "${PYTHON:-python3}" -m bench.gpu "$out" "$@" 2>&1 | tee "$out/log.txt"
