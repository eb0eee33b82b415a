#!/usr/bin/env bash
# Builds the program, Release, into build/ (or $TRAINCTL_BUILD). Prints where it is.
#   TRAINCTL_CUDA=AUTO|ON|OFF   with the CUDA backend where a toolkit is found, always, or never. Not given: as the build folder
#                               was configured before; a new one takes CUDA only on a machine with a GPU, for half the build is CUDA.
#   TRAINCTL_CUDA_TOOLKIT=FOLDER   with this CUDA toolkit; the build folder keeps it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TRAINCTL_BUILD:-$root/build}
cuda=${TRAINCTL_CUDA:-}
if [ -z "$cuda" ] && [ ! -f "$build/CMakeCache.txt" ]; then
  cuda=OFF
  if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then cuda=AUTO; fi
fi
toolkit=()
if [ -n "${TRAINCTL_CUDA_TOOLKIT:-}" ]; then
  cuda=ON
  toolkit=("-DCUDAToolkit_ROOT=$TRAINCTL_CUDA_TOOLKIT" "-DCMAKE_CUDA_COMPILER=$TRAINCTL_CUDA_TOOLKIT/bin/nvcc")
fi
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release ${cuda:+-DTRAINCTL_CUDA=$cuda} "${toolkit[@]}" >/dev/null
if grep -q '^TRAINCTL_CUDA:STRING=OFF' "$build/CMakeCache.txt"; then
  echo "building for CPUs (with GPUs: TRAINCTL_CUDA=AUTO scripts/build.sh)"
fi
log=$build/build.log
failed() {
  tail -40 "$log" >&2
  echo "the build failed; the whole log: $log" >&2
  exit 1
}
if [ -t 1 ]; then
  # Ninja shows its progress on one line.
  cmake --build "$build" --target trainctl -- -j "$(nproc)"
else
  : >"$log"
  # The newest "[n/m]" of the log, every 20 seconds.
  (while sleep 20 >/dev/null 2>&1; do grep -o '^\[[0-9]*/[0-9]*\]' "$log" | tail -n 1 | sed 's/$/ compiling/'; done) &
  progress=$!
  trap 'kill "$progress" 2>/dev/null || true' EXIT
  cmake --build "$build" --target trainctl -- -j "$(nproc)" >"$log" 2>&1 || failed
fi
echo "built $build/trainctl"
