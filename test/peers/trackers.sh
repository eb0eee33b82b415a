#!/usr/bin/env bash
# Runs trackers_check.py with Weights & Biases and MLflow from PyPI.
#   trackers.sh FOLDER TRAINCTL SOURCE    FOLDER: keeps the virtual environment (0.9 GB) between runs
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
folder=$1
shift
python=${TRAINCTL_TEST_TRACKERS:-$folder/trackers}/bin/python   # an environment that exists already
install() {
  python3 -m venv "$folder/trackers" &&
    timeout 1200 "$folder/trackers/bin/pip" install -q --no-cache-dir wandb mlflow && touch "$folder/trackers/complete"
}
if [ -z "${TRAINCTL_TEST_TRACKERS:-}" ] && [ ! -e "$folder/trackers/complete" ]; then
  install >"$folder/trackers.log" 2>&1 ||
    { echo "wandb and mlflow cannot be installed (see $folder/trackers.log)"; exit 77; }
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/trackers_check.py" "$@"
