#!/usr/bin/env bash
# Installs what trainctl is built with: Debian 12 packages only. Does nothing where all of them are there.
set -euo pipefail
packages=(g++ cmake ninja-build ccache libopenmpi-dev openmpi-bin libdnnl-dev libxxhash-dev libssl-dev
          libfmt-dev nlohmann-json3-dev libcli11-dev catch2 libsentencepiece-dev patchelf zstd libboost-context-dev)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
