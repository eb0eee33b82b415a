#!/usr/bin/env bash
# Checks and measures trainctl on a machine with an NVIDIA GPU, within nine minutes: facts, tests of the CUDA backend, golden runs, equal
# bits, speed of steps and of kernels, memory errors, and the same steps in PyTorch where it is installed.
#
#   scripts/gpu_check.sh [--bundle DIR] [--out DIR] [--quick] [--plan]
#     --bundle DIR   uses an unpacked bundle that was made with --tests; default: builds here (needs nvcc, cmake and what
#                    scripts/install.sh installs)
#     --out DIR      where results go; default gpu-check
#     --quick        shorter limits and fewer rows, four and a half minutes in all
#     --plan         prints the parts with their limits and ends
#
# Parts run in order of importance, each with its own limit and within what is left of the whole; one that fails or runs out of time does
# not stop the others. Writes DIR/gpu-check.json, DIR/gpu-check.md and a log for each part. Exit 0: all well; 1: a part failed; 77: there
# is no GPU here.
# shellcheck disable=SC2317  # parts are called by their names
set -uo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")/.." && pwd)
script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
command_line="$0 $*"

# name | limit in seconds | limit of --quick | what it does
parts=(
  "facts|20|20|the machine: doctor, nvidia-smi"
  "tests|60|40|tests of the CUDA backend against the reference (test_gpu)"
  "golden|80|70|golden curves, f32 within 5e-4 and bf16 within 2e-2, on one rank and on TP2 x PP2 x DP2 that share a GPU"
  "bits|90|65|equal bits on every width, schedule, ZeRO stage, bucket and recomputation; CPU and GPU continue each other"
  "steps|150|50|tokens per second and MFU of a training step"
  "streams|20|15|several streams of a GPU: hardware queues, spinning blocks, small kernels next to products, calls of NCCL"
  "kernels|45|35|every op in shares of copy bandwidth and product rate"
  "sanitizer|60|25|compute-sanitizer: memory errors and races of the kernel tests"
  "peer|80|0|the same steps in PyTorch"
)
# job | model of the peer; in order of importance. The first three are those of --quick.
step_rows=(
  "gpt2-124m|gpt2-124m" "llama3-8b-half-8k|llama-8b-half" "llama3-1b-8k|llama-1b" "gpt2-1558m|gpt2-1558m"
  "llama3-3b-8k|llama-3b" "llama3-3b|llama-3b" "llama-1.5b|llama-1.5b" "llama-7b|llama-7b"
  "llama3-8b-12-layers-8k|llama-8b-12-layers"
)

bundle="" out=gpu-check quick=0 mode=all part=""
while [ $# -gt 0 ]; do
  case $1 in
    --bundle) bundle=${2:?--bundle needs a folder}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --quick) quick=1 ;;
    --plan) mode=plan ;;
    --part) mode=part part=${2:?}; shift ;;         # one part, called by this script itself
    --assemble) mode=assemble ;;                    # the two reports from what parts have left in --out
    *) echo "gpu_check.sh: unknown option $1; see the top of $0" >&2; exit 2 ;;
  esac
  shift
done
# GPU_CHECK_TIMES: all limits so many times as long, for a machine that is busy with other work.
times=${GPU_CHECK_TIMES:-1}
whole=$(($([ $quick = 1 ] && echo 270 || echo 540) * times))
limit_of() {
  local l q
  IFS='|' read -r _ l q _ <<<"$1"
  if [ $quick = 1 ]; then echo $((q * times)); else echo $((l * times)); fi
}

# ---- what parts leave: rows of "label, key, value, key, value ...", separated by tabs --------------------------------------------------
row() { local IFS=$'\t'; printf '%s\n' "$*" >>"$OUT/parts/$part.rows"; }
say() { echo "gpu_check: $*"; }
# losses FILE: one a line, of metrics.jsonl or of a golden curve
losses() { grep -o '"loss": *[-0-9.eE+]*' "$1" | sed 's/.*: *//'; }
# worst FILE FILE: the largest difference of two lists of losses; "none" when they differ in length
worst() {
  paste <(losses "$1") <(losses "$2") | awk 'NF != 2 { bad = 1 } { d = $1 - $2; if (d < 0) d = -d; if (d > m) m = d }
    END { if (bad || NR == 0) print "none"; else printf "%.3g\n", m }'
}
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "none" && a + 0 < b + 0) }'; }
# median FILE KEY: over the steps after the second
median() { tail -n +3 "$1" | grep -o "\"$2\":[-0-9.eE+]*" | cut -d: -f2 | sort -g | awk '{ a[NR] = $1 } END { if (NR) print a[int((NR + 1) / 2)] }'; }
# run NAME PART_LIMIT JOB ARGUMENT...: launches a job under its own name; sets `left` to the run's folder
run() {
  local name=$1 limit=$2 job=$3
  shift 3
  rm -rf runs/"$name"
  left=runs/$name
  timeout --kill-after=10 "$limit" "$TRAINCTL" launch "$TOP/scripts/jobs/gpu/$job.json" -s observability.run_id="$name" "$@" </dev/null
}
shared() { echo "-s launcher.ranks_per_gpu=$1 -s parallelism.world_size=$1"; }
root_of() { "$TRAINCTL" inspect-ckpt "$1" --json | grep -o '"root": *"[^"]*"' | head -n 1; }
time_left() { echo $((PART_LIMIT - $(date +%s) + PART_BEGIN)); }
field_of() { sed -n "s/.*\"$2\": *\\([0-9]*\\).*/\\1/p" "$TOP/scripts/jobs/gpu/$1.json" | head -n 1; }

# ---- the parts -------------------------------------------------------------------------------------------------------------------------
part_facts() {
  local status=0
  "$TRAINCTL" doctor || status=$?
  "$TRAINCTL" doctor --json >"$OUT/doctor.json" || status=$?
  nvidia-smi
  nvidia-smi --query-gpu=index,name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader |
    while IFS=, read -r index name driver memory clock power; do
      row "gpu $index" name "${name# }" driver "${driver# }" memory "${memory# }" clock "${clock# }" power "${power# }"
    done
  grep -q '"gpu_runs": true' "$OUT/doctor.json" || { say "doctor says that runs on a GPU are not possible"; status=1; }
  return "$status"
}

part_tests() {
  [ -x "$TEST_GPU" ] || { say "test_gpu is not built"; return 77; }
  # A bundle's test program looks for golden files where it was built; the golden, bits and checkpoint tests are parts of their own.
  local filter=() status
  [ -z "$BUNDLE" ] || filter=("~[golden]~[bits]~[checkpoint]")
  "$TEST_GPU" --durations no ${filter[@]+"${filter[@]}"} 2>&1 | tee last.txt
  status=${PIPESTATUS[0]}
  row test_gpu result "$(tail -n 2 last.txt | grep . | tail -n 1)"
  return "$status"
}

part_golden() {
  local status=0 model precision mesh bound difference
  for model in gpt2-tiny llama-tiny; do
    for precision in fp32 bf16; do
      bound=$([ "$precision" = fp32 ] && echo 5e-4 || echo 2e-2)
      for mesh in one TP2xPP2xDP2; do
        local more=()
        # shellcheck disable=SC2207
        [ "$mesh" = one ] || more=($(shared 8) -s parallelism.tensor=2 -s parallelism.pipeline=2 -s parallelism.data=2)
        difference=none
        run "golden-$model-$precision-$mesh" 40 "golden-$model" -s precision.compute="$precision" ${more[@]+"${more[@]}"} &&
          difference=$(worst "$left/metrics.jsonl" "golden/$model/curve.json")
        row "$model $precision $mesh" worst "$difference" bound "$bound"
        below "$difference" "$bound" || { say "$model $precision $mesh: $difference, not below $bound"; status=1; }
      done
    done
  done
  return "$status"
}

part_bits() {
  local status=0 name arguments base root
  local variants=(
    "one rank|"
    "dp 2|$(shared 2) -s parallelism.data=2"
    "dp 4|$(shared 4) -s parallelism.data=4"
    "pp 2, 1f1b|$(shared 2) -s parallelism.pipeline=2"
    "pp 2, gpipe|$(shared 2) -s parallelism.pipeline=2 -s parallelism.pipeline_schedule=gpipe"
    "pp 2, zero bubble|$(shared 2) -s parallelism.pipeline=2 -s parallelism.pipeline_schedule=zb-h1"
    "pp 2, interleaved|$(shared 2) -s parallelism.pipeline=2 -s parallelism.pipeline_schedule=interleaved -s parallelism.virtual_stages=2"
    "pp 4|$(shared 4) -s parallelism.pipeline=4"
    "dp 2, zero 0|$(shared 2) -s parallelism.data=2 -s parallelism.zero_stage=0"
    "recomputation|-s memory.activation_recompute=full"
    "selective recomputation|-s memory.activation_recompute=selective"
    "small buckets|$(shared 2) -s parallelism.data=2 -s parallelism.bucket_mib=0.07"
    "pp 2 x dp 2|$(shared 4) -s parallelism.pipeline=2 -s parallelism.data=2"
  )
  base=""
  for variant in "${variants[@]}"; do
    name=${variant%%|*} arguments=${variant#*|}
    root=""
    # shellcheck disable=SC2086
    run "bits-${name//[^a-z0-9]/-}" 30 same-bits $arguments && root=$(root_of "$left")
    base=${base:-$root}
    if [ -n "$root" ] && [ "$root" = "$base" ]; then
      row "$name" bits equal
    else
      row "$name" bits "$([ -n "$root" ] && echo different || echo failed)"
      say "$name: '$root' is not '$base'"
      status=1
    fi
  done
  # Three steps on one device, three on the other; f32, whose rounding differs between devices by far less than the bound.
  local from to difference
  run whole 30 same-bits -s precision.compute=fp32 || status=1
  for from in cpu cuda; do
    to=$([ "$from" = cpu ] && echo cuda || echo cpu)
    difference=none
    run "on-$to" 30 same-bits -s precision.compute=fp32 -s device="$from" --max-steps 3 &&
      timeout --kill-after=10 30 "$TRAINCTL" resume "on-$to" -s device="$to" </dev/null && difference=$(worst "$left/metrics.jsonl" runs/whole/metrics.jsonl)
    row "saved on $from, resumed on $to" worst "$difference" bound 5e-4
    below "$difference" 5e-4 || { say "saved on $from, resumed on $to: $difference"; status=1; }
  done
  return "$status"
}

part_steps() {
  local status=0 rc entry job
  [ -f tokens.idx ] || { seq 1 1500000 >numbers.txt; "$TRAINCTL" data tokenize numbers.txt --tokenizer bytes --out tokens; } || return 1
  for entry in "${step_rows[@]:0:$([ "$quick" = 1 ] && echo 3 || echo 8)}"; do
    job=${entry%%|*}
    [ "$(time_left)" -ge 25 ] || { row "$job" result "no time left"; continue; }
    run "step-$job" $(($(time_left) - 5)) "$job" -s data.train.0.path=tokens.idx
    rc=$?
    if [ "$rc" = 4 ]; then
      row "$job" result "does not fit"
    elif [ "$rc" != 0 ] || [ -z "$(median "$left/metrics.jsonl" tokens_per_s)" ]; then
      row "$job" result "failed, exit $rc"
      status=1
    else
      row "$job" tokens_per_s "$(median "$left/metrics.jsonl" tokens_per_s)" mfu "$(median "$left/metrics.jsonl" mfu)" \
        step_s "$(median "$left/metrics.jsonl" step_s)" peak_memory "$(grep -o '"peak_memory_bytes":{[^}]*' "$left/metrics.jsonl" | tail -n 1 | grep -o '"max":[0-9]*' | cut -d: -f2)"
    fi
  done
  return "$status"
}

# cells_of LINE: sets `cells` to the keys and values of a flat JSON object; lists are left out
cells_of() {
  cells=()
  while IFS=$'\t' read -r key value; do cells+=("$key" "$value"); done < <(
    grep -o '"[a-z_A-Z0-9]*": *\("[^"]*"\|[-0-9.eE+]*[0-9]\)' <<<"$1" | sed 's/^"\([^"]*\)": */\1\t/; s/\t"\(.*\)"$/\t\1/')
}

part_kernels() {
  [ -x "$BENCH" ] || { say "bench_cuda_kernels is not built"; return 77; }
  local status
  "$BENCH" | tee kernels.jsonl
  status=${PIPESTATUS[0]}
  while IFS= read -r line; do   # each begins with the model and the op
    cells_of "$line"
    if [ ${#cells[@]} -gt 4 ]; then row "${cells[1]} ${cells[3]}" "${cells[@]:4}"; fi
  done <kernels.jsonl
  return "$status"
}

part_streams() {
  [ -x "$STREAMS" ] || { say "bench_gpu_streams is not built"; return 77; }
  local status
  "$STREAMS" | tee streams.jsonl
  status=${PIPESTATUS[0]}
  while IFS= read -r line; do   # each begins with its part
    cells_of "$line"
    if [ ${#cells[@]} -gt 2 ]; then row "${cells[1]}" "${cells[@]:2}"; fi
  done <streams.jsonl
  return "$status"
}

part_sanitizer() {
  command -v compute-sanitizer >/dev/null || { say "compute-sanitizer is not installed"; return 77; }
  [ -x "$TEST_GPU" ] || { say "test_gpu is not built"; return 77; }
  local status=0 tool name rc clean late bad
  mapfile -t names < <("$TEST_GPU" "~[golden]~[bits]~[checkpoint]~[plan]" --list-test-names-only | grep -v '^$')
  [ ${#names[@]} -gt 0 ] || { say "test_gpu lists no tests"; return 1; }
  for tool in memcheck racecheck; do
    clean=0 late=0 bad=0
    for name in "${names[@]}"; do
      # Six tenths of the time are the first tool's.
      [ "$(time_left)" -ge $(($([ "$tool" = memcheck ] && echo "PART_LIMIT * 4 / 10" || echo 0) + 12)) ] || break
      timeout --kill-after=5 12 compute-sanitizer --tool "$tool" --error-exitcode 9 "$TEST_GPU" "${name//,/\\,}"
      rc=$?
      if [ "$rc" = 0 ]; then clean=$((clean + 1)); elif [ "$rc" = 124 ] || [ "$rc" = 137 ]; then late=$((late + 1)); else
        bad=$((bad + 1)) status=1
        say "$tool: $name: exit $rc"
      fi
    done
    row "$tool" tests ${#names[@]} clean "$clean" errors "$bad" out_of_time "$late"
  done
  return "$status"
}

part_peer() {
  local peer=$TOP/scripts/bench/peer_torch.py entry job model rc text recompute status=0
  if [ ! -f "$peer" ] || ! python3 -c 'import torch; assert torch.cuda.is_available()'; then say "PyTorch with a GPU is not installed"; return 77; fi
  for entry in "${step_rows[@]}"; do
    job=${entry%%|*} model=${entry#*|}
    [ "$(time_left)" -ge 30 ] || { row "$job" result "no time left"; continue; }
    recompute=()
    grep -q '"activation_recompute": "full"' "$TOP/scripts/jobs/gpu/$job.json" && recompute=(--recompute)
    text=$(timeout --kill-after=5 $(($(time_left) - 5)) python3 "$peer" --model "$model" --seq-len "$(field_of "$job" seq_len)" \
      --micro-batch "$(field_of "$job" micro_sequences)" --steps 6 --warmup 3 ${recompute[@]+"${recompute[@]}"} \
      --tokens-per-step $(($(field_of "$job" global_sequences) * $(field_of "$job" seq_len))))
    rc=$?
    echo "$text"
    if [ "$rc" = 77 ]; then return 77; fi
    if [ "$rc" != 0 ]; then row "$job" result "exit $rc"; continue; fi   # the peer's failures are not ours
    row "$job" tokens_per_s "$(grep -o '"tokens_per_s": *[-0-9.eE+]*' <<<"$text" | sed 's/.*: *//')" mfu "$(grep -o '"mfu": *[-0-9.eE+]*' <<<"$text" | sed 's/.*: *//')"
  done
  return "$status"
}

# ---- the two reports -------------------------------------------------------------------------------------------------------------------
# Each part has left parts/NAME.result: "status, exit code, seconds, limit", and maybe parts/NAME.rows.
json_text() { awk '{ gsub(/\\/, "&&"); gsub(/"/, "\\\\&"); gsub(/[\001-\037]/, " "); printf "%s%s", (NR > 1 ? " " : "\""), $0 } END { printf "\"" }' <<<"$1"; }
json_rows() { # FILE
  awk -F'\t' '
    function text(s) { gsub(/\\/, "&&", s); gsub(/"/, "\\\\&", s); gsub(/[\001-\037]/, " ", s); return "\"" s "\"" }
    function value(s) { return s ~ /^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ ? s : text(s) }
    { printf "%s\n        {\"label\": %s", (NR > 1 ? "," : ""), text($1); for (i = 2; i < NF; i += 2) printf ", %s: %s", text($i), value($(i + 1)); printf "}" }' "$1"
}
markdown_rows() { # FILE: a table for each run of rows with the same keys
  awk -F'\t' '
    function cell(s) { gsub(/\|/, "\\|", s); return s }
    { keys = ""; line = "| " cell($1); rule = "|---"; for (i = 2; i < NF; i += 2) { keys = keys " | " cell($i); line = line " | " cell($(i + 1)); rule = rule "|---" }
      if (keys != before || NR == 1) print "\n| " keys " |\n" rule "|"; before = keys; print line " |" }' "$1"
}
assemble() { # fills gpu-check.json and gpu-check.md; status 1 when a part failed
  local failed=0 first=1 entry name title status code seconds limit gpu
  gpu=$(sed -n 's/^gpu 0\tname\t\([^\t]*\).*/\1/p' "$OUT/parts/facts.rows" 2>/dev/null | head -n 1)
  gpu=${gpu:-unknown GPU}
  {
    printf '{\n  "v": 1,\n  "gpu": %s,\n  "command": %s,\n  "when": %s,\n  "parts": [' "$(json_text "$gpu")" "$(json_text "$command_line")" "$(json_text "$(date -u +%FT%TZ)")"
    for entry in "${parts[@]}"; do
      name=${entry%%|*} title=${entry##*|}
      [ -f "$OUT/parts/$name.result" ] || continue
      IFS=$'\t' read -r status code seconds limit <"$OUT/parts/$name.result"
      [ "$status" = failed ] || [ "$status" = "out of time" ] && failed=1
      [ $first = 1 ] || printf ','
      first=0
      printf '\n    {"name": "%s", "title": %s, "status": "%s", "exit": %s, "seconds": %s, "limit_s": %s,\n      "rows": [' \
        "$name" "$(json_text "$title")" "$status" "$code" "$seconds" "$limit"
      if [ -s "$OUT/parts/$name.rows" ]; then json_rows "$OUT/parts/$name.rows"; fi
      printf ']}'
    done
    printf '\n  ],\n  "ok": %s,\n  "doctor": ' "$([ $failed = 0 ] && echo true || echo false)"
    if [ -s "$OUT/doctor.json" ]; then cat "$OUT/doctor.json"; else echo null; fi
    printf '}\n'
  } >"$OUT/gpu-check.json"
  {
    # shellcheck disable=SC2016
    printf '# %s\n\n`%s`, %s\n\n| part | result | seconds | limit |\n|---|---|---|---|\n' "$gpu" "$command_line" "$(date -u +%FT%TZ)"
    for entry in "${parts[@]}"; do
      name=${entry%%|*}
      [ -f "$OUT/parts/$name.result" ] || continue
      IFS=$'\t' read -r status code seconds limit <"$OUT/parts/$name.result"
      printf '| %s: %s | %s | %s | %s |\n' "$name" "${entry##*|}" "$status" "$seconds" "$limit"
    done
    for entry in "${parts[@]}"; do
      name=${entry%%|*}
      if [ -s "$OUT/parts/$name.rows" ]; then printf '\n## %s\n' "$name"; markdown_rows "$OUT/parts/$name.rows"; fi
    done
  } >"$OUT/gpu-check.md"
  return $failed
}

# ---- the whole -------------------------------------------------------------------------------------------------------------------------
case $mode in
  plan)
    for entry in "${parts[@]}"; do printf '%-10s %4s s  %s\n' "${entry%%|*}" "$(limit_of "$entry")" "${entry##*|}"; done
    echo "whole      $(printf '%4s' "$whole") s  what a part leaves goes to the next"
    exit 0 ;;
  part) cd "$OUT/work" || exit 1; "part_$part"; exit $? ;;
esac
if [ $mode = all ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "gpu_check: there is no NVIDIA GPU here (nvidia-smi lists none), so nothing was checked"
  exit 77
fi
mkdir -p "$out/parts" "$out/work" || exit 2
OUT=$(cd "$out" && pwd)
if [ $mode = assemble ]; then assemble; exit $?; fi
rm -rf "$OUT"/parts/* "$OUT"/work/* "$OUT/doctor.json"
started=$(date +%s)
if [ -n "$bundle" ]; then
  TOP=$(cd "$bundle" && pwd) || exit 2
  BUNDLE=$TOP TRAINCTL=$TOP/bin/trainctl TEST_GPU=$TOP/bin/test_gpu BENCH=$TOP/bin/bench_cuda_kernels
  STREAMS=$TOP/bin/bench_gpu_streams
else
  TOP=$here BUNDLE=""
  build=${TRAINCTL_BUILD:-$here/build}
  TRAINCTL=$build/trainctl TEST_GPU=$build/test/test_gpu BENCH=$build/bench_cuda_kernels
  STREAMS=$build/bench_gpu_streams
  say "building in $build"
  if ! { cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRAINCTL_CUDA=ON &&
    timeout $((whole / 2)) cmake --build "$build" --target trainctl test_gpu bench_cuda_kernels bench_gpu_streams -- -j "$(nproc)"; } >"$OUT/build.log" 2>&1; then
    tail -n 20 "$OUT/build.log"
    say "the build failed or took longer than $((whole / 2)) s; call again to go on with it. The whole log: $OUT/build.log"
    exit 1
  fi
fi
[ -x "$TRAINCTL" ] || { say "$TRAINCTL is missing; make the bundle with --tests"; exit 2; }
ln -sfn "$TOP/test/golden" "$OUT/work/golden"
export OUT TOP BUNDLE TRAINCTL TEST_GPU BENCH STREAMS
arguments=()
[ $quick = 0 ] || arguments=(--quick)
for entry in "${parts[@]}"; do
  name=${entry%%|*} limit=$(limit_of "$entry")
  begin=$(date +%s)
  left_s=$((started + whole - begin))
  if [ "$limit" -gt $left_s ]; then limit=$left_s; fi
  code=124
  if [ "$limit" -gt 5 ]; then
    PART_BEGIN=$begin PART_LIMIT=$limit timeout --kill-after=10 "$limit" bash "$script" --part "$name" ${arguments[@]+"${arguments[@]}"} >"$OUT/$name.log" 2>&1
    code=$?
  fi
  case $code in 0) status=passed ;; 77) status=skipped ;; 124 | 137) status="out of time" ;; *) status=failed ;; esac
  if [ "$(limit_of "$entry")" = 0 ]; then status=skipped; fi
  seconds=$(($(date +%s) - begin))
  printf '%s\t%s\t%s\t%s\n' "$status" $code $seconds "$limit" >"$OUT/parts/$name.result"
  say "$name: $status ($seconds of $limit s)"
done
assemble
code=$?
cat "$OUT/gpu-check.md"
exit $code
