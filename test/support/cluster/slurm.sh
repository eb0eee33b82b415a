#!/bin/bash
# A real Slurm over the fake nodes of nodes.sh: munged, slurmctld and one slurmd a node, without systemd.
# slurmctld runs on a further node, node<N>, which serves as login node. Needs what nodes.sh needs, and
# Debian's packages slurmctld slurmd slurm-client munge.
#
#   slurm.sh possible          exits 0 where this can run; else prints the reason and exits 77
#   slurm.sh start [N]         nodes node0 ... node<N-1> and the login node; returns when all are idle
#   slurm.sh keep N FOLDER     `start`, prints "up", and when its standard input ends (when the caller dies)
#                              stops everything and removes FOLDER
#   slurm.sh run CMD...        on the login node: sbatch, squeue, scontrol ...
#   slurm.sh kill K            slurmd of node K alone
#   slurm.sh crash K           the whole node; poweroff K: in silence
#   slurm.sh boot K            the node, if it is down, and its slurmd; the node returns to service by itself
#   slurm.sh wait-idle [N]     until N nodes are idle, at most ten minutes
#   slurm.sh stop              ends everything; harmless where nothing runs
#
# Environment: TCN_PREFIX and TCN_NET as in nodes.sh; CPUS=4 and GPUS=0 of a node (CPUS="4 2": of node0,
# node1, node2 ... in turn; the GPUs are null devices); TOPOLOGY=1 for two switches under a spine;
# SLURMD_TIMEOUT=120 seconds until a silent node is
# DOWN; CRED_EXPIRE=5 seconds, by which a requeue is delayed; EXTRA='a line for slurm.conf'. Partitions:
# main (preempted by urgent: requeued after a grace time of 15 s), stop (preempted: cancelled), urgent.
# Files: /run/$TCN_PREFIX/slurm.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nodes=$here/nodes.sh
prefix=${TCN_PREFIX:-tcn}
net=${TCN_NET:-10.77.0}
state=/run/$prefix/slurm
export SLURM_CONF=$state/slurm.conf
PATH=$PATH:/usr/sbin

fail() { echo "slurm.sh: $*" >&2; exit 1; }
count() { cat "$state/count" 2>/dev/null || echo 0; }

possible() {
  "$nodes" possible || return 77
  local program
  for program in slurmctld slurmd munged sbatch srun scontrol; do
    if ! command -v "$program" >/dev/null; then
      echo "a Slurm needs the program $program (Debian: slurmctld slurmd slurm-client munge)"
      return 77
    fi
  done
}

write_configuration() {   # N
  local n=$1 last=$(($1 - 1)) k gres= cpus
  read -ra cpus <<<"${CPUS:-4}"
  mkdir -p "$state"/{state,spool,log,munge,tmp}
  chmod 755 "$state"
  echo "$n" >"$state/count"
  cat >"$SLURM_CONF" <<CONF
ClusterName=$prefix
SlurmctldHost=node$n($net.$((10 + n)))
SlurmUser=root
SlurmdUser=root
SlurmctldPort=17817
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$state/munge/socket,cred_expire=${CRED_EXPIRE:-5}
StateSaveLocation=$state/state
SlurmdSpoolDir=$state/spool/%n
TmpFS=$state/tmp/%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=${SLURMD_TIMEOUT:-120}
InactiveLimit=0
KillWait=5
Waittime=0
BatchStartTimeout=120
MessageTimeout=5
TCPTimeout=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
JobRequeue=1
KillOnBadExit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
${EXTRA:-}
CONF
  if [ "${GPUS:-0}" -gt 0 ]; then
    gres="Gres=gpu:$GPUS"
    for k in $(seq 0 $((GPUS - 1))); do mknod "$state/gpu$k" c 1 3; done
    echo "GresTypes=gpu" >>"$SLURM_CONF"
    echo "NodeName=node[0-$last] Name=gpu File=$state/gpu[0-$((GPUS - 1))]" >"$state/gres.conf"
  fi
  if [ -n "${TOPOLOGY:-}" ]; then
    echo "TopologyPlugin=topology/tree" >>"$SLURM_CONF"
    printf '%s\n' "SwitchName=leaf0 Nodes=node[0-$((n / 2 - 1))]" \
      "SwitchName=leaf1 Nodes=node[$((n / 2))-$last]" "SwitchName=spine Switches=leaf[0-1]" \
      >"$state/topology.conf"
  fi
  for k in $(seq 0 "$last"); do
    echo "NodeName=node$k NodeAddr=$net.$((10 + k)) Port=17818 CPUs=${cpus[k % ${#cpus[@]}]} RealMemory=4000 $gres"
  done >>"$SLURM_CONF"
  cat >>"$SLURM_CONF" <<CONF
PartitionName=main Nodes=node[0-$last] Default=YES OverSubscribe=NO PriorityTier=1 GraceTime=15
PartitionName=stop Nodes=node[0-$last] PriorityTier=1 PreemptMode=CANCEL GraceTime=15
PartitionName=urgent Nodes=node[0-$last] PriorityTier=10 PreemptMode=OFF
CONF
}

start_munged() {
  local folder=$state/munge try
  (umask 077; head -c 256 /dev/urandom >"$folder/key")
  munged --foreground --force --key-file="$folder/key" --socket="$folder/socket" --pid-file="$folder/pid" \
    --seed-file="$folder/seed" --log-file="$folder/log" --num-threads=2 \
    </dev/null >/dev/null 2>"$folder/err" &
  echo $! >"$state/munged.pid"
  for try in $(seq 10000); do [ -S "$folder/socket" ] && return; sleep 0.01; done
  fail "munged does not start: $(cat "$folder/err")"
}

# A daemon lives as long as its node: it runs in a session of its own there.
daemon() {
  local k=$1
  shift
  "$nodes" exec "$k" setsid -f "$@" </dev/null >/dev/null 2>>"$state/log/$1.node$k.err"
}
start_slurmd() { mkdir -p "$state/spool/node$1" "$state/tmp/node$1"; daemon "$1" slurmd -D -N "node$1"; }
on_login() { "$nodes" exec "$(count)" "$@"; }

idle_nodes() { on_login timeout 60 sinfo -h -N -p main -o %T 2>/dev/null | grep -c '^idle$'; }
wait_idle() {   # COUNT
  SECONDS=0
  while [ $SECONDS -lt 600 ]; do [ "$(idle_nodes)" -ge "$1" ] && return; sleep 0.1; done
  echo "slurm.sh: after $SECONDS s $(idle_nodes) nodes are idle, not $1:" >&2
  on_login sinfo -N -l >&2
  tail -n 5 "$state"/log/*.log >&2
  return 1
}

start() {
  local n=$1 k
  "$nodes" up $((n + 1)) || exit 1
  write_configuration "$n"
  start_munged
  daemon "$n" slurmctld -D -c
  for k in $(seq 0 $((n - 1))); do start_slurmd "$k"; done
  wait_idle "$n"
}

# The processes of nodes end with their nodes; only munged runs outside of them.
stop() {
  local munged try
  munged=$(cat "$state/munged.pid" 2>/dev/null)
  [ -n "$munged" ] && kill "$munged" 2>/dev/null
  "$nodes" down
  for try in $(seq 10000); do [ -n "$munged" ] && kill -0 "$munged" 2>/dev/null || return 0; sleep 0.01; done
  kill -9 "$munged"
}

kill_slurmd() {
  local pid
  for pid in $("$nodes" pids "$1"); do
    if grep -qx slurmd "/proc/$pid/comm"; then kill -9 "$pid"; fi
  done
}

case ${1:-} in
  possible) possible ;;
  start) start "${2:-4}" ;;
  keep) (start "$2") && echo up && cat >/dev/null; stop; rm -rf "$3" ;;
  run) shift; on_login "$@" ;;
  kill) kill_slurmd "$2" ;;
  crash | poweroff) "$nodes" "$1" "$2" ;;
  boot) "$nodes" boot "$2" && start_slurmd "$2" ;;
  wait-idle) wait_idle "${2:-$(count)}" ;;
  stop) stop ;;
  *) sed -n '2,/^set -u/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
