#!/usr/bin/env bash
# Proves that the ctest entries of each Catch2 program run each of its cases, and none twice: a case that no entry names never runs.
#   cases.sh FILE     FILE: a line for each entry, PROGRAM<tab>FILTER; an empty filter: all that are not hidden
set -euo pipefail
names() {   # PROGRAM FILTER: the cases it names
  local list
  list=$("$1" ${2:+"$2"} --filenames-as-tags --list-test-names-only) || true   # Catch2 ends with their number
  [[ $list != skipped:* ]] || return 0   # it runs nothing on this machine
  sed '/^$/d' <<<"$list" | sort
}
bad=0 cases=0
while read -r program; do
  [ -x "$program" ] || continue   # of another tier, not built
  named=$(while IFS=$'\t' read -r of filter; do
    if [ "$of" = "$program" ]; then names "$program" "$filter"; fi
  done <"$1" | sort)
  every=$(names "$program" '~[no such tag]')
  cases=$((cases + $(wc -l <<<"$every")))
  while read -r name; do
    [ -z "$name" ] || { echo "$(basename "$program"): no ctest entry runs the case: $name"; bad=1; }
  done < <(comm -13 <(uniq <<<"$named") <(uniq <<<"$every"))
  while read -r name; do
    [ -z "$name" ] || { echo "$(basename "$program"): two ctest entries run the case: $name"; bad=1; }
  done < <(comm -23 <(uniq -d <<<"$named") <(uniq -d <<<"$every"))
done < <(cut -f1 "$1" | sort -u)
[ "$cases" -gt 0 ] || { echo "no case was found"; exit 1; }
echo "$cases cases"
exit "$bad"
