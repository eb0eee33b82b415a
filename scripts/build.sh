#!/usr/bin/env bash
# Builds the program, Release, into build/. Prints where it is.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TRAINCTL_BUILD:-$root/build}
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$build" --target trainctl -- -j "$(nproc)" >"$build/build.log" 2>&1 || { tail -40 "$build/build.log" >&2; echo "the build failed; the whole log: $build/build.log" >&2; exit 1; }

echo "built $build/trainctl"
