#!/bin/sh
# Puts prometheus and promtool, as the distribution ships them, into DIR (default .cache/prometheus)
# without installing them: no daemon starts. Idempotent and quiet; needs apt.
set -eu
dir="${1:-.cache/prometheus}"
if [ -x "$dir/usr/bin/prometheus" ] && [ -x "$dir/usr/bin/promtool" ]; then
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
    echo "no apt here: put prometheus and promtool on PATH yourself" >&2
    exit 1
}
mkdir -p "$dir"
cd "$dir"
# the package lists of a fresh container are empty
apt-get -qq download prometheus 2>/dev/null || { apt-get -qq update && apt-get -qq download prometheus; }
for deb in prometheus_*.deb; do dpkg -x "$deb" . && rm -f "$deb"; done
