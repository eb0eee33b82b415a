#!/usr/bin/env bash
# Runs ctest entries many times beside a load, to find tests that a busy machine can fail. Prints a table.
#   scripts/repeat.sh [-n TIMES] [-l PROCESSES] [-s] CTEST-ARGUMENTS    20 times, beside 8 that keep a core busy
# -s: threads stop at random, too (test/support/stalls), otherwise each time; a build without sanitizers.
# For example: scripts/repeat.sh -R '^runtime_'. Ends with 1 where an entry failed; build/repeat/ has its output.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
times=20 load=8 stalls=
while getopts n:l:s option 2>/dev/null; do
  case $option in
    n) times=$OPTARG ;;
    l) load=$OPTARG ;;
    s) stalls=1 ;;
    *) OPTIND=$((OPTIND - 1)); break ;;
  esac
done
shift $((OPTIND - 1))
build=${TRAINCTL_BUILD:-$root/build}
out=$build/repeat
rm -rf "$out"
mkdir -p "$out"
busy=()
trap '[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null' EXIT
for ((i = 0; i < load; ++i)); do
  (while :; do :; done) &
  busy+=($!)
done
[ -z "$stalls" ] || c++ -std=c++20 -O1 -shared -fPIC -o "$out/stalls.so" "$root/test/support/stalls/stalls.cpp" -ldl
cd "$build"
for ((i = 1; i <= times; ++i)); do
  ${stalls:+env "TRAINCTL_STALLS=$i" "LD_PRELOAD=$out/stalls.so"} \
    ctest --output-on-failure -j "$(nproc)" --output-junit "$out/$i.xml" "$@" >"$out/$i.log" 2>&1 ||
    echo "time $i failed: $out/$i.log"
done
row='s/^.*<testcase name="\([^"]*\)".* time="\([^"]*\)" status="\([a-z]*\)".*$/\1 \3 \2/p'
cat "$out"/*.xml | sed -n "$row" | awk '
  { ++runs[$1]; if ($2 == "fail") { ++failed[$1]; bad = 1 }; if ($2 == "run") ++passed[$1]
    if (!($1 in least) || $3 < least[$1]) least[$1] = $3; if ($3 > most[$1]) most[$1] = $3 }
  END {
    print "| entry | runs | passed | failed | seconds, least to most |\n|---|---|---|---|---|"
    for (name in runs)
      printf "| `%s` | %d | %d | %d | %.1f to %.1f |\n", name, runs[name], passed[name], failed[name],
        least[name], most[name] | "sort"
    close("sort")
    exit bad
  }'
