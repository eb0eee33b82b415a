#!/usr/bin/env bash
# Runs tokenizers_check.py with Hugging Face's tokenizers and tiktoken from PyPI.
#   tokenizers.sh FOLDER TRAINCTL    FOLDER: keeps the virtual environment (0.1 GB) between runs
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
folder=$1
shift
python=${TRAINCTL_TEST_TOKENIZERS:-$folder/tokenizers}/bin/python   # an environment that exists already
install() {
  python3 -m venv "$folder/tokenizers" &&
    timeout 600 "$folder/tokenizers/bin/pip" install -q --no-cache-dir tokenizers tiktoken numpy &&
    touch "$folder/tokenizers/complete"
}
if [ -z "${TRAINCTL_TEST_TOKENIZERS:-}" ] && [ ! -e "$folder/tokenizers/complete" ]; then
  install >"$folder/tokenizers.log" 2>&1 ||
    { echo "tokenizers cannot be installed (see $folder/tokenizers.log)"; exit 77; }
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/tokenizers_check.py" "$@"
