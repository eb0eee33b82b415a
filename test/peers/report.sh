#!/usr/bin/env bash
# Runs report_check.py with Chromium, which it installs where it may.
#   report.sh FOLDER TRAINCTL SOURCE
# Ends with the check's status; with 77 where there is no Chromium.
set -euo pipefail
folder=$1
shift
if ! command -v chromium >/dev/null; then
  [ "$(id -u)" -eq 0 ] && { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >"$folder/chromium.log" 2>&1 || true
fi
command -v chromium >/dev/null || { echo "there is no chromium, and it cannot be installed (see $folder/chromium.log)"; exit 77; }
exec python3 "$(dirname "${BASH_SOURCE[0]}")/report_check.py" "$@"
