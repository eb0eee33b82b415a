#!/bin/bash
# How long a run on several nodes takes to start and to recover, on fake nodes of this machine.
#
#   scripts/bench/cluster.sh [REPEATS]     default 5; needs root, iproute2 and a built trainctl ($TRAINCTL, default build/trainctl)
#
# 4 nodes x 2 ranks (tensor 2, pipeline 2, data 2) of llama-tiny and a spare. For each of mpirun and pmix, medians of REPEATS in seconds:
#   start       the order to start until every rank has passed MPI_Init and said hello (event ranks_up)
#   rank        kill -9 of a rank until the next finished step
#   crash       a node's end (its kernel still answers) until the next finished step, on the spare
#   silent      a node that goes silent until the next finished step, less fault_tolerance.node_silence_seconds
#   supervisor  kill -9 of the supervisor, then `resume`: from its start until it has attached; steps lost
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
program=${TRAINCTL:-$here/build/trainctl}
repeats=${1:-5}
export TCN_PREFIX=tcbench$$ TCN_NET=10.98.0
rig=$here/test/support/cluster
work=$(mktemp -d)
trap '"$rig/nodes.sh" down >/dev/null 2>&1; rm -rf "$work"' EXIT
[ "$(id -u)" = 0 ] || { echo "cluster.sh: fake nodes need root" >&2; exit 77; }

cat >"$work/job.json" <<JOB
{"version": 1, "name": "bench", "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "$here/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}], "seq_len": 32},
 "batch": {"global_sequences": 8, "micro_sequences": 1}, "schedule": {"total_steps": 100000, "lr": 1e-3},
 "parallelism": {"world_size": "auto", "tensor": 2, "pipeline": 2, "data": 2, "lanes": 4},
 "checkpoint": {"every_steps": 20, "chunk_mib": 0.01},
 "launcher": {"hosts": ["node0", "node1", "node2", "node3", "node4"], "slots": 2, "shell": "$rig/tcn-rsh"},
 "fault_tolerance": {"max_restarts": 100, "grace_seconds": 10, "node_silence_seconds": 2},
 "observability": {"run_dir": "$work/runs", "run_id": "b"}}
JOB
run=$work/runs/b
on_node0() { "$rig/nodes.sh" exec 0 env TCN_PREFIX="$TCN_PREFIX" TCN_NET="$TCN_NET" "$program" "$@"; }
steps() { cat "$run/metrics.jsonl" 2>/dev/null | wc -l; }
await() { for _ in $(seq 1500); do eval "$1" && return 0; sleep 0.02; done; echo "cluster.sh: timed out: $1" >&2; exit 1; }
median() { sort -n | awk '{ a[NR] = $1 } END { print (NR % 2) ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
# field NAME KIND: of the newest event of that kind
field() { grep "\"kind\":\"$2\"" "$run/events.jsonl" | tail -n 1 | grep -oE "\"$1\":[0-9.e+-]+" | cut -d: -f2; }
count() { grep -c "\"kind\":\"$1\"" "$run/events.jsonl" 2>/dev/null || true; }
# The pids, as seen from here, of processes of a node whose command line begins so.
pids_of() { for p in $("$rig/nodes.sh" pids "$1"); do
  tr '\0' ' ' 2>/dev/null <"/proc/$p/cmdline" | grep -q "^$program $2" && echo "$p"; done; }

# The number of a node that runs ranks, but the supervisor's: which ones do is decided by who comes first.
member() { grep -oE '"name": "node[1-4]"' "$run/attempt.json" | head -n 1 | tr -dc 0-9; }

start_run() {
  "$rig/nodes.sh" down >/dev/null 2>&1; rm -rf "$work/runs"; "$rig/nodes.sh" up 5
  on_node0 launch "$work/job.json" -s launcher.start="$1" >"$work/out" 2>&1 &
  await '[ "$(steps)" -ge 25 ]'
}
stop_run() { for p in $(pids_of 0 launch) $(pids_of 0 resume); do kill -QUIT "$p" 2>/dev/null; done; wait; }
# recovered FAULT: seconds from the fault to the next finished step
recovered() {
  local before now; before=$(count recovered); now=$(date +%s.%N)
  eval "$1"
  await "[ \"\$(count recovered)\" -gt $before ]"
  echo "$(field t recovered) - $now" | bc
}

for start in mpirun pmix; do
  for what in start rank crash silent supervisor; do : >"$work/$what"; done
  for _ in $(seq "$repeats"); do
    start_run $start
    field seconds ranks_up >>"$work/start"
    recovered 'kill -9 $(pids_of $(member) rank | head -n 1)' >>"$work/rank"
    sleep 0.5
    recovered '"$rig/nodes.sh" crash $(member)' >>"$work/crash"
    stop_run
    start_run $start
    echo "$(recovered '"$rig/nodes.sh" poweroff $(member)') - 2" | bc >>"$work/silent"
    stop_run
    start_run $start
    kill -9 $(pids_of 0 launch)
    wait
    last=$(steps); now=$(date +%s.%N)
    on_node0 resume "$run" >"$work/out" 2>&1 &
    await '[ "$(count attached)" -ge 1 ]'
    echo "$(field t attached) - $now" | bc >>"$work/supervisor"
    await "[ \"\$(steps)\" -gt $last ]"
    stop_run
  done
  for what in start rank crash silent supervisor; do
    printf '%-7s %-11s %5.2f s   (%s)\n' $start $what "$(median <"$work/$what")" "$(sort -n "$work/$what" | tr '\n' ' ')"
  done
done
