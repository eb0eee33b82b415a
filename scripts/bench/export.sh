#!/usr/bin/env bash
# How fast `trainctl export` and `import` are, over what a plain program does with the same bytes on the same
# disk: read the weights of the checkpoint cold, write the folder and sync it, read it again cold (dd with
# O_DIRECT, blocks of 8 MiB, one after the other). Import over the same of its own bytes: read the folder, write
# the checkpoint (weights and moments), sync.
#   scripts/bench/export.sh [FOLDER [ROUNDS]]
#     FOLDER   on the disk to measure, takes 4 GB (default: the temporary folder);  ROUNDS: 5
# Prints a JSON object; each ratio is the plain program's best time over trainctl's best time, in turn.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
trainctl=${TRAINCTL_BUILD:-$root/build}/trainctl
work=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/export.XXXXXX")
rounds=${2:-5}
trap 'rm -rf "$work"' EXIT
cd "$work"
say() { echo "export: $*" >&2; }

find -L /usr/include/c++ -type f -size +20k | LC_ALL=C sort | sed -n 1,4p |
  xargs "$trainctl" data tokenize --tokenizer bytes --out tokens >/dev/null 2>&1
# 160 M parameters: 640 MB of float32
cat >job.json <<'JSON'
{"version":1,"name":"bench",
 "model":{"family":"llama","hidden_size":768,"num_layers":16,"num_heads":12,"num_kv_heads":12,
          "ffn_size":2048,"vocab_size":32000,"max_seq_len":64},
 "data":{"train":[{"path":"tokens.idx"}],"seq_len":16},"batch":{"global_sequences":1,"micro_sequences":1},
 "schedule":{"total_steps":1,"lr":1e-4},"checkpoint":{"memory":"off"},"observability":{"run_id":"bench"}}
JSON
"$trainctl" launch job.json >launch.log 2>&1 || { cat launch.log >&2; exit 1; }

# seconds COMMAND...: of a command whose files no cache holds
seconds() {
  sync
  local begin=$EPOCHREALTIME
  "$@" >/dev/null 2>command.log || { cat command.log >&2; exit 1; }
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN{printf "%.3f\n", b-a}'
}
# The bytes of a file in whole pages, as O_DIRECT asks.
pages() { echo $(($(stat -c %s "$1") / 4096 * 4096)); }
best() { sort -g "$1" | head -n 1; }
block=$((8 << 20))
read_cold() { dd if="$1" of=/dev/null bs=$block iflag=direct,count_bytes count="$2" status=none; }
write_synced() {
  dd if="$1" of="$2" bs=$block iflag=direct,count_bytes oflag=direct count="$3" conv=fsync status=none
}
# What the plain program writes comes from this file: so it reads as many bytes as it writes. Of an export in bf16
# it reads as many again, for the checkpoint has float32.
shard=$(ls -S runs/bench/ckpt/step-*/*.safetensors | head -n 1)
plain_export() {
  rm -f copy
  [ "$dtype" = f32 ] || read_cold "$shard" "$1"
  write_synced "$shard" copy "$1"
  read_cold copy "$1"
}
plain_import() { rm -f copy && read_cold out/model.safetensors "$1" && write_synced "$shard" copy $((3 * $1)); }

results=""
for dtype in f32 bf16; do
  rm -f plain.s ours.s
  for ((i = 0; i < rounds; ++i)); do
    rm -rf out
    seconds "$trainctl" export bench --out out --dtype $dtype >>ours.s
    bytes=$(pages out/model.safetensors)
    seconds plain_export "$bytes" >>plain.s
  done
  ratio=$(awk -v a="$(best plain.s)" -v b="$(best ours.s)" 'BEGIN{printf "%.2f", a/b}')
  say "$dtype, $((bytes / 1000000)) MB: export $(best ours.s) s, plain $(best plain.s) s: $ratio"
  results+="\"export_$dtype\":$ratio,"
done
rm -rf out && "$trainctl" export bench --out out --dtype f32 >/dev/null
bytes=$(pages out/model.safetensors)
rm -f plain.s ours.s
for ((i = 0; i < rounds; ++i)); do
  rm -rf imported
  seconds "$trainctl" import out --out imported >>ours.s
  seconds plain_import "$bytes" >>plain.s
done
ratio=$(awk -v a="$(best plain.s)" -v b="$(best ours.s)" 'BEGIN{printf "%.2f", a/b}')
say "f32: import $(best ours.s) s, plain $(best plain.s) s: $ratio"
echo "{$results\"import_f32\":$ratio}"
