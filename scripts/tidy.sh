#!/bin/bash
# Holds the sources to the rules of form that a program can hold.
#
#   scripts/tidy.sh [ROOT]     ROOT: the source tree, default the one that holds this script
#
#   length     a file has at most 500 lines, a function at the top level of a file at most 70; the exceptions are listed here by name
#   columns    a line has at most 110 characters; older lines that are longer may become fewer, never more: LONG_LINES is their number
#   format     the files of FORMATTED are as clang-format 14 writes them (.clang-format); not checked where it is not installed
#   goals      a test file begins with what it shows (Goal) and how (Method)
#   tests      a test takes its temporary folder, its seed and the limits of its errors from test/support
#   seams      the operating system's calls for processes, locks, mapped memory and time are made in the files of SEAMS only
#   paths      a source path in a comment or a document exists, and a function where a walk says it is
#   words      no mark of unfinished work (TODO, FIXME); of words that the English of this code leaves out at most OLD_WORDS
#
# Prints FILE:LINE and the broken rule for each violation and exits 1.
set -uo pipefail
export LC_ALL=C.UTF-8   # columns are characters, not bytes
LONG_LINES=2600
OLD_WORDS=0
LONG_FILES=""
# Patterns of whole files, which may become more, never fewer.
FORMATTED="test/support/*.h test/support/*.cpp test/runtime/supervise/simulation/* test/parallel/many_ranks_test.cpp test/runtime/base/temporary_folder_test.cpp"
# What is called (a pattern), and the only files that call it. Elsewhere: runtime/machine/process.h, try_lock and Clock of
# runtime/base/file_system.h, and the owners of memory listed here. Communicators are a seam themselves.
SEAMS='\b(v?fork|posix_spawnp?|exec(ve?|vpe?|l|le|lp)|waitp?id)\( | runtime/machine/process.cpp runtime/machine/pmix/fork_server.cpp runtime/run/agent/agent.cpp
\bflock\( | runtime/base/file_system.cpp
\bmmap\( | kernels/host_memory.cpp data/mapped_file.cpp ckpt/shared_memory.cpp ckpt/page_memory.cpp parallel/state_file.cpp runtime/run/wire/activity_board.cpp runtime/run/wire/flight_ring.cpp
\b(clock_gettime|gettimeofday|u?sleep|nanosleep)\(|(steady|system)_clock|sleep_(for|until) | runtime/base/file_system.cpp runtime/train/measure/thread_time.cpp runtime/machine/burn_in_clock.cpp parallel/back_off.h parallel/transfer_rules.h parallel/nccl_api.h parallel/nccl_library.cpp parallel/nccl_link.h parallel/nccl_link.cpp parallel/nccl_communicator.cpp parallel/mpi_communicator.cpp parallel/staged_engine.h parallel/thread_communicator.cpp'
LONG_FUNCTIONS="kernels/cuda/attention_backward.cu"   # the two tensor-core loops

cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}" || exit 1
mapfile -t sources < <(find cmd runtime data kernels parallel ckpt test scripts -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
mapfile -t tests < <(printf '%s\n' "${sources[@]}" | grep '^test/')
mapfile -t documents < <(find README.md cmd runtime data kernels parallel ckpt test scripts -type f -name '*.md' | sort)
mapfile -t texts < <(printf '%s\n' "${sources[@]}"; find scripts -type f -name '*.sh' | sort)
[ "${#sources[@]}" -gt 100 ] || { echo "tidy: $PWD is no source tree of this project" >&2; exit 1; }
bad=0
violation() { echo "$1"; bad=$((bad + 1)); }
listed() { case " $2 " in *" $1 "*) return 0 ;; esac; return 1; }

# ---- length
while read -r lines file; do
  if [ "$file" != total ] && [ "$lines" -gt 500 ] && ! listed "$file" "$LONG_FILES"; then
    violation "$file:501: the file has $lines lines; at most 500: divide it by what its parts are about"
  fi
done < <(wc -l "${texts[@]}")
while read -r file line lines; do
  listed "$file" "$LONG_FUNCTIONS" || violation "$file:$line: this function has $lines lines; at most 70: name its parts"
done < <(awk 'FNR == 1 { start = 0 }
  /^[A-Za-z_].*\(.*\{$/ && !/^(namespace|class|struct|enum|union|extern|TEST_CASE)/ && !/= *\{$/ { start = FNR }
  /^\}/ { if (start && FNR - start + 1 > 70) print FILENAME, start, FNR - start + 1; start = 0 }' "${sources[@]}")

# ---- columns
long=$(cat "${texts[@]}" | grep -cE '^.{111}')
if [ "$long" -gt "$LONG_LINES" ]; then
  grep -nE '^.{111}' "${texts[@]}" /dev/null | cut -d: -f1 | sort | uniq -c | sort -rn | head -n 10
  violation "scripts/tidy.sh: $long lines have more than 110 columns, $LONG_LINES had; break the new ones (most of them are in the files above)"
fi

# ---- format
clang_format=$(command -v clang-format-14 || command -v clang-format)
if [ -n "$clang_format" ] && "$clang_format" --version | grep -q 'version 14\.'; then
  # shellcheck disable=SC2086  # the patterns are to be expanded
  while IFS=: read -r file line _; do
    violation "$file:$line: not as clang-format writes it; run: clang-format -i $file"
  done < <("$clang_format" --dry-run $FORMATTED 2>&1 | grep -- '-Wclang-format-violations' | sort -t: -u -k1,1)
fi

# ---- goals
while read -r file; do
  head -n 16 "$file" | tr '\n' ' ' | grep -q '// Goal: .*Method: ' ||
    violation "$file:1: a test file begins with \`// Goal: ...\` and \`Method: ...\`"
done < <(printf '%s\n' "${sources[@]}" | grep -E '^test/.*_test\.cpp$')

# ---- tests
while IFS=: read -r file line _; do
  violation "$file:$line: a temporary folder is a TemporaryFolder (test/support/temporary_folder.h)"
done < <(grep -nE '\bmkdtemp\b|temp_directory_path' "${tests[@]}" | grep -v '^test/support/temporary_folder\.h:')
while IFS=: read -r file line _; do
  violation "$file:$line: a seed comes from test_seed() or test_seeds() (test/support/seed.h), which TRAINCTL_TEST_SEED repeats"
done < <(grep -nE 'random_device|rngSeed|getenv\("[A-Z_]*SEED"' "${tests[@]}" | grep -vE '^test/support/(seed\.h|emulated_gpu/)')
while IFS=: read -r file line _; do
  violation "$file:$line: the limit of an error has a name and a reason in test/support/tolerances.h"
done < <(grep -nE '(CHECK|REQUIRE).*[<>]=? *[0-9.]+e-[0-9]|\b(epsilon|margin)\([0-9.]+e-' "${tests[@]}")

# ---- seams
mapfile -t ours < <(printf '%s\n' "${sources[@]}" | grep -vE '^(test|scripts)/')
while read -r rule; do
  calls=${rule%% | *}
  files=${rule#* | }
  while IFS=: read -r file line _; do
    listed "$file" "$files" || violation "$file:$line: the operating system is called past its seam; see SEAMS in scripts/tidy.sh"
  done < <(grep -nE "$calls" "${ours[@]}" | grep -vE '^[^:]+:[0-9]+:[[:space:]]*//')
done <<<"$SEAMS"

# ---- paths
while IFS=: read -r file line path; do
  [ -e "$path" ] || violation "$file:$line: the comment names $path, which does not exist"
done < <(grep -nE '^[[:space:]]*(//|#|\*)|[^:]//' "${texts[@]}" |
  grep -oE '^[^:]+:[0-9]+:|\b(cmd|runtime|data|kernels|parallel|ckpt|test|scripts)/[A-Za-z0-9_/]+\.(h|cpp|cuh|cu|sh|md|py)\b' |
  awk '/:$/ { at = $0; next } { print at $0 }')
while IFS=: read -r file line path; do
  [ -e "$path" ] || violation "$file:$line: the document names $path, which does not exist"
done < <(grep -noHE '\b(cmd|runtime|data|kernels|parallel|ckpt|test|scripts)/[A-Za-z0-9_/]+\.(h|cpp|cuh|cu|sh|md|py)\b' "${documents[@]}")
# A step of a walk, [`file`](link), `function()`: the file has the function.
while IFS=: read -r file line step; do
  path=$(dirname "$file")/$(sed -E 's/^\]\(([^)]*)\).*/\1/' <<<"$step")
  name=$(sed -E 's/.*[`:]([A-Za-z_]+)\(\)`$/\1/' <<<"$step")
  grep -qE "\b$name\(" "$path" || violation "$file:$line: $path has no function $name"
done < <(grep -noHE '\]\([^)#:]+\.(cpp|h)\), `[A-Za-z_:]+\(\)`' "${documents[@]}")

# ---- words
while read -r hit; do
  violation "$hit   <- finish it or remove the mark"
done < <(grep -nE '//.*\b(TODO|FIXME)\b' "${sources[@]}")
mapfile -t old_words < <(grep -niE '//.*\b(whoever|for ever)\b' "${sources[@]}")
if [ "${#old_words[@]}" -gt "$OLD_WORDS" ]; then
  printf '%s\n' "${old_words[@]}"
  violation "scripts/tidy.sh: ${#old_words[@]} comments say \`whoever\` or \`for ever\`; write which caller, and until when"
fi

[ "$bad" = 0 ] || { echo "tidy: $bad violation(s)"; exit 1; }
echo "tidy: ${#texts[@]} files, $long lines over 110 columns (at most $LONG_LINES)"
