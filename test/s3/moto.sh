#!/usr/bin/env bash
# Runs a test program against moto's S3 server on loopback, which it starts and ends.
#   moto.sh PROGRAM FOLDER     FOLDER: keeps the virtual environment with moto between runs
# Ends with the program's status; with 77 where moto cannot be installed or started.
set -euo pipefail
program=$1
folder=$2
if [ ! -x "$folder/moto/bin/moto_server" ]; then
  { python3 -m venv "$folder/moto" && timeout 300 "$folder/moto/bin/pip" install -q "moto[s3,server]"; } >"$folder/moto.log" 2>&1 ||
    { echo "moto cannot be installed (see $folder/moto.log)"; exit 77; }
fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$folder/moto/bin/moto_server" -H 127.0.0.1 -p "$port" >"$folder/moto-server.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
  python3 -c "import socket; socket.create_connection(('127.0.0.1', $port), 1)" 2>/dev/null && ready=1 && break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.2
done
[ -n "${ready:-}" ] || { echo "moto's server does not start (see $folder/moto-server.log)"; exit 77; }
env -u AWS_PROFILE -u AWS_SESSION_TOKEN -u http_proxy -u HTTP_PROXY AWS_ACCESS_KEY_ID=test-key AWS_SECRET_ACCESS_KEY=test-secret-7Q2K \
  AWS_ENDPOINT_URL="http://127.0.0.1:$port" "$program" --durations no
