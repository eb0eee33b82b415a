#!/usr/bin/env bash
# What each CUDA kernel takes of a multiprocessor: prints what ptxas said of it when the build compiled it
# (scripts/keep_resources.sh). Needs a build with CUDA, no GPU.
#
#   scripts/resources.sh [--keep]     --keep: also writes the table to scripts/bench/results/cuda-resources.md
#
# Exits 1 when a kernel spills registers to memory, but for the exceptions below; 77 where the build has no CUDA.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

# Kernels that may spill, as "NAME: reason", one a line; NAME is the kernel's name as the table shows it, or without template arguments.
exceptions="
plain_forward_kernel: f32 and head dimensions without tensor-core tiles, never the bf16 runs that must be fast
plain_query_gradient_kernel: the same
plain_key_gradient_kernel: the same
forward_kernel<128, false, false>: rows that begin off 16 bytes, which no run has: its arenas begin on 64 and heads of 128 keep the step
key_gradient_kernel<128, 64, false, false>: the same
"

build=${TRAINCTL_BUILD:-$root/build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t kept < <(find "$build/CMakeFiles" -name '*.cu.o.resources' 2>/dev/null | sort)
if ((${#kept[@]} == 0)); then
  echo "$build has no kernels: build there with CUDA first" >&2
  exit 77
fi

# From ptxas's lines to "file|kernel|arch|registers|spill bytes|stack frame|shared|barriers", sorted.
for log in "${kept[@]}"; do
  c++filt <"$log" | awk -v file="$(basename "$log" .o.resources)" '
    # The name of a demangled function: without return type, namespaces of ours and parameters.
    function short(name,   depth, i, c) {
      gsub(/\(anonymous namespace\)::/, "", name)
      gsub(/trainctl::kernels::(cuda::)?/, "", name)
      gsub(/__nv_bfloat16/, "bf16", name)
      sub(/^void /, "", name)
      for (i = 1; i <= length(name); ++i) {
        c = substr(name, i, 1)
        if (c == "<") ++depth
        if (c == ">") --depth
        if (c == "(" && depth == 0) break
      }
      return substr(name, 1, i - 1)
    }
    function before(text, pattern) { return match($0, "[0-9]+ " pattern) ? substr($0, RSTART, RLENGTH) + 0 : 0 }
    /Compiling entry function/ {
      kernel = $0
      sub(/.*Compiling entry function ./, "", kernel)
      arch = kernel
      sub(/.* for ./, "", arch)
      sub(/.$/, "", arch)
      sub(/. for .sm_[0-9a-z]*.$/, "", kernel)
    }
    /bytes stack frame/ {
      stack = before($0, "bytes stack frame")
      spill = before($0, "bytes spill stores") + before($0, "bytes spill loads")
    }
    /Used [0-9]+ registers/ {
      printf "%s|%s|%s|%d|%d|%d|%d|%d\n", file, short(kernel), arch, before($0, "registers"), spill, stack,
             before($0, "bytes smem"), before($0, "barriers")
    }'
done | sort >"$work/rows"
[[ -s $work/rows ]] || { echo "ptxas reported no kernel in $build" >&2; exit 1; }

table() {
  echo "| file | kernel | arch | registers | spill bytes | stack bytes | shared bytes | barriers |"
  echo "|---|---|---|---:|---:|---:|---:|---:|"
  sed 's/|/ | /g; s/^/| /; s/$/ |/' "$work/rows"
}
table
if [[ ${1:-} == --keep ]]; then
  {
    echo "# Resources of the CUDA kernels"
    echo
    echo "Made by \`scripts/resources.sh --keep\` of a build with CUDA $(sed -n 's/^CMAKE_CUDA_COMPILER_VERSION.*=//p; s/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake | head -n 1):"
    echo "sm_80 and sm_90, sm_90a for *_hopper.cu. Shared memory is the static part."
    echo
    table
  } >scripts/bench/results/cuda-resources.md
fi

spilling=$(EXCEPTIONS=$exceptions awk -F'|' '
  BEGIN { n = split(ENVIRON["EXCEPTIONS"], lines, "\n"); for (i = 1; i <= n; ++i) { sub(/:.*/, "", lines[i]); allowed[lines[i]] = 1 } }
  { name = $2; sub(/<.*/, "", name) }
  $5 > 0 && !(name in allowed) && !($2 in allowed) { print $2 " (" $3 ", " $5 " bytes)" }' "$work/rows" | paste -sd';' | sed 's/;/; /g')
if [[ -n $spilling ]]; then
  echo "these kernels spill registers to memory: $spilling; give them fewer live values, or an entry with its reason in $0" >&2
  exit 1
fi
