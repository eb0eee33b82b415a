#!/usr/bin/env bash
# Proves that a bundle needs nothing of the machine: unpacks it to an empty folder with a space in its name and there, with an empty
# environment, runs `doctor` and a training job on two ranks; then the same as an ordinary user inside a root that holds glibc, the dynamic
# loader, /bin/sh and nothing else.
#
#   scripts/bundle_test.sh [ARCHIVE]     default: packs what TRAINCTL_BUILD (default build/) holds
#
# Where a root of its own is not allowed (no namespaces, no chroot) that part is left out, with a line that says so, unless
# TRAINCTL_REQUIRE_CHROOT is set.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
die() { echo "bundle_test: $*" >&2; exit 1; }

archive=${1:-}
if [ -z "$archive" ]; then
  archive=$work/bundle.tar.zst
  "$root/scripts/bundle.sh" --no-build --fast --out "$archive"
fi
machine="$work/a machine"
home="$machine/any folder"
mkdir -p "$home"
zstd -dcq "$archive" | tar -C "$home" -xf -
bundle=$(find "$home" -mindepth 1 -maxdepth 1 -type d)
[ -x "$bundle/bin/trainctl" ] || die "no bin/trainctl in $archive"

cat >"$home/job.json" <<'JSON'
{ "version": 1, "name": "bundle", "model": { "preset": "gpt2-tiny" },
  "data": { "train": [ { "path": "tokens.bin", "format": "raw", "dtype": "uint16" } ], "seq_len": 32 },
  "batch": { "global_sequences": 8, "micro_sequences": 2 }, "parallelism": { "tensor": 2, "threads_per_rank": 1 },
  "schedule": { "total_steps": 3, "lr": 1e-3 } }
JSON
cp "$root/test/golden/gpt2-tiny/tokens.bin" "$home/"

# check WHERE HOME COMMAND...: doctor, launch and what they leave; HOME is the folder as this script sees it.
check() {
  local where=$1 folder=$2 facts run
  shift 2
  "$@" doctor --json >"$work/doctor.json" || die "$where: doctor fails: $(cat "$work/doctor.json")"
  facts=$(tr -d ' \n' <"$work/doctor.json")
  for fact in '"cpu_runs":true' '"launcher_is_bundled":true' '"problem":""'; do
    case $facts in *"$fact"*) ;; *) die "$where: doctor does not say $fact: $facts" ;; esac
  done
  "$@" launch job.json >"$work/launch.log" 2>&1 || { cat "$work/launch.log" "$folder"/runs/*/logs/* >&2; die "$where: launch fails"; }
  run=$(find "$folder/runs" -mindepth 1 -maxdepth 1 -type d)
  [ "$(wc -l <"$run/metrics.jsonl")" = 3 ] || die "$where: not three steps in $run/metrics.jsonl"
  [ -s "$run/logs/rank-1.log" ] || die "$where: rank 1 has left no log"
  "$@" inspect-ckpt latest --verify >"$work/inspect.log" 2>&1 || { cat "$work/inspect.log" >&2; die "$where: inspect-ckpt --verify fails"; }
  rm -rf "$folder/runs"
  echo "bundle_test: $where: doctor, launch of 2 ranks, inspect-ckpt: well"
}

in_empty_environment() { (cd "$home" && exec env -i "$bundle/bin/trainctl" "$@"); }
check "empty environment" "$home" in_empty_environment

# ---- a root of its own ----------------------------------------------------------------------------------------------------------------
loader=/lib64/ld-linux-x86-64.so.2
libc=$(ldd /bin/sh | sed -n 's/.* => \(\/.*libc\.so\.6\) .*/\1/p')
mkdir -p "$machine"/{bin,lib64,tmp,proc,dev,lib/x86_64-linux-gnu}
chmod 1777 "$machine/tmp"
cp -L $loader "$machine$loader"
for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libutil.so.1; do
  if [ -e "$(dirname "$libc")/$library" ]; then cp -L "$(dirname "$libc")/$library" "$machine/lib/x86_64-linux-gnu/"; fi
done
cp -L /bin/sh "$machine/bin/sh"
user=65534
if [ "$(id -u)" = 0 ]; then
  chown -R $user:$user "$home"
  own=(unshare --mount --pid --fork) switch=(--userspec="$user:$user")
else
  own=(unshare --map-root-user --mount --pid --fork) switch=()
fi
# shellcheck disable=SC2016
prepare='mount --rbind /dev "$1/dev" && mount -t tmpfs none "$1/dev/shm" && mount -t proc none "$1/proc" || exit 99; root=$1; shift;'
inside() { # as an ordinary user where this script is root
  "${own[@]}" bash -c "$prepare exec env -i $(command -v chroot) \"\$@\"" - "$machine" ${switch[@]+"${switch[@]}"} "$machine" /bin/sh -c \
    'cd "/any folder" && exec ./*/bin/trainctl "$@"' - "$@"
}
if ! inside --version >"$work/version" 2>&1; then
  [ -z "${TRAINCTL_REQUIRE_CHROOT:-}" ] || die "no root of its own is allowed here: $(cat "$work/version")"
  "${own[@]}" true 2>/dev/null && die "in a root of its own the program does not start: $(cat "$work/version")"
  echo "bundle_test: a root of its own is not allowed here; that part is left out"
  exit 0
fi
check "a root with glibc alone" "$home" inside
