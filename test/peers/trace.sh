#!/usr/bin/env bash
# Runs trace_check.py, which needs nothing but Python.
#   trace.sh TRAINCTL SOURCE
# Ends with the check's status; with 77 where there is no Python 3.
set -euo pipefail
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
exec python3 "$(dirname "${BASH_SOURCE[0]}")/trace_check.py" "$@"
