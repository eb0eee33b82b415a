#!/usr/bin/env bash
# Builds Release into build/ (or the folder given). Prints where the program is.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$build" -- -j "$(nproc)" >"$build/build.log" 2>&1 || { tail -40 "$build/build.log" >&2; echo "the build failed; the whole log: $build/build.log" >&2; exit 1; }

echo "built $build/trainctl"
