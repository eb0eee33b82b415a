#!/usr/bin/env bash
# Runs a test program that starts moto's S3 server on loopback (test/support/s3_server.h).
#   moto.sh FOLDER PROGRAM [ARGUMENTS]     FOLDER: keeps the virtual environment with moto between runs
# Ends with the program's status; with 77 where moto cannot be installed or does not run.
set -euo pipefail
folder=$1
program=$2
shift 2
server="$folder/moto/bin/moto_server"
exec 9>"$folder/moto.lock"   # tests run at once
flock 9
if [ ! -x "$server" ]; then
  { python3 -m venv "$folder/moto" && timeout 300 "$folder/moto/bin/pip" install -q "moto[s3,server]"; } >"$folder/moto.log" 2>&1 ||
    { echo "moto cannot be installed (see $folder/moto.log)"; exit 77; }
fi
exec 9>&-
timeout 60 "$server" --help >"$folder/moto.log" 2>&1 ||
  { echo "moto's server does not run (see $folder/moto.log)"; exit 77; }
export TRAINCTL_TEST_MOTO=$server
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL_S3 http_proxy HTTP_PROXY
exec "$program" "$@" --durations no
