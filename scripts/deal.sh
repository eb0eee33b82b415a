#!/usr/bin/env bash
# Deals the test cases of a Catch2 program out to processes that run side by side.
#   scripts/deal.sh PROCESSES SECONDS FOLDER PROGRAM [FILTER]
# FOLDER gets PROGRAM.cases, PROGRAM.part.* and a log of each process, which ends after SECONDS. Prints the slowest
# cases and the last lines of each log, of one that failed the last 200. Ends with 1 where a case failed or did
# not run.
set -uo pipefail
processes=$1 seconds=$2 folder=$3 program=$4 filter=${5:-}
name=$(basename "$program")
mkdir -p "$folder"
rm -f "$folder/$name".{cases,part,log}*
# The exit status is the number of cases.
"$program" ${filter:+"$filter"} --list-test-names-only >"$folder/$name.cases"
# A comma in a name would end it.
sed 's/,/\\,/g' "$folder/$name.cases" | split -n "r/$processes" - "$folder/$name.part."
parts=() running=()
trap '[ ${#running[@]} -eq 0 ] || kill "${running[@]}" 2>/dev/null' EXIT
for part in "$folder/$name".part.*; do
  [ -s "$part" ] || continue   # fewer cases than processes
  parts+=("${part##*.}")
  timeout "$seconds" "$program" -f "$part" --durations yes >"$folder/$name.log.${part##*.}" 2>&1 &
  running+=($!)
done
[ ${#parts[@]} -gt 0 ] || { echo "$name has no test cases" >&2; exit 1; }
failed=""
for i in "${!running[@]}"; do
  wait "${running[i]}"
  case $? in
    0) ;;
    124) failed+=" ${parts[i]}"; echo "$name: ended after $seconds s" >>"$folder/$name.log.${parts[i]}" ;;
    *) failed+=" ${parts[i]}" ;;
  esac
done
running=()
for part in $failed; do tail -n 200 "$folder/$name.log.$part"; done
[ -z "$failed" ] || exit 1
# Of 10 s or more.
grep -hE '^[0-9]{2,}\.[0-9]+ s: ' "$folder/$name".log.* | sort -rn | uniq | head -n 5
for part in "${parts[@]}"; do
  tail -n 3 "$folder/$name.log.$part"
  cases=$(wc -l <"$folder/$name.part.$part")
  grep -q "in $cases test case" "$folder/$name.log.$part" ||
    { echo "$name: not every one of $cases test cases ran" >&2; exit 1; }
done
