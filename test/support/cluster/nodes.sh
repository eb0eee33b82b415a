#!/bin/bash
# A fake cluster on one machine. A node is a set of namespaces (network, hostname, IPC, mounts, processes)
# on a bridge of its own: it has an address, a hostname, its own processes, /dev/shm, /run and /local, and
# it can crash, lose power or be cut off. Other folders are shared, like a cluster's home. The machine's own
# network is not touched. Needs root, iproute2, util-linux and procps.
#
#   nodes.sh possible      exits 0 where fake nodes can be made; else prints the reason and exits 77
#   nodes.sh up [N]        starts node0 ... node<N-1>; node K has hostname nodeK and address 10.77.0.<10+K>
#   nodes.sh keep N FOLDER `up`, prints "up", and when its standard input ends (when the caller dies) ends
#                          everything and removes FOLDER
#   nodes.sh exec K CMD... runs CMD on node K; the signals TERM INT HUP QUIT USR1 USR2 are passed on, and
#                          CMD dies with this script
#   nodes.sh pids K        the processes of node K, as numbered outside of it
#   nodes.sh crash K       all processes die at once; the node's kernel still answers (FIN or RST)
#   nodes.sh poweroff K    the same in silence: not a packet leaves
#   nodes.sh boot K        brings a crashed or switched-off node back, without processes
#   nodes.sh partition K   silence between node K and all others, while K goes on and its link stays up
#   nodes.sh heal K        ends it
#   nodes.sh cut A B       silence between two nodes only
#   nodes.sh mend A B      ends it
#   nodes.sh slow K RATE   limits what node K sends and receives, e.g. to 2mbit; without RATE: no limit
#   nodes.sh sshd          starts an sshd on each node and prints the FILE for `ssh -F FILE nodeK CMD`
#   nodes.sh down          ends everything; harmless where nothing is up
#
# Several clusters stand side by side, each with its own TCN_PREFIX. TCN_NET: the first three bytes of the
# addresses. TCN_PRIVATE: more folders of which each node has its own. tcn-rsh is a remote shell between the
# nodes.
set -u
prefix=${TCN_PREFIX:-tcn}
net=${TCN_NET:-10.77.0}
state=/run/$prefix
switch=$prefix-switch   # the network namespace that holds the bridge
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { echo "nodes.sh: $*" >&2; exit 1; }

# The first process of node K, as numbered outside; empty when the node is down.
first_process() { cat "$state/node$1.pid" 2>/dev/null; }
running() { local pid; pid=$(first_process "$1"); [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; }
count() { cat "$state/count" 2>/dev/null || echo 0; }
address() { echo "$net.$((10 + $1))"; }
hardware_address() { printf '02:77:00:00:%02x:%02x' $((($1 + 1) / 256)) $((($1 + 1) % 256)); }

# Polls a command every 10 ms for at most 100 s, which only end a test that hangs.
eventually() { local try; for try in $(seq 10000); do "$@" && return 0; sleep 0.01; done; return 1; }

possible() {
  [ "$(id -u)" = 0 ] || { echo "fake nodes need root"; return 77; }
  local program why
  for program in ip bridge tc nsenter unshare setsid setpriv pkill; do
    if ! command -v "$program" >/dev/null; then
      echo "fake nodes need the program $program (Debian: iproute2 util-linux procps)"
      return 77
    fi
  done
  why=$(ip netns add "$prefix-try-$$" 2>&1 && ip -n "$prefix-try-$$" link add br0 type bridge 2>&1 &&
        ip -n "$prefix-try-$$" link add p0 type veth peer name p1 2>&1 &&
        unshare --uts --ipc --mount --propagation private --pid --fork --mount-proc \
          mount -t tmpfs tmpfs /dev/shm 2>&1)
  local rc=$?
  ip netns del "$prefix-try-$$" 2>/dev/null
  [ $rc = 0 ] || { echo "fake nodes need network, mount and process namespaces: $why"; return 77; }
}

# The port of a node at the bridge. Disabled (0): the link stays up and nothing passes. Forwarding: 3.
port() { bridge -n "$switch" link set dev "p$1" state "$2"; }

# Every process of the node's process namespace but the first.
pids() {
  local first own
  first=$(first_process "$1")
  [ -n "$first" ] && own=$(stat -L -c %i "/proc/$first/ns/pid" 2>/dev/null) || return 0
  stat -L -c '%i %n' /proc/[0-9]*/ns/pid 2>/dev/null | awk -v own="$own" -v first="$first" \
    '$1 == own { split($2, part, "/"); if (part[3] != first) print part[3] }'
}

# Its first process serves the remote shell and reaps orphans. When it is killed the kernel kills the whole
# node.
boot() {
  local k=$1 starter
  rm -f "$state/node$k.rsh" "$state/node$k.rsh.up"
  mkfifo -m 666 "$state/node$k.rsh"
  # The state folder stays visible below the node's own, empty /run.
  setsid nsenter --net="/run/netns/$prefix-$k" \
    unshare --uts --ipc --mount --propagation private --pid --fork --kill-child --mount-proc bash -c '
      k=$1 state=$2 here=$3; shift 3
      hostname "node$k"
      mount -t tmpfs -o size=2g tmpfs /dev/shm
      mount --bind "$state/hosts" /etc/hosts
      for folder in /local "$@"; do
        mkdir -p "$folder"; mount -t tmpfs -o size=4g,mode=1777 tmpfs "$folder"
      done
      mkdir /local/.state && mount --bind "$state" /local/.state
      mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p "$state" /run/sshd
      mount --move /local/.state "$state" && rmdir /local/.state
      exec bash "$here/tcn-rsh" --serve "$state/node$k.rsh"' - "$k" "$state" "$here" ${TCN_PRIVATE:-} \
    </dev/null >/dev/null 2>"$state/node$k.log" &
  starter=$!
  eventually [ -e "$state/node$k.rsh.up" ] || fail "node$k did not start: $(cat "$state/node$k.log")"
  pgrep -P "$starter" >"$state/node$k.pid" || fail "node$k did not start: its first process is gone"
}

no_process_in() { [ -z "$(ip netns pids "$prefix-$1" 2>/dev/null)" ]; }
halt() {
  local pid
  pid=$(first_process "$1")
  [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null
  # Those that entered the node from outside end a moment later; the file names a living node until then.
  eventually no_process_in "$1" || fail "processes of node$1 do not end:" $(ip netns pids "$prefix-$1")
  rm -f "$state/node$1.pid"
}

up() {
  local n=$1 k
  [ -e "$state" ] && fail "$state exists: a cluster $prefix is up; TCN_PREFIX=$prefix nodes.sh down ends it"
  mkdir -p "$state" && mkdir -m 1777 "$state/rsh" && echo "$n" >"$state/count" || fail "cannot make $state"
  ip netns add "$switch" && ip -n "$switch" link add br0 type bridge && ip -n "$switch" link set br0 up ||
    fail "cannot make a bridge"
  echo "127.0.0.1 localhost" >"$state/hosts"
  for k in $(seq 0 $((n - 1))); do echo "$(address "$k") node$k" >>"$state/hosts"; done
  for k in $(seq 0 $((n - 1))); do
    ip netns add "$prefix-$k" &&
      ip -n "$switch" link add "p$k" type veth \
        peer name eth0 address "$(hardware_address "$k")" netns "$prefix-$k" &&
      ip -n "$switch" link set "p$k" master br0 up &&
      ip -n "$prefix-$k" link set lo up &&
      ip -n "$prefix-$k" addr add "$(address "$k")/24" dev eth0 &&
      ip -n "$prefix-$k" link set eth0 up || fail "cannot make the network of node$k"
    boot "$k"
  done
}

down() {
  local k
  # All at once, then wait for each.
  for k in $(seq 0 $(($(count) - 1))); do kill -9 "$(first_process "$k")" 2>/dev/null; done
  for k in $(seq 0 $(($(count) - 1))); do (halt "$k"); ip netns del "$prefix-$k" 2>/dev/null; done
  ip netns del "$switch" 2>/dev/null
  rm -rf "$state"
}

run_on() {
  local k=$1 child= status signal interrupted
  shift
  running "$k" || fail "node$k is not running"
  for signal in TERM INT HUP QUIT USR1 USR2; do
    trap "interrupted=1; [ -n \"\$child\" ] && pkill -$signal -P \$child" $signal
  done
  # A shell's background command ignores INT and QUIT: `env` undoes that.
  setpriv --pdeathsig KILL nsenter -t "$(first_process "$k")" -n -u -i -m -p --wdns="$PWD" -- \
    env --default-signal setpriv --pdeathsig KILL "$@" <&0 &
  child=$!
  # A signal ends `wait` early, with a status that is not the child's.
  while interrupted=; wait "$child"; status=$?; [ -n "$interrupted" ]; do :; done
  exit "$status"
}

# Node A sends to a hardware address that is nobody's: the packets leave and are received by nobody.
cut_one_way() {
  ip -n "$prefix-$1" neigh replace "$(address "$2")" lladdr 02:66:66:66:66:66 nud permanent dev eth0
}
mend_one_way() { ip -n "$prefix-$1" neigh del "$(address "$2")" dev eth0 2>/dev/null; true; }

limit_rate() {   # NETWORK_NAMESPACE DEVICE [RATE]
  if [ -n "${3:-}" ]; then tc -n "$1" qdisc replace dev "$2" root tbf rate "$3" burst 16kb latency 200ms
  else tc -n "$1" qdisc del dev "$2" root; fi
}

answers_ssh() { (exec 3<>/dev/tcp/localhost/22) 2>/dev/null; }
start_sshd() {
  local folder=$state/ssh sshd key k
  if ! sshd=$(PATH=$PATH:/usr/sbin command -v sshd); then
    echo "it needs sshd (Debian: openssh-server)" >&2
    exit 77
  fi
  mkdir -m 700 "$folder" 2>/dev/null || fail "$folder is there: sshd was started before"
  for key in host_key user_key; do
    ssh-keygen -q -t ed25519 -N '' -f "$folder/$key" || fail "ssh-keygen failed"
  done
  printf '%s\n' "HostKey $folder/host_key" "AuthorizedKeysFile $folder/user_key.pub" "StrictModes no" \
    "UsePAM no" "PasswordAuthentication no" "PermitRootLogin prohibit-password" "PidFile none" \
    "MaxStartups 100" >"$folder/sshd_config"
  printf '%s\n' "Host node*" "  User root" "  IdentityFile $folder/user_key" "  IdentitiesOnly yes" \
    "  UserKnownHostsFile $folder/known_hosts" "  GlobalKnownHostsFile /dev/null" \
    "  StrictHostKeyChecking yes" >"$folder/config"
  for k in $(seq 0 $(($(count) - 1))); do
    echo "node$k,$(address "$k") $(cut -d ' ' -f 1,2 "$folder/host_key.pub")" >>"$folder/known_hosts"
    start_one_sshd "$k" "$sshd"
  done
  echo "$folder/config"
}
# In a session of its own, so that it lives as long as the node and not as long as this script.
start_one_sshd() {
  local log=$state/ssh/node$1.log
  (run_on "$1" setsid -f "$2" -D -f "$state/ssh/sshd_config" -E "$log") </dev/null >/dev/null 2>&1
  (run_on "$1" bash -c "$(declare -f answers_ssh eventually); eventually answers_ssh") 2>/dev/null ||
    fail "sshd of node$1 does not answer: $(cat "$log")"
}

case ${1:-} in
  possible) possible ;;
  up) up "${2:-4}" ;;
  keep) (up "$2") && echo up && cat >/dev/null; down; rm -rf "$3" ;;
  exec) shift; run_on "$@" ;;
  pids) pids "$2" ;;
  crash) halt "$2" ;;
  poweroff) port "$2" 0; halt "$2" ;;
  partition) port "$2" 0 ;;
  heal) port "$2" 3 ;;
  cut) cut_one_way "$2" "$3"; cut_one_way "$3" "$2" ;;
  mend) mend_one_way "$2" "$3"; mend_one_way "$3" "$2" ;;
  boot) port "$2" 3; running "$2" || boot "$2" ;;
  slow) limit_rate "$switch" "p$2" "${3:-}"; limit_rate "$prefix-$2" eth0 "${3:-}" ;;
  sshd) start_sshd ;;
  down) down ;;
  *) sed -n '2,/^set -u/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
