#!/usr/bin/env bash
# Measures trainctl on this machine and writes one JSON object to stdout (progress on stderr). Every figure that matters is a ratio
# of two measurements of this run. Run it on a quiet machine: everything takes about 20 minutes on two cores.
#
#   scripts/bench.sh [PART...]   gpt2_124m mesh_30m context features experts saving checkpoints exchange overlap reduction launch; by default all
#
#   unit          GFLOP/s of oneDNN's own packed f32 product 1024^3 on all cores
#   gpt2_124m     model FLOP/s (causal attention) of one rank with all cores, over the unit; where $TRAINCTL_BENCH_PYTHON (python3)
#                 has PyTorch, tokens/s over those of scripts/bench/peer_torch.py, eager and compiled. trainctl and the peer take
#                 turns, $TRAINCTL_BENCH_TURNS times (1); of each the best turn counts
#   mesh_30m      tokens/s of 8 ranks TP2 x PP2 x DP2 over one rank with all cores, 30 M parameters; ZeRO-3 over ZeRO-1 there and
#                 on 8 data-parallel ranks. They take turns, too
#   context       sequences of 8192 tokens, 4 M parameters: tokens/s of as many context ranks as cores over one rank with all
#                 cores, and of one rank with as many context blocks over the same rank with whole sequences. They take turns
#   features      one rank with one thread; tokens per second of CPU time, so that other programs count little: eight steps less one,
#                 the least of all turns. Sequences of 4096 tokens, 4 M parameters: packed documents of 512, and windows of 512, over
#                 full attention. Of 256 tokens, hidden size 512: a Llama whose queries and keys are normed, as Qwen3's, over one
#                 without. Muon's step over its products, and AdamW's with moments in bf16 and 8 bits over that with f32: see
#                 scripts/bench/optimizer.cpp
#   experts       a sublayer of experts on one core: its rate over that of a dense one with the products of a token's experts, at
#                 16, 64, 128 and 256 rows an expert (scripts/bench/experts.cpp). 8 ranks of one thread, 16 experts: tokens/s where
#                 4 ranks share them over those where each rank has all. Sequences of 16,384 tokens, 2 layers: tokens/s of 4 context
#                 ranks of one thread over one rank with 4. The last two take turns
#   launch        seconds from the command to the end of a run of one step, 8 ranks, 4 M parameters
#   saving        stall of a step when 8 ranks copy their state in memory after every step: median and 99th percentile over
#                 ranks and steps, as a share of the median step, and over the time of a plain memcpy of the same bytes; median
#                 step with copies over that without
#   checkpoints   how checkpoints are written, read and planned, on the disk of the temporary folder: see
#                 scripts/bench/checkpoints.cpp
#   exchange      `trainctl export` and `import` over plain reads and writes of the same bytes: see
#                 scripts/bench/export.sh
#   overlap       how much of the data-parallel communication is not hidden behind compute, over modelled links: see
#                 scripts/bench/overlap.cpp
#   reduction     the reduction of 100 M gradients over 8 rank threads, over what the memory needs for its bytes: see
#                 scripts/bench/reduction.cpp
#   gpt2_124m and mesh_30m also say peak memory of a rank over what `plan` prints
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/build.sh" >&2
build=$root/build
cmake --build "$build" --target bench_unit bench_kernels bench_experts bench_checkpoints bench_optimizer bench_overlap bench_reduction >/dev/null
trainctl=$build/trainctl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cores=$(nproc)
say() { echo "bench: $*" >&2; }

# Tokens: the bytes of a real file as ids below 257.
find -L /usr/include/c++ -type f -size +20k | LC_ALL=C sort | sed -n 1,40p | xargs "$trainctl" data tokenize --tokenizer bytes --out tokens >/dev/null 2>&1

# spec MODEL SEQ_LEN SEQUENCES MICRO STEPS
spec() {
  cat <<JSON
{"version":1,"name":"bench","model":{"preset":"$1"},"data":{"train":[{"path":"tokens.idx"}],"seq_len":$2},
 "batch":{"global_sequences":$3,"micro_sequences":$4},"schedule":{"total_steps":$5,"warmup_steps":2,"lr":1e-4},
 "checkpoint":{"on_exit":false,"memory":"off"}}
JSON
}
# field NAME: median of a number over the steps after the second of the newest run
field() {
  tail -n +3 runs/bench-*/metrics.jsonl | grep -o "\"$1\":[0-9.eE+]*" | cut -d: -f2 | sort -g | awk '{a[NR]=$1} END{print a[int((NR+1)/2)]}'
}
# The largest of all ranks, in the newest step of the newest run
peak_memory() { grep -o '"peak_memory_bytes":{[^}]*' runs/bench-*/metrics.jsonl | tail -n 1 | grep -o '"max":[0-9]*' | cut -d: -f2; }
launch() { rm -rf runs; "$trainctl" launch job.json "$@" >launch.log 2>&1 || { cat launch.log >&2; exit 1; }; }
ratio() { awk -v a="$1" -v b="$2" -v d="${3:-3}" 'BEGIN{printf "%.*f", d, a/b}'; }
unit() { OMP_NUM_THREADS=$cores "$build/bench_unit"; }

turns=${TRAINCTL_BENCH_TURNS:-1}
python=${TRAINCTL_BENCH_PYTHON:-python3}
best() { awk -v a="$1" -v b="$2" 'BEGIN{print (a>b ? a : b)}'; }
planned_bytes() { "$trainctl" plan job.json --json "$@" | grep -o '"total": [0-9]*' | sort -k2 -g | tail -n 1 | grep -o '[0-9]*$'; }
result=""
# add KEY JSON
add() { result+=",
 \"$1\":$2"; }
mesh="-s parallelism.world_size=8 -s parallelism.tensor=2 -s parallelism.pipeline=2 -s parallelism.data=2 -s parallelism.threads_per_rank=1"

# peer PRECISION SEQ_LEN FLAG...: tokens/s of PyTorch; 0 without it
peer() {
  local precision=$1 seq_len=$2
  shift 2
  "$python" "$root/scripts/bench/peer_torch.py" --device cpu --threads "$cores" --model gpt2-124m --precision "$precision" --seq-len "$seq_len" \
    --micro-batch 4 --tokens-per-step $((4 * seq_len)) --steps 6 --warmup 2 "$@" 2>peer.log | grep -o '"tokens_per_s": [0-9.]*' | cut -d' ' -f2 || true
}

bench_gpt2_124m() {
  local results="" has_peer=false precision seq_len turn flops tokens eager compiled unit again peak planned with_peer
  unit=$(unit)
  if "$python" -c 'import torch' 2>/dev/null; then has_peer=true; fi
  for precision in f32 bf16; do
    for seq_len in 256 64; do
      flops=0 tokens=0 eager=0 compiled=0
      for turn in $(seq "$turns"); do
        spec gpt2-124m "$seq_len" 4 4 12 >job.json
        launch -s precision.compute=$precision -s parallelism.threads_per_rank="$cores"
        flops=$(best "$flops" "$(field flops_per_s)") tokens=$(best "$tokens" "$(field tokens_per_s)") peak=$(peak_memory)
        unit=$(best "$unit" "$(unit)")
        if $has_peer; then
          again=$(peer $precision "$seq_len" --no-compile) && eager=$(best "$eager" "${again:-0}")
          again=$(peer $precision "$seq_len") && compiled=$(best "$compiled" "${again:-0}")
        fi
        say "gpt2-124m $precision 4 x $seq_len, turn $turn: best so far $tokens tokens/s, PyTorch eager $eager, compiled $compiled"
      done
      planned=$(planned_bytes -s precision.compute=$precision -s parallelism.threads_per_rank="$cores")
      say "gpt2-124m $precision 4 x $seq_len: $(ratio "$flops" 1e9 1) GFLOP/s, $(ratio "$flops" "${unit}e9") of the unit ($unit); memory $(ratio "$peak" "$planned") of the plan"
      with_peer=""
      if $has_peer; then
        with_peer=",\"pytorch_eager_tokens_per_s\":$eager,\"pytorch_compiled_tokens_per_s\":$compiled,\"over_pytorch\":$(ratio "$tokens" "$(best "$eager" "$compiled")")"
        say "  $(ratio "$tokens" "$(best "$eager" "$compiled")") of PyTorch"
      fi
      results+="${results:+,}
  {\"precision\":\"$precision\",\"batch\":\"4x$seq_len\",\"gflops\":$(ratio "$flops" 1e9 1),\"tokens_per_s\":$tokens,\"ratio\":$(ratio "$flops" "${unit}e9"),\"peak_memory_over_plan\":$(ratio "$peak" "$planned")$with_peer}"
    done
  done
  add unit_gflops "$unit"
  if $has_peer; then add pytorch "\"$("$python" -c 'import torch; print(torch.__version__)')\""; fi
  add gpt2_124m "[$results]"
}

bench_mesh_30m() {
  local one=0 eight=0 eight3=0 wide1=0 wide3=0 turn peak planned
  local wide="-s parallelism.world_size=8 -s parallelism.data=8 -s parallelism.threads_per_rank=1 -s batch.micro_sequences=2"
  for turn in $(seq "$turns"); do
    spec gpt2-30m 256 16 4 12 >job.json
    launch -s parallelism.threads_per_rank="$cores"
    one=$(best "$one" "$(field tokens_per_s)")
    launch $mesh
    eight=$(best "$eight" "$(field tokens_per_s)") peak=$(peak_memory)
    launch $mesh -s parallelism.zero_stage=3
    eight3=$(best "$eight3" "$(field tokens_per_s)")
    launch $wide
    wide1=$(best "$wide1" "$(field tokens_per_s)")
    launch $wide -s parallelism.zero_stage=3
    wide3=$(best "$wide3" "$(field tokens_per_s)")
  done
  planned=$(planned_bytes $mesh)
  say "30 M parameters: one rank $one tokens/s, TP2 x PP2 x DP2 $eight: $(ratio "$eight" "$one"); memory $(ratio "$peak" "$planned") of the plan"
  say "ZeRO-3 over ZeRO-1: $(ratio "$eight3" "$eight") on TP2 x PP2 x DP2, $(ratio "$wide3" "$wide1") on DP8"
  add mesh_30m "{\"one_rank_tokens_per_s\":$one,\"tp2_pp2_dp2_tokens_per_s\":$eight,\"ratio\":$(ratio "$eight" "$one"),\"peak_memory_over_plan\":$(ratio "$peak" "$planned"),
  \"zero3_tp2_pp2_dp2_tokens_per_s\":$eight3,\"zero3_over_zero1\":$(ratio "$eight3" "$eight"),\"dp8_tokens_per_s\":$wide1,\"zero3_dp8_tokens_per_s\":$wide3,\"dp8_zero3_over_zero1\":$(ratio "$wide3" "$wide1")}"
}

bench_context() {
  local whole=0 blocks=0 ranks=0 turn count=2
  while [ $((2 * count)) -le "$cores" ]; do count=$((2 * count)); done
  for turn in $(seq "$turns"); do
    spec llama-4m 8192 1 1 4 >job.json
    local long="-s data.documents=ignore -s model.max_seq_len=8192 -s device=cpu -s parallelism.lanes=1"
    launch $long -s parallelism.threads_per_rank="$count"
    whole=$(best "$whole" "$(field tokens_per_s)")
    launch $long -s parallelism.threads_per_rank="$count" -s parallelism.context_blocks="$count"
    blocks=$(best "$blocks" "$(field tokens_per_s)")
    launch $long -s parallelism.threads_per_rank=1 -s parallelism.context="$count" -s parallelism.world_size="$count"
    ranks=$(best "$ranks" "$(field tokens_per_s)")
  done
  say "8192 tokens, $count threads: whole sequences $whole tokens/s, in $count blocks $(ratio "$blocks" "$whole"), on $count context ranks $(ratio "$ranks" "$whole")"
  add context "{\"ranks\":$count,\"whole_tokens_per_s\":$whole,\"blocks_over_whole\":$(ratio "$blocks" "$whole"),\"ranks_over_whole\":$(ratio "$ranks" "$whole")}"
}

# CPU seconds of a run of one rank
cpu_seconds() {
  local spent
  spent=$({ TIMEFORMAT=%U; time launch "$@"; } 2>&1) || { echo "$spent" >&2; exit 1; }
  echo "$spent"
}
least() { awk -v a="$1" -v b="$2" 'BEGIN{print (a==0 || b<a ? b : a)}'; }
bench_features() {
  local case turn steps spent
  local -A least_s=() cost=() flags=()
  # Each file is a document: with its end 512 tokens.
  mkdir -p documents && (cd documents && find -L /usr/include/c++ -type f -size +20k | LC_ALL=C sort | sed -n 1,12p | xargs cat | { head -c 300000; cat >/dev/null; } | split -b 511 -a 4 -)
  find documents -type f | LC_ALL=C sort | xargs "$trainctl" data tokenize --tokenizer bytes --out documents >/dev/null 2>&1
  local long="-s data.train=[{\"path\":\"documents.idx\"}] -s data.seq_len=4096 -s model.max_seq_len=4096"
  local short="-s batch.global_sequences=8 -s batch.micro_sequences=8 -s model.hidden_size=512 -s model.num_heads=8 -s model.num_kv_heads=8 -s model.ffn_size=1376"
  flags[full]="$long -s data.documents=ignore"
  flags[packed]="$long -s data.documents=mask -s data.packing=best_fit"
  flags[window]="$long -s data.documents=ignore -s model.layer.window=512 -s model.layers=window"
  flags[plain]="$short"
  flags[normed]="$short -s model.layer.qk_norm=head"
  spec llama-4m 256 1 1 8 >job.json
  for turn in $(seq "$turns"); do
    for case in full packed window plain normed; do
      for steps in 1 8; do
        spent=$(cpu_seconds ${flags[$case]} -s parallelism.threads_per_rank=1 -s device=cpu --max-steps $steps)
        least_s[$case$steps]=$(least "${least_s[$case$steps]:-0}" "$spent")
      done
      cost[$case]=$(awk -v a="${least_s[${case}8]}" -v b="${least_s[${case}1]}" 'BEGIN{print (a-b)/7}')
      say "features, turn $turn: a step $case: least so far ${cost[$case]} s of CPU time"
    done
  done
  add features "{\"documents_over_full\":$(ratio "${cost[full]}" "${cost[packed]}"),\"window_over_full\":$(ratio "${cost[full]}" "${cost[window]}"),\"qk_norm_over_plain\":$(ratio "${cost[plain]}" "${cost[normed]}"),
  \"optimizer\":$("$build/bench_optimizer" "$cores" $((4 * turns)))}"
}

# A model with experts on 8 ranks: 128 rows an expert.
experts_spec() {
  cat <<JSON
{"version":1,"name":"bench","device":"cpu","model":{"family":"qwen3_moe","hidden_size":256,"num_layers":4,"num_heads":8,
 "num_kv_heads":4,"ffn_size":512,"head_dim":32,"vocab_size":512,"max_seq_len":512,
 "moe":{"num_experts":16,"top_k":2,"expert_ffn_size":256}},"data":{"train":[{"path":"tokens.idx"}],"seq_len":512},
 "batch":{"global_sequences":16,"micro_sequences":2},"schedule":{"total_steps":8,"warmup_steps":2,"lr":1e-4},
 "parallelism":{"world_size":8,"data":8,"lanes":8,"threads_per_rank":1},"checkpoint":{"on_exit":false,"memory":"off"}}
JSON
}
bench_experts() {
  local layer own=0 shared=0 one=0 four=0 turn
  layer=$("$build/bench_experts")
  local long="-s data.documents=ignore -s model.max_seq_len=16384 -s model.num_layers=2 -s device=cpu -s parallelism.lanes=1"
  for turn in $(seq "$turns"); do
    experts_spec >job.json
    launch
    own=$(best "$own" "$(field tokens_per_s)")
    launch -s parallelism.expert=4
    shared=$(best "$shared" "$(field tokens_per_s)")
    spec llama-4m 16384 1 1 4 >job.json
    launch $long -s parallelism.threads_per_rank=4
    one=$(best "$one" "$(field tokens_per_s)")
    launch $long -s parallelism.threads_per_rank=1 -s parallelism.context=4 -s parallelism.world_size=4
    four=$(best "$four" "$(field tokens_per_s)")
  done
  say "8 ranks: experts shared by 4 $(ratio "$shared" "$own") of the tokens/s of ranks that have all; 16,384 tokens: 4 context ranks $(ratio "$four" "$one") of one rank with 4 threads"
  add experts "{\"layer\":[$(paste -sd, <<<"$layer")],\"shared_by_4_over_own\":$(ratio "$shared" "$own"),\"own_tokens_per_s\":$own,
  \"context_4_over_threads_4\":$(ratio "$four" "$one"),\"threads_4_tokens_per_s\":$one}"
}

bench_saving() {
  local memcpy plain_s copied_s bytes stalls stall_median stall_p99 memcpy_s
  memcpy=$("$build/bench_unit" memcpy)
  spec gpt2-30m 256 16 4 24 >job.json
  launch $mesh
  plain_s=$(field step_s)
  launch $mesh -s checkpoint.memory=on -s observability.rank_metrics_every_steps=1
  copied_s=$(field step_s)
  bytes=$("$trainctl" plan job.json --json $mesh | grep -o '"checkpoint_bytes": [0-9]*' | grep -o '[0-9]*$')
  stalls=$(tail -n +3 runs/bench-*/metrics.ranks.jsonl | grep -o '"checkpoint_s":\[[^]]*' | cut -d[ -f2 | tr , '\n' | sort -g)
  stall() { echo "$stalls" | awk -v q="$1" '{a[NR]=$1} END{i=int(NR*q)+1; if (i>NR) i=NR; print a[i]}'; }
  stall_median=$(stall 0.5)
  stall_p99=$(stall 0.99)
  memcpy_s=$(awk -v b="$bytes" -v r="$memcpy" 'BEGIN{print b/8/(r*1e9)}')
  say "30 M parameters, 8 ranks, copies in memory every step: stall median $stall_median s ($(ratio "$stall_median" "$plain_s" 5) of a step), p99 $stall_p99 s ($(ratio "$stall_p99" "$plain_s" 5)); memcpy of the same bytes $memcpy_s s; step $(ratio "$copied_s" "$plain_s") of that without"
  add saving "{\"stall_median_s\":$stall_median,\"stall_p99_s\":$stall_p99,\"median_share_of_step\":$(ratio "$stall_median" "$plain_s" 5),\"p99_share_of_step\":$(ratio "$stall_p99" "$plain_s" 5),\"median_over_memcpy\":$(ratio "$stall_median" "$memcpy_s"),\"memcpy_gb_per_s\":$memcpy,\"step_over_plain\":$(ratio "$copied_s" "$plain_s")}"
}

bench_checkpoints() { add checkpoints "$("$build/bench_checkpoints" "$work" 5)"; }
bench_exchange() { add exchange "$(TRAINCTL_BUILD=$build "$root/scripts/bench/export.sh" "$work")"; }
bench_overlap() { add overlap "$("$build/bench_overlap")"; }
bench_reduction() { add reduction "$("$build/bench_reduction")"; }

bench_launch() {
  local begin total
  spec llama-4m 128 16 4 12 >job.json
  begin=$(date +%s.%N)
  launch --max-steps 1 $mesh
  total=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN{printf "%.2f", b-a}')
  say "launch to the end of a one-step run on 8 ranks: $total s"
  add launch_one_step_8_ranks_s "$total"
}

parts=(gpt2_124m mesh_30m context features experts saving checkpoints exchange overlap reduction launch)
if [ $# -gt 0 ]; then parts=("$@"); fi
for part in "${parts[@]}"; do
  if ! declare -F "bench_$part" >/dev/null; then echo "bench: there is no part $part" >&2; exit 2; fi
done
for part in "${parts[@]}"; do
  say "$part"
  "bench_$part"
done
echo "{\"machine\":\"$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ *//')\",\"cores\":$cores$result}"
