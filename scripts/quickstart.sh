#!/usr/bin/env bash
# From nothing to a language model that writes text: installs, builds, makes a corpus of the C++ standard library's own
# headers, tokenizes it, trains on 8 CPU ranks (tensor 2 x pipeline 2 x data 2) and generates a sample.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
began_all=$(date +%s)
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "1/5 packages: up to a minute"
scripts/install.sh
say "2/5 build: four to five minutes on two cores"
scripts/build.sh
trainctl=$root/build/trainctl

say "3/5 corpus and tokens: some seconds"
mkdir -p quickstart
if [ ! -s quickstart/corpus.jsonl ]; then
  # One document per header; sorted, so that every machine with this compiler has the same corpus.
  find -L /usr/include/c++ -type f ! -path '*/ext/pb_ds/*' -size +1k | LC_ALL=C sort >quickstart/files.txt
fi
if [ ! -s quickstart/train.idx ]; then
  # Byte-level BPE trains twenty times as fast as a SentencePiece model, and its tokens are longer.
  xargs -a quickstart/files.txt "$trainctl" data tokenize --force --out quickstart/train --train-vocab 2048 --train-kind bpe \
    --split 98:2
fi

say "4/5 training on 8 ranks: about three minutes on two cores"
began=$(date +%s)
"$trainctl" launch scripts/jobs/quickstart.json "$@"
echo "trained for $(($(date +%s) - began)) s"

say "5/5 what it learned"
"$trainctl" sample latest --prompt 'template<typename _Tp>' --tokens 120 --temperature 0.7
run=$(ls -td runs/quickstart-* | head -n 1)
loss=$(tail -n 1 "$run/metrics.jsonl" | grep -o '"loss":[0-9.]*' | head -n 1 | cut -d: -f2)
loss=$(LC_ALL=C printf %.4f "$loss")
say "done in $(($(date +%s) - began_all)) s: final loss $loss nats per token (a uniform guess over 2048 tokens is 7.62)"
cat <<NEXT
next:
  build/trainctl status latest                    one screen about the run
  build/trainctl inspect-ckpt $run                what the checkpoint holds
  build/trainctl sample latest -p '#include <'    more text
  build/trainctl plan scripts/jobs/quickstart.json --timeline
NEXT
