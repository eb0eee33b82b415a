#!/usr/bin/env bash
# Runs parquet_check.py with pyarrow, polars and duckdb from PyPI.
#   parquet.sh FOLDER TRAINCTL    FOLDER: keeps the virtual environment (0.5 GB) between runs
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
folder=$1
shift
python=${TRAINCTL_TEST_PARQUET:-$folder/parquet}/bin/python   # an environment that exists already
install() {
  python3 -m venv "$folder/parquet" &&
    timeout 600 "$folder/parquet/bin/pip" install -q --no-cache-dir pyarrow polars duckdb &&
    touch "$folder/parquet/complete"
}
if [ -z "${TRAINCTL_TEST_PARQUET:-}" ] && [ ! -e "$folder/parquet/complete" ]; then
  install >"$folder/parquet.log" 2>&1 ||
    { echo "pyarrow cannot be installed (see $folder/parquet.log)"; exit 77; }
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/parquet_check.py" "$@"
