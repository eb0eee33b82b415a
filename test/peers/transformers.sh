#!/usr/bin/env bash
# Runs transformers_check.py with Hugging Face's transformers 5 and 4, and PyTorch, all from PyPI.
#   transformers.sh FOLDER TRAINCTL LOGITS SOURCE    FOLDER: keeps the virtual environment (6 GB) between runs
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
folder=$1
shift
exec 9>"$folder/peers.lock"   # tests run at once
flock 9
python=${TRAINCTL_TEST_PEERS:-$folder/peers}/bin/python   # an environment that exists already
four=${TRAINCTL_TEST_PEERS:-$folder/peers}/transformers4
install() {
  python3 -m venv "$folder/peers" &&
    timeout 1500 "$folder/peers/bin/pip" install -q --no-cache-dir \
      torch "transformers>=5" sentencepiece protobuf numpy &&
    timeout 600 "$folder/peers/bin/pip" install -q --no-cache-dir --target "$four" "transformers<5" &&
    touch "$folder/peers/complete"
}
if [ -z "${TRAINCTL_TEST_PEERS:-}" ] && [ ! -e "$folder/peers/complete" ]; then
  install >"$folder/peers.log" 2>&1 ||
    { echo "transformers cannot be installed (see $folder/peers.log)"; exit 77; }
fi
exec 9>&-
check=$(dirname "${BASH_SOURCE[0]}")/transformers_check.py
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false
"$python" "$check" "$@"
[ ! -d "$four" ] || PYTHONPATH=$four "$python" "$check" "$@"
