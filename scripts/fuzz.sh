#!/usr/bin/env bash
# Looks for bytes that crash the readers of checkpoints, of messages between processes, of tokenizers and of
# corpora, with libFuzzer, ASan and UBSan. Needs clang: scripts/install.sh --fuzz.
#   scripts/fuzz.sh [SECONDS [TARGET...]]   60 seconds each, as many at once as there are cores; targets:
#                                           manifest commit safetensors receipt piece memory control node
#                                           requests tokenizer jsonl parquet megatron
# Seeds are in test/ckpt/corpus, test/runtime/run/corpus, test/golden and test/data/corpus/seeds; what was found
# lies in build-fuzz/. Ends with 1 where something was found, with 77 without clang.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
seconds=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(manifest commit safetensors receipt piece memory control node requests)
  targets+=(tokenizer jsonl parquet megatron)
fi
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
     clang++ -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
  echo "not run, there is no clang++ with libFuzzer: scripts/install.sh --fuzz"
  exit 77
fi
mkdir -p "$root/build-fuzz"
cd "$root/build-fuzz"
flags=(-std=c++20 -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined "-I$root"
       -DTRAINCTL_VERSION='"fuzz"' '-DTRAINCTL_XXHASH=<xxhash.h>' -Wno-everything)
# Of ckpt what a target needs; a missing file is an undefined symbol below.
sources=("$root"/ckpt/{chunk_stream,contest,folders,manifest,manifest_json,memory_store,page_memory,pieces,read,read_ahead}.cpp
         "$root"/ckpt/{safetensors,shard_appender,shard_layout,shared_memory,store,superseded,tiling,two_passes,verify}.cpp
         "$root"/ckpt/write.cpp "$root"/test/ckpt/fuzz_bodies.cpp "$root"/parallel/layout.cpp
         "$root"/runtime/base/*.cpp "$root"/runtime/run/wire/{protocol,node_wire,stream}.cpp
         "$root"/runtime/run/pieces/{piece_protocol,piece_server,remote_memory}.cpp
         "$root"/test/runtime/run/wire/fuzz_wire.cpp)
# What nothing of the others needs is compiled where a target asks for it.
for target in "${targets[@]}"; do
  case $target in tokenizer | jsonl | parquet | megatron)
    sources+=("$root"/data/*.cpp "$root"/data/corpus/*.cpp "$root"/data/corpus/parquet/*.cpp
              "$root"/test/data/fuzz_tokenizer.cpp "$root"/test/data/corpus/fuzz_corpus.cpp)
    break ;;
  esac
done
launcher=$(command -v ccache || true)
objects=() commands=()
for source in "${sources[@]}"; do
  object=$(basename "$(dirname "$source")")-$(basename "$source" .cpp).o
  objects+=("$object")
  commands+=("$(printf '%q ' $launcher clang++ "${flags[@]}" -c "$source" -o "$object")")
done
for target in "${targets[@]}"; do
  bodies=test/ckpt/fuzz_bodies.h
  case $target in
    control | node | requests) bodies=test/runtime/run/wire/fuzz_wire.h ;;
    tokenizer) bodies=test/data/fuzz_tokenizer.h ;;
    jsonl | parquet | megatron) bodies=test/data/corpus/fuzz_corpus.h ;;
  esac
  commands+=("$(printf '%q ' $launcher clang++ "${flags[@]}" "-DTRAINCTL_FUZZ=fuzz_$target" \
    "-DTRAINCTL_FUZZ_BODIES=\"$bodies\"" -c "$root/test/ckpt/fuzz_main.cpp" -o "main-$target.o")")
done
printf '%s\0' "${commands[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c '{}'
libraries=(-lfmt -lcrypto -lxxhash -lpthread -lsentencepiece_train -lsentencepiece -lpcre2-8 -lutf8proc -lz
           -lzstd)

# run TARGET: prints what libFuzzer says of it; ends with 1 where something was found.
run() {
  local target=$1 seeds=$root/test/ckpt/corpus/$1 longest=4096
  case $target in
    control | node | requests) seeds=$root/test/runtime/run/corpus/$target ;;
    tokenizer) seeds=$root/test/golden/tokenizers longest=12000 ;;
    parquet) seeds=$root/test/golden/parquet longest=12000 ;;
    jsonl | megatron) seeds=$root/test/data/corpus/seeds/$target ;;
  esac
  mkdir -p "corpus-$target"
  local status=0
  "./fuzz-$target" -max_total_time="$seconds" -max_len="$longest" -print_final_stats=1 -artifact_prefix="$target-" \
    "corpus-$target" "$seeds" >"$target.log" 2>&1 || status=$?
  echo "== $target, $seconds s"
  grep -E "ERROR|runtime error|SUMMARY|stat::number|terminate|what\(\)|Test unit" "$target.log" || true
  [ "$status" -eq 0 ] || { echo "found: $PWD/$target-*, log $PWD/$target.log"; return 1; }
}
status=0
for target in "${targets[@]}"; do
  clang++ -fsanitize=fuzzer,address,undefined "main-$target.o" "${objects[@]}" -o "fuzz-$target" \
    "${libraries[@]}"
done
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || status=1; done
  run "$target" &
done
while [ "$(jobs -p | wc -l)" -gt 0 ]; do wait -n || status=1; done
exit "$status"
