#!/usr/bin/env bash
# Installs what is missing, builds, and runs tests. The table in test/README.md says which tier runs what.
#
#   scripts/test.sh                  the quick tier
#   scripts/test.sh --all            everything: also sanitizers, fuzzers, clusters of fake nodes, Slurm
#   scripts/test.sh --changed [REV]  of the quick tier, what the changes since REV can affect (default: since HEAD)
#   scripts/test.sh CTEST-ARGUMENTS  what ctest chooses by them, for example -R '^(layers|tidy)$' or -L fault
#
# An entry that passed on this machine with the same inputs (scripts/test_inputs.sh) is left out and counted;
# --fresh runs it again.
#   TRAINCTL_WERROR=ON   treat the compiler's warnings as errors, as CI does; a newer compiler may have more
#   TRAINCTL_CUDA=OFF    build without CUDA also where there is a toolkit
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tier=quick since='' fresh=no
while [ $# -gt 0 ]; do
  case $1 in
    --all) tier=all ;;
    --changed)
      tier=changed since=HEAD
      if [ $# -gt 1 ] && [[ $2 != -* ]]; then since=$2; shift; fi ;;
    --fresh) fresh=yes ;;
    *) break ;;
  esac
  shift
done
say() { echo "== $*, $SECONDS s after the start"; }

"$root/scripts/install.sh" --tests
build=${TRAINCTL_BUILD:-$root/build}
# Named, because scripts/build.sh may have left CUDA out of this build folder.
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRAINCTL_CUDA="${TRAINCTL_CUDA:-AUTO}" \
  -DTRAINCTL_WERROR="${TRAINCTL_WERROR:-OFF}" >/dev/null
targets=(all)
if [ "$tier" = all ] || [ $# -gt 0 ]; then targets+=(more_tests); fi
cmake --build "$build" --target "${targets[@]}" -- -j "$(nproc)"
say "built"
if [ $# -gt 0 ]; then
  cd "$build"
  exec ctest --output-on-failure -j "$(nproc)" "$@"
fi
cd "$root"
if [ "$tier" = all ]; then
  scripts/install.sh --fuzz
  for kind in address thread; do scripts/sanitize.sh "$kind"; done
  say "sanitizers done"
  scripts/fuzz.sh 60 manifest commit safetensors control node
  say "fuzzers done"
fi

# The chosen entries, each with its inputs: those of the longest pattern in the table that fits.
mapfile -t known < <(cd "$build" && ctest -N | sed -n 's/^ *Test *#[0-9]*: //p')
mapfile -t rows < <(sed -nE 's/^\| `([^`]+)` \| ([a-z]+) \| ([^|]*[^| ]) *\|.*/\1|\2|\3/p' test/README.md)
declare -A inputs
for entry in "${known[@]}"; do
  best=''
  for row in "${rows[@]}"; do
    pattern=${row%%|*}
    # shellcheck disable=SC2053  # a pattern
    if [[ ${entry%_all} == $pattern && ${#pattern} -gt ${#best} ]]; then
      best=$pattern
      of=${row#*|}
    fi
  done
  if [[ $entry == *_all ]]; then of="all|${of#*|}"; fi
  if [ "$tier" = all ] || [ "${of%%|*}" = quick ]; then inputs[$entry]=${of#*|}; fi
done
table() {
  local folder
  for entry in "${!inputs[@]}"; do
    folder=${entry%_all}
    printf '%s\t%s\n' "$entry" "${inputs[$entry]//FOLDER/test/${folder//_//}}"
  done | sort
}
if [ "$tier" = changed ]; then
  export CHANGED
  CHANGED=$(git diff --name-only "$since"; git ls-files -o --exclude-standard)
  mapfile -t affected < <(table | scripts/test_inputs.sh affected)
  declare -A kept
  for entry in "${affected[@]}" layers tidy cases; do kept[$entry]=${inputs[$entry]:-}; done
  echo "${#kept[@]} of ${#inputs[@]} entries depend on what changed since $since"
  unset inputs
  declare -A inputs
  for entry in "${!kept[@]}"; do inputs[$entry]=${kept[$entry]}; done
fi
passed=${XDG_CACHE_HOME:-$HOME/.cache}/trainctl/passed
mkdir -p "$passed"
declare -A hash
configured=$(grep -E '^(TRAINCTL_(CUDA|SANITIZE)|CMAKE_CUDA_COMPILER):' "$build/CMakeCache.txt" | sha1sum | cut -c1-8)
while read -r entry value; do hash[$entry]=$value-$configured; done < <(table | scripts/test_inputs.sh hashes)
chosen=() up_to_date=()
for entry in "${!inputs[@]}"; do
  if [ "$fresh" = no ] && [ "${inputs[$entry]}" != always ] && [ -e "$passed/$entry-${hash[$entry]}" ]; then
    up_to_date+=("$entry")
  else
    chosen+=("$entry")
  fi
done
echo "${#chosen[@]} entries to run, ${#up_to_date[@]} up to date (--fresh runs them again)"
cd "$build"
status=0
ctest --output-on-failure -j "$(nproc)" --output-junit "$build/tests.xml" \
  -R "^($(IFS='|'; echo "${chosen[*]}"))\$" || status=$?
# Only what ran and passed counts; a skipped entry has to be tried again.
sed -n 's/^.*<testcase name="\([^"]*\)".*status="run".*$/\1/p' "$build/tests.xml" | while read -r entry; do
  find "$passed" -maxdepth 1 -name "$entry-????????????????????????????????????????-????????" -mtime +30 -delete
  : >"$passed/$entry-${hash[$entry]}"
done
exit "$status"
