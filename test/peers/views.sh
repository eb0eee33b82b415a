#!/usr/bin/env bash
# Runs views_check.py with TensorBoard and Prometheus's Python client from PyPI.
#   views.sh FOLDER TRAINCTL SOURCE    FOLDER: keeps the virtual environment (0.2 GB) between runs
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
folder=$1
shift
python=${TRAINCTL_TEST_VIEWS:-$folder/views}/bin/python   # an environment that exists already
install() {
  python3 -m venv "$folder/views" &&
    timeout 600 "$folder/views/bin/pip" install -q --no-cache-dir tensorboard prometheus-client "setuptools<80" &&
    touch "$folder/views/complete"
}
if [ -z "${TRAINCTL_TEST_VIEWS:-}" ] && [ ! -e "$folder/views/complete" ]; then
  install >"$folder/views.log" 2>&1 ||
    { echo "TensorBoard cannot be installed (see $folder/views.log)"; exit 77; }
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/views_check.py" "$@"
