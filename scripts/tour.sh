#!/usr/bin/env bash
# A tour of trainctl on one machine, in about a minute once it is built: train, watch, kill a rank, resume
# on another mesh with the same bits, report, export, and load the export in Hugging Face's transformers if
# Python has them. Needs no GPU and no network.
#   scripts/tour.sh [FOLDER]     FOLDER (default: tour) keeps what it makes; it must not exist yet
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-tour}
[ ! -e "$folder" ] || { echo "$folder exists; name another folder, or remove it" >&2; exit 2; }
began=$SECONDS
part=0
say() { part=$((part + 1)); printf '\n\033[1m== %s/9 %s\033[0m\n' "$part" "$*"; }
# show COMMAND...: prints the command as a user types it, and runs it.
show() { printf '\033[1m$ trainctl%s\033[0m\n' "$(printf ' %s' "${@@Q}" | sed "s/ '\([A-Za-z0-9_./=-]*\)'/ \1/g")"; "$trainctl" "$@"; }

say "packages and program"
"$root/scripts/install.sh"
"$root/scripts/build.sh"
trainctl=${TRAINCTL_BUILD:-$root/build}/trainctl
mkdir -p "$folder"
cd "$folder"

say "text to tokens, a job, and what it will need"
find -L /usr/include/c++ -type f ! -path '*/ext/pb_ds/*' -size +1k | LC_ALL=C sort >files.txt
xargs -a files.txt "$trainctl" data tokenize --out train --train-vocab 2048 --split 98:2
cat >job.json <<'JSON'
// Half a million parameters on four ranks, each with its own part of the batch.
{
  "version": 1,
  "name": "tour",
  "model": { "preset": "llama-tiny", "vocab_size": 2048, "max_seq_len": 128 },
  "data": {
    "tokenizer": "tokenizer.model", "seq_len": 128,
    "train": [ { "path": "train.idx" } ], "val": [ { "path": "train-val.idx" } ]
  },
  "batch": { "global_sequences": 16, "micro_sequences": 2 },
  "parallelism": { "data": 4 },
  "schedule": { "total_steps": 160, "lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 20 },
  "eval": { "every_steps": 80, "max_tokens": "8Ki" },
  "checkpoint": { "every_steps": 40 },
  "observability": { "log_every_steps": 20 }
}
JSON
show validate job.json
show plan job.json

say "an undisturbed run, to compare with"
show launch job.json -s observability.run_id=undisturbed

say "the same run again, in the background"
show launch job.json -s observability.run_id=disturbed --detach
trap '"$trainctl" stop disturbed --now >/dev/null 2>&1 || true' EXIT   # should the tour end early
# Until the run has finished step 50; its steps take some tenths of a second.
for ((i = 0; i < 600; ++i)); do
  status=$("$trainctl" status disturbed --json)
  step=$(grep -o '"step":[0-9]*' <<<"$status" | tail -n 1 | cut -d: -f2)
  [ "${step:-0}" -ge 50 ] && break
  sleep 0.2
done
show status disturbed

say "a rank is killed"
pid=$(grep -o '"pid":[0-9]*,"rank":2' <<<"$status" | head -n 1 | grep -o '[0-9]*' | head -n 1)
echo "kill -9 $pid    # rank 2"
kill -9 "$pid"
for ((i = 0; i < 300; ++i)); do
  "$trainctl" status disturbed --json | grep -q '"state":"failed"' && break
  sleep 0.2
done
show diagnose disturbed || true

say "resumed on another mesh: two stages of a pipeline, two ranks each"
show resume disturbed -s parallelism.pipeline=2 -s parallelism.data=2
trap - EXIT
echo
echo "Both runs end with the same bits:"
show inspect-ckpt undisturbed --diff disturbed

say "a page about both runs"
show report disturbed undisturbed --out report.html

say "text from the model, and its weights for other programs"
show sample disturbed --prompt 'template<typename _Tp>' --tokens 60 --temperature 0.7
show export disturbed --out exported --dtype f32 --check-forward 64

say "the export in Hugging Face's transformers"
if python3 -c 'import torch, transformers' 2>/dev/null; then
  HF_HUB_OFFLINE=1 python3 - <<'PYTHON'
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("exported")
with torch.no_grad():
    logits = model(torch.arange(100, 164)[None]).logits
print(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()):,} parameters, "
      f"logits {tuple(logits.shape)}, all finite: {bool(logits.isfinite().all())}")
PYTHON
else
  echo "left out: this python3 has no torch and transformers (pip install torch transformers)"
fi
printf '\n\033[1m== done in %s s\033[0m\n' "$((SECONDS - began))"
cat <<NEXT
next:
  a browser on $PWD/report.html
  build/trainctl status disturbed --serve --run-dir $(printf %q "$PWD/runs")
  scripts/tour.sh starts from nothing again once $folder is removed
NEXT
