#!/usr/bin/env bash
# Runs the compilation of a CUDA object and keeps what ptxas says of its kernels in OBJECT.resources, which
# scripts/resources.sh reads; the rest of the output passes. The build calls it:
#   scripts/keep_resources.sh OBJECT COMMAND...
set -uo pipefail
object=$1
shift
output=$("$@" 2>&1)
status=$?
says='^ptxas info|bytes stack frame'
grep -E "$says" <<<"$output" >"$object.resources" || rm -f "$object.resources"  # C++ has no kernels
grep -vE "$says|^$" <<<"$output"
exit "$status"
