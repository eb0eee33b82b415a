#!/bin/sh
# Usage: missing_rank.sh MPIRUN PROGRAM MODE RANKS
# The last rank never comes: mpirun must fail by itself, its output name that rank, and no rank outlive it.
mpirun=$1 program=$2 mode=$3 ranks=$4
output=$(timeout -k 5 900 "$mpirun" -n "$ranks" "$program" "$mode" 2>&1)
status=$?
echo "$output"
[ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || { echo "FAILED: exit status $status"; exit 1; }
echo "$output" | grep -Eq "(broadcast|barrier): rank $((ranks - 1)) \(world\) did not arrive within 5 s" ||
  { echo "FAILED: the missing rank is not named"; exit 1; }
pids=$(echo "$output" | sed -n 's/^pid \([0-9]*\)$/\1/p')
[ "$(echo "$pids" | wc -l)" -eq "$ranks" ] || { echo "FAILED: $ranks ranks did not all start"; exit 1; }
# mpirun returns when it has killed its children; the kernel may need a moment to remove them.
for try in $(seq 6000); do
  left=
  for pid in $pids; do kill -0 "$pid" 2>/dev/null && left="$left $pid"; done
  [ -z "$left" ] && { echo "exit status $status, nobody left"; exit 0; }
  sleep 0.1
done
echo "FAILED: still running:$left"
exit 1
