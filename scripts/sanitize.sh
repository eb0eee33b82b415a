#!/usr/bin/env bash
# Runs unit tests in a build that looks for errors no test asserts.
#   scripts/sanitize.sh address   memory errors, leaks and undefined behaviour (ASan, LSan, UBSan): base, data, parallel, ckpt
#   scripts/sanitize.sh thread    data races (TSan): what several threads do, of every layer
# Ends with status 1 at the first finding. The build folder is build-address or build-thread.
set -euo pipefail
cd "$(dirname "$0")/.."
# Soaks, and cases that repeat the same code thousands of times: they take minutes here and reach nothing that the others do not.
skipped='~[soak] ~"power lost at every effect*" ~"the harness catches*" ~"ten thousand*" ~"every flipped bit*" ~"every effect of a save fails*"'
skipped+=' ~"two writers\, all orders*" ~"two uploads\, all orders*"'
case ${1:-} in
  address)
    programs=(test_base test_data test_parallel test_ckpt)
    skipped+=' ~"*many ranks*"'   # the code of two to eight ranks; `thread` runs them
    ;;
  thread) programs=(test_threads) ;;
  *) echo "usage: scripts/sanitize.sh address|thread" >&2; exit 2 ;;
esac
build=build-$1
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
# The test cases of a program are dealt out to one process a core.
for program in "${programs[@]}"; do
  echo "== $1: $program"
  rm -f "$build/$program".{cases,part,log}*
  # The exit status is the number of cases.
  "$build/test/$program" "$skipped" --list-test-names-only >"$build/$program.cases" || true
  # A comma in a name would end it.
  sed 's/,/\\,/g' "$build/$program.cases" | split -n "r/$cores" - "$build/$program.part."
  parts=() running=()
  for part in "$build/$program".part.*; do
    [ -s "$part" ] || continue   # fewer cases than cores
    parts+=("${part##*.}")
    timeout 1200 "$build/test/$program" -f "$part" --durations yes >"$build/$program.log.${part##*.}" 2>&1 &
    running+=($!)
  done
  [ ${#parts[@]} -gt 0 ] || { echo "$program has no test cases" >&2; exit 1; }
  failed=""
  for i in "${!running[@]}"; do wait "${running[i]}" || failed+=" ${parts[i]}"; done
  for part in $failed; do tail -n 120 "$build/$program.log.$part"; done
  [ -z "$failed" ] || exit 1
  grep -hE '^[0-9]{2,}\.[0-9]+ s: ' "$build/$program".log.* | sort -rn | head -n 5 || true   # the slowest, of 10 s or more
  for part in "${parts[@]}"; do
    tail -n 3 "$build/$program.log.$part"
    cases=$(wc -l <"$build/$program.part.$part")
    grep -q "in $cases test case" "$build/$program.log.$part" ||
      { echo "$program: not every one of $cases test cases ran" >&2; exit 1; }
  done
done
echo "== $1: built in $built_s s, run in $((SECONDS - built_s)) s"
