#!/usr/bin/env bash
# Runs unit tests in a build that looks for errors no test asserts. Does nothing where they passed on this machine with the same sources.
#   scripts/sanitize.sh address   memory errors, leaks and undefined behaviour (ASan, LSan, UBSan): base, data, parallel, ckpt
#   scripts/sanitize.sh thread    data races (TSan): what several threads do, of every layer
# Ends with status 1 at the first finding. The build folder is build-address or build-thread.
set -euo pipefail
cd "$(dirname "$0")/.."
# Soaks, and cases that repeat the same code thousands of times: they take minutes here and reach nothing that the others do not.
skipped='~[soak] ~"power lost at every effect*" ~"the harness catches*" ~"ten thousand*" ~"every flipped bit*" ~"every effect of a save fails*"'
skipped+=' ~"two writers\, all orders*" ~"two uploads\, all orders*" ~"each part of the protocol*" ~"each step of the protocol*"'
skipped+=' ~"no flipped bit*" ~"a full disk at any effect*" ~"power loss at any effect*" ~"what goes over the wire*"'
skipped+=' ~"edited texts and headers*"'   # the fuzzers edit more of them
case ${1:-} in
  address)
    programs=(test_base test_data test_parallel test_ckpt)
    skipped+=' ~"*many ranks*"'   # the code of two to eight ranks; `thread` runs them
    ;;
  thread) programs=(test_threads) ;;
  *) echo "usage: scripts/sanitize.sh address|thread [--fresh]" >&2; exit 2 ;;
esac
build=build-$1
passed=${XDG_CACHE_HOME:-$HOME/.cache}/trainctl/passed
case $1 in
  address) inputs="test/runtime/base test/data test/parallel test/ckpt" ;;
  thread)   # as test_threads (test/CMakeLists.txt)
    inputs="test/parallel test/kernels/thread_pool_test.cpp test/data/order_test.cpp test/data/tokenize test/runtime/base"
    for room in spans sources machine model train run/pieces run/wire supervise/nodes; do inputs+=" test/runtime/$room"; done ;;
esac
hash=$(printf '%s\t%s scripts/sanitize.sh\n' "sanitize-$1" "$inputs" | scripts/test_inputs.sh hashes | cut -d' ' -f2)
if [ "${2:-}" != --fresh ] && [ -e "$passed/sanitize-$1-$hash" ]; then
  echo "== $1: up to date (scripts/sanitize.sh $1 --fresh runs it again)"
  exit 0
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRAINCTL_CUDA=OFF -DTRAINCTL_SANITIZE="$1" \
  -DTRAINCTL_WERROR="${TRAINCTL_WERROR:-OFF}" >/dev/null
cmake --build "$build" --target "${programs[@]}" -- -j "$(nproc)" | tail -n 1
built_s=$SECONDS
cores=$(nproc)   # which OMP_NUM_THREADS changes

export OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export LSAN_OPTIONS=suppressions=$PWD/test/support/sanitizers/leaks.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/test/support/sanitizers/races.txt
for program in "${programs[@]}"; do
  echo "== $1: $program"
  scripts/deal.sh "$cores" 1200 "$build" "$build/test/$program" "$skipped"
done
echo "== $1: built in $built_s s, run in $((SECONDS - built_s)) s"
mkdir -p "$passed"
: >"$passed/sanitize-$1-$hash"
