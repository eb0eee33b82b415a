#!/usr/bin/env bash
# Goal: a run saves, verifies and resumes on a real FUSE mount, which refuses the flag of renameat2 (EINVAL).
# Method: bindfs shows a temporary folder under another path; the whole run lives below it. The end state is compared with that of a run
# beside the mount. Skipped (77) where bindfs is not installed or may not mount.
# usage: fuse_saving.sh TRAINCTL SOURCE_DIR
set -eu
trainctl=$1 source=$2
command -v bindfs >/dev/null || { echo "skipped: bindfs is not installed (apt-get install bindfs)"; exit 77; }
folder=$(mktemp -d)
mkdir "$folder/behind" "$folder/mount"
clean_up() {
  umount "$folder/mount" 2>/dev/null || fusermount -u "$folder/mount" 2>/dev/null || true
  mountpoint -q "$folder/mount" || rm -rf "$folder"
}
trap clean_up EXIT
bindfs "$folder/behind" "$folder/mount" || { echo "skipped: FUSE cannot be mounted here"; exit 77; }

cat > "$folder/job.json" <<END
{"version": 1, "name": "fuse", "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "$source/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}], "seq_len": 32},
 "batch": {"global_sequences": 8, "micro_sequences": 1}, "schedule": {"total_steps": 8, "lr": 1e-3},
 "parallelism": {"data": 2}, "checkpoint": {"every_steps": 2, "chunk_mib": 0.01}, "observability": {"run_id": "r"}}
END
cd "$folder"
"$trainctl" -q launch job.json -s observability.run_dir="$folder/plain"
"$trainctl" -q launch job.json -s observability.run_dir="$folder/mount/runs" --max-steps 4
"$trainctl" inspect-ckpt "$folder/mount/runs/r" --verify
"$trainctl" -q resume "$folder/mount/runs/r"
"$trainctl" inspect-ckpt "$folder/mount/runs/r" --verify
"$trainctl" inspect-ckpt "$folder/mount/runs/r" --diff "$folder/plain/r"
# Nothing is left behind by a save: no .nfs or .fuse_hidden names, no trash.
left=$(find "$folder/behind/runs/r/ckpt" -mindepth 1 -maxdepth 2 -path '*/.*/*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
