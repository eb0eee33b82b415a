#!/usr/bin/env bash
# Installs what is missing of that with which trainctl is built: Debian 12 packages only.
#   --tests   also what only tests need: clang-format; fake nodes, Slurm, sshd. On a machine that runs systemd the latter
#             would start services, an sshd among them: there they are named and not installed.
#   --fuzz    also clang with libFuzzer, for scripts/fuzz.sh
set -euo pipefail
packages=(g++ cmake ninja-build ccache libopenmpi-dev openmpi-bin libdnnl-dev libxxhash-dev libssl-dev libcurl4-openssl-dev
          libfmt-dev nlohmann-json3-dev libcli11-dev catch2 libsentencepiece-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libhwloc-dev libpmix-dev
          patchelf zstd libboost-context-dev libcpp-httplib-dev libcld2-dev)
fuzz_packages=(clang libclang-rt-14-dev)
test_packages=(iproute2 procps curl slurmctld slurmd slurm-client munge openssh-server openssh-client)

missing_of() {
  local p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || echo "$p"
  done
}
mapfile -t missing < <(missing_of "${packages[@]}")
if [[ " $* " == *' --fuzz '* ]]; then
  mapfile -t for_fuzzers < <(missing_of "${fuzz_packages[@]}")
  missing+=("${for_fuzzers[@]}")
fi
if [[ " $* " == *' --tests '* ]]; then
  mapfile -t formatter < <(missing_of clang-format)
  missing+=("${formatter[@]}")
  mapfile -t for_tests < <(missing_of "${test_packages[@]}")
  if [ ${#for_tests[@]} -gt 0 ] && [ -d /run/systemd/system ]; then
    echo "not installed, so the tests labelled cluster and slurm are skipped: apt-get install ${for_tests[*]}"
  else
    missing+=("${for_tests[@]}")
  fi
fi
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: nothing is missing"
  exit 0
fi
echo "installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
