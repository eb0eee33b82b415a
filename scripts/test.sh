#!/usr/bin/env bash
# Installs, builds and runs every test. Arguments go to ctest, e.g. scripts/test.sh -L fault.
# TRAINCTL_WERROR=ON treats warnings of the C++ compiler as errors, as CI does: not for everybody, because a newer compiler may have more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/install.sh" --tests
build=${TRAINCTL_BUILD:-$root/build}
# Named, because scripts/build.sh may have left CUDA out of this build folder.
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRAINCTL_CUDA="${TRAINCTL_CUDA:-AUTO}" \
  -DTRAINCTL_WERROR="${TRAINCTL_WERROR:-OFF}" >/dev/null
cmake --build "$build" -- -j "$(nproc)"
cd "$build"
exec ctest --output-on-failure -j "$(nproc)" "$@"
