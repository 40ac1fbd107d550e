#!/usr/bin/env bash
# The engine tests, in bounded time: `bash .ci/engines.sh VERSION ...` fetches what is missing
# (.ci/vllm.sh), runs tests/engines over what is there, and ends by naming what was not run. MINUTES
# bounds it all, ARGS goes to pytest.
# Exit status: 0 all passed; 1 a test failed or time was over; 3 what could run has passed, but not
# everything could be downloaded (0 with MISSING=allowed, for a gate that must outlive an index).
set -uo pipefail
cd "$(dirname "$0")/.."
minutes="${MINUTES:-40}"
ends=$(($(date +%s) + minutes * 60))

left() { # left SHARE: seconds to go, of them a share in percent; one at least
  local seconds=$((($(ends_in) * $1) / 100))
  echo $((seconds > 1 ? seconds : 1))
}

ends_in() {
  echo $((ends - $(date +%s)))
}

began=$(date +%s)
timeout -k 10 "$(left 60)" bash .ci/vllm.sh "$@"
fetched=$(($(date +%s) - began))
present="$(bash .ci/vllm.sh --present "$@")"
missing="$(bash .ci/vllm.sh --missing "$@")"

tested() { # tested ARG...: INT, so that pytest ends the servers it started
  BATCHSCOPE_VLLM="${present#* }" timeout -s INT -k 60 "$(left 97)" \
    .venv/bin/python -m pytest -q -m engines tests/engines ${ARGS:-} "$@"
}

status=0
if [ -n "$present" ]; then
  tested
  status=$?
  if [ $status -eq 1 ]; then # real servers on shared cores: what failed gets one more chance, and is named
    echo "FAILED at the first try, now once more:" >&2
    tested --last-failed --last-failed-no-failures none && status=0
  fi
  [ $status -eq 124 ] && echo "FAILED: the engine tests did not end in $minutes minutes" >&2
fi
echo "engines: $((fetched / 60)) min to fetch, $((($(date +%s) - began - fetched) / 60)) min of tests" >&2
for version in $missing; do
  echo "NOT RUN: vllm $version could not be downloaded" >&2
done
[ $status -ne 0 ] && exit 1
[ -z "$missing" ] || [ "${MISSING:-}" = allowed ] || exit 3
