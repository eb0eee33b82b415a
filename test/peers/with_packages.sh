#!/usr/bin/env bash
# Runs a check with packages from PyPI.
#   with_packages.sh NAME PACKAGES FOLDER ...    runs NAME_check.py with the rest of the arguments
#     PACKAGES   what pip installs, separated by spaces
#     FOLDER     keeps the virtual environment NAME between runs; TRAINCTL_TEST_NAME names one that exists already
# Ends with the check's status; with 77 where the packages cannot be installed.
set -euo pipefail
name=$1 packages=$2 folder=$3
shift 3
given=TRAINCTL_TEST_${name^^}
python=${!given:-$folder/$name}/bin/python
install() {
  python3 -m venv "$folder/$name" &&
    # shellcheck disable=SC2086   # several words
    timeout 1200 "$folder/$name/bin/pip" install -q --no-cache-dir $packages && touch "$folder/$name/complete"
}
if [ -z "${!given:-}" ] && [ ! -e "$folder/$name/complete" ]; then
  install >"$folder/$name.log" 2>&1 || { echo "$packages cannot be installed (see $folder/$name.log)"; exit 77; }
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/${name}_check.py" "$@"
