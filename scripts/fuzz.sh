#!/usr/bin/env bash
# Looks for bytes that crash the readers of checkpoints, of tokenizers and of corpora, with libFuzzer, ASan and UBSan. Needs clang.
#   scripts/fuzz.sh [SECONDS [TARGET...]]     60 seconds each; targets: manifest commit safetensors receipt memory tokenizer
#                                             jsonl parquet megatron
# Seeds are in test/ckpt/corpus, test/golden and test/data/corpus/seeds; what was found lies in build-fuzz/. Ends with 1 at the
# first finding, with 77 without clang.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(manifest commit safetensors receipt memory tokenizer jsonl parquet megatron)
command -v clang++ >/dev/null || { echo "no clang++: apt-get install clang"; exit 77; }
mkdir -p "$root/build-fuzz"
cd "$root/build-fuzz"
flags=(-std=c++20 -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined "-I$root"
       -DTRAINCTL_VERSION='"fuzz"' '-DTRAINCTL_XXHASH=<xxhash.h>' -Wno-everything)
sources=("$root"/ckpt/*.cpp "$root"/test/ckpt/fuzz_bodies.cpp "$root"/parallel/layout.cpp "$root"/parallel/mesh.cpp
         "$root"/runtime/base/*.cpp "$root"/data/*.cpp "$root"/data/corpus/*.cpp "$root"/data/corpus/parquet/*.cpp
         "$root"/test/data/fuzz_tokenizer.cpp "$root"/test/data/corpus/fuzz_corpus.cpp)
objects=()
launcher=$(command -v ccache || true)
for source in "${sources[@]}"; do
  case $source in */ckpt/s3_client.cpp) continue ;; esac   # its absent twin stays
  object=$(basename "$(dirname "$source")")-$(basename "$source" .cpp).o
  $launcher clang++ "${flags[@]}" -c "$source" -o "$object"
  objects+=("$object")
done
for target in "${targets[@]}"; do
  seeds=$root/test/ckpt/corpus/$target bodies=test/ckpt/fuzz_bodies.h longest=4096
  case $target in
    tokenizer) seeds=$root/test/golden/tokenizers bodies=test/data/fuzz_tokenizer.h longest=12000 ;;
    parquet) seeds=$root/test/golden/parquet bodies=test/data/corpus/fuzz_corpus.h longest=12000 ;;
    jsonl | megatron) seeds=$root/test/data/corpus/seeds/$target bodies=test/data/corpus/fuzz_corpus.h ;;
  esac
  clang++ "${flags[@]}" "-DTRAINCTL_FUZZ=fuzz_$target" "-DTRAINCTL_FUZZ_BODIES=\"$bodies\"" -c "$root/test/ckpt/fuzz_main.cpp" \
    -o "main-$target.o"
  clang++ -fsanitize=fuzzer,address,undefined "main-$target.o" "${objects[@]}" -o "fuzz-$target" -lfmt -lcrypto -lxxhash -lpthread \
    -lsentencepiece_train -lsentencepiece -lpcre2-8 -lutf8proc -lz -lzstd
  mkdir -p "corpus-$target"
  echo "== $target, $seconds s"
  "./fuzz-$target" -max_total_time="$seconds" -max_len="$longest" -print_final_stats=1 -artifact_prefix="$target-" \
    "corpus-$target" "$seeds" 2>&1 | grep -E "ERROR|runtime error|SUMMARY|stat::number|terminate|what\(\)|Test unit" || true
  if compgen -G "$target-crash-*" >/dev/null || compgen -G "$target-oom-*" >/dev/null || compgen -G "$target-timeout-*" >/dev/null; then
    echo "found: $PWD/$target-*"
    exit 1
  fi
done
