#!/usr/bin/env bash
# Goal: a run outlives a run directory that answers to no write for longer than grace_seconds: its ranks are
#       not restarted, and its bits and records are those of an undisturbed run.
# Method: the run directory is on a file system of its own, in a file, which is frozen (fsfreeze) while the
#         run trains. Skipped (77) where that cannot be mounted: it needs root, mkfs.ext4 and a loop device.
# usage: hanging_folder.sh TRAINCTL SOURCE_DIR
set -eu
trainctl=$1 source=$2 frozen_s=34
folder=$(mktemp -d)
mkdir "$folder/mount"
run='' thawing=''
clean_up() {
  fsfreeze -u "$folder/mount" 2>/dev/null || true
  [ -z "$thawing" ] || kill "$thawing" 2>/dev/null || true
  [ -z "$run" ] || { kill -INT "$run" 2>/dev/null && wait "$run"; } || true
  umount "$folder/mount" 2>/dev/null || true
  mountpoint -q "$folder/mount" || rm -rf "$folder"
}
trap clean_up EXIT
truncate -s 64M "$folder/disk"
mounted() { mkfs.ext4 -q "$folder/disk" && mount -o loop "$folder/disk" "$folder/mount" && command -v fsfreeze; }
mounted >/dev/null 2>&1 ||
  { echo "skipped: a file system of its own cannot be mounted here"; exit 77; }

cat > "$folder/job.json" <<END
{"version": 1, "name": "hanging", "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "$source/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}],
          "seq_len": 32},
 "batch": {"global_sequences": 8, "micro_sequences": 1}, "schedule": {"total_steps": 300, "lr": 1e-3},
 "parallelism": {"data": 2}, "checkpoint": {"every_steps": 50},
 "fault_tolerance": {"max_restarts": 3, "grace_seconds": 30},
 "observability": {"run_id": "r"}}
END
cd "$folder"
"$trainctl" -q launch job.json -s observability.run_dir="$folder/plain"
"$trainctl" launch job.json -s observability.run_dir="$folder/mount" >"$folder/said" 2>&1 &
run=$!
tail -F --pid "$run" "$folder/mount/r/metrics.jsonl" 2>/dev/null | grep -m 1 '"step":20,' >/dev/null
# Also if this script is killed meanwhile: what is frozen cannot be unmounted or removed.
(sleep $((frozen_s + 20)); fsfreeze -u "$folder/mount" || true) >/dev/null 2>&1 &
thawing=$!
fsfreeze -f "$folder/mount"
sleep "$frozen_s"
fsfreeze -u "$folder/mount"
status=0
wait "$run" || status=$?
run=''
grep -v "^t=" "$folder/said"
[ "$status" = 0 ] || { echo "exit $status"; exit 1; }
if grep -qE '"kind":"(restart|failure|node_lost)"' "$folder/mount/r/events.jsonl"; then
  echo "an attempt ended"
  exit 1
fi
grep -q "has not answered for" "$folder/said" || { echo "it was not said"; exit 1; }
"$trainctl" inspect-ckpt "$folder/mount/r" --diff "$folder/plain/r"
steps=$(wc -l <"$folder/mount/r/metrics.jsonl")
[ "$steps" = 300 ] || { echo "metrics.jsonl has $steps of 300 steps"; exit 1; }
"$trainctl" compare "$folder/mount/r" "$folder/plain/r" >/dev/null
