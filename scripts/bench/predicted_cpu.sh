#!/usr/bin/env bash
# Predicted against measured steps of CPU ranks: one small model on twelve meshes, from a cluster file that was
# measured here.
#
#   scripts/bench/predicted_cpu.sh [CLUSTER.json]
#
# Prints a table in Markdown: seconds of a step, of its passes (forward and backward without waits), of its waits
# and of the optimizer, predicted and measured. Without CLUSTER.json it measures one first. About four minutes on
# two quiet cores. $TRAINCTL: the program (build/trainctl); $STEPS: steps of a mesh (12); $RUNS: an empty folder for
# the runs, or one that an earlier call filled, whose runs are compared again.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
trainctl=$(realpath "${TRAINCTL:-$root/build/trainctl}")
cluster=${1:+$(realpath "$1")}
work=$(mktemp -d)
runs=$(realpath "${RUNS:-$work}")
trap 'rm -rf "$work"' EXIT
cd "$work"

find -L /usr/include/c++ -type f -size +20k | LC_ALL=C sort | sed -n 1,40p |
  xargs "$trainctl" data tokenize --tokenizer bytes --out tokens >/dev/null 2>&1
if [ -z "$cluster" ]; then
  cluster=$work/cluster.json
  "$trainctl" doctor --measure -o "$cluster" >&2
fi
cat >job.json <<JOB
{"version": 1, "name": "bench", "device": "cpu",
 "model": {"family": "llama", "hidden_size": 384, "num_layers": 6, "num_heads": 6, "num_kv_heads": 6,
           "ffn_size": 1024, "vocab_size": 2048, "max_seq_len": 256, "tie_embeddings": false},
 "data": {"train": [{"path": "tokens.idx"}], "seq_len": 256},
 "batch": {"global_sequences": 8, "micro_sequences": 2},
 "parallelism": {"threads_per_rank": 1}, "precision": {"compute": "f32"},
 "schedule": {"total_steps": ${STEPS:-12}, "warmup_steps": 2, "lr": 1e-4},
 "checkpoint": {"on_exit": false, "memory": "off"},
 "observability": {"log_every_steps": 1, "rank_metrics_every_steps": 1}}
JOB

# Of one kind of instruction: predicted and measured seconds.
kind() {
  tr -d '\n ' <against.json | sed -nE "s/.*\"name\":\"$1\",\"predicted_s\":([0-9.e+-]+),\"measured_s\":([0-9.e+-]+).*/\1 \2/p"
}
# row NAME SETTING...
row() {
  local name=$1 settings=() folder="$runs/${1//[^a-z0-9]/-}"
  shift
  for setting in "$@"; do settings+=(-s "$setting"); done
  if [ ! -d "$folder" ] && ! "$trainctl" launch job.json --run-dir "$folder" "${settings[@]}" >launch.log 2>&1; then
    cat launch.log >&2
    exit 1
  fi
  "$trainctl" plan --against latest --run-dir "$folder" --cluster "$cluster" --json >against.json
  echo "$name" >&2
  "$trainctl" plan --against latest --run-dir "$folder" --cluster "$cluster" >&2
  echo "$(kind step) $(kind forward) $(kind backward) $(kind exchangesandwaits) $(kind optimizer)" |
    awk -v name="$name" '
      function far(a, b) { return sprintf("%+.1f %%", 100 * (a / b - 1)) }
      { p = $3 + $5; m = $4 + $6
        printf "| %s | %.3f | %.3f | %s | %.3f | %.3f | %s ", name, $1, $2, far($1, $2), p, m, far(p, m)
        printf "| %.3f | %.3f | %.3f | %.3f |\n", $7, $8, $9, $10 }' | tee -a rows
}

echo "| mesh | step: predicted | measured | error | passes: predicted | measured | error |" \
  "waits: predicted | measured | optimizer: predicted | measured |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
pipeline=parallelism.pipeline=2
row "1 rank"
row "1 rank, bf16" precision.compute=bf16
row "1 rank, recomputation" memory.activation_recompute=full
row "tensor 2" parallelism.tensor=2
row "tensor 2, bf16" parallelism.tensor=2 precision.compute=bf16
row "pipeline 2, 1f1b" $pipeline
row "pipeline 2, zb-h1" $pipeline parallelism.pipeline_schedule=zb-h1
row "pipeline 2 x 2" $pipeline parallelism.pipeline_schedule=interleaved parallelism.virtual_stages=2
row "data 2" parallelism.data=2
row "data 2, ZeRO-3" parallelism.data=2 parallelism.zero_stage=3
row "context 2" parallelism.context=2
row "tensor 2, pipeline 2" parallelism.tensor=2 $pipeline
awk -F'|' '
  { gsub(/[ %+]/, "", $5); e = $5 + 0; if (e < 0) e = -e; sum += e; if (e > most) most = e; if (e <= 10) ++within }
  END { printf "\n%d meshes: mean absolute error of the step %.1f %%, largest %.1f %%, ", NR, sum / NR, most
        printf "%d within 10 %%\n", within }' rows
