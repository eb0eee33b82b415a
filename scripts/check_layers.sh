#!/bin/bash
# Holds every #include to the table of layers (rooms) at the top of CMakeLists.txt, and prints the graph of the rooms.
#
#   scripts/check_layers.sh [ROOT]     ROOT: the source tree, default the one this script stands in
#
# Printed: one line a room, in the order of the table, with its number of source files and the rooms that its files include. The graph
# has no cycle. The numbers of files are no rule: a room is right when one sentence says what it answers (runtime/README.md has the
# sentences), and a file ends where an idea ends.
#
# A file of a layer may include headers of its own layer and of the layers that its row names; a row entry that is a header
# ("parallel/mesh.h") allows that header alone. Includes are written from the root. Some libraries are known to few files only:
# mpi.h to parallel/mpi_communicator.cpp, nccl.h to parallel/nccl_*, CUDA's to kernels/cuda/ and parallel/nccl_*, CLI11 to cmd/, oneDNN
# to kernels/cpu/, cpp-httplib to the live page; users of nlohmann/json are listed, not limited. Prints FILE:LINE and the broken rule for each violation and exits 1; the
# tests may include everything.
set -euo pipefail
export LC_ALL=C

root=${1:-$(dirname "${BASH_SOURCE[0]}")/..}
cd "$root"

# "name | folders | may include", one row a line, without quotes.
table=$(awk '/^set\(TRAINCTL_LAYERS/ { inside = 1; next } inside && /^\)/ { exit } inside' CMakeLists.txt |
  sed -n 's/^[[:space:]]*"\(.*\)"[[:space:]]*$/\1/p')
if [[ -z $table ]]; then
  echo "CMakeLists.txt: no rows in TRAINCTL_LAYERS; the check needs the table" >&2
  exit 1
fi

# Whole top-level folders, so that a file in none of a layer's folders is seen too.
mapfile -t tops < <(awk -F'|' '{ n = split($2, f, " "); for (i = 1; i <= n; i++) { sub("/.*", "", f[i]); print f[i] } }' \
  <<<"$table" | sort -u)
present=()
for top in "${tops[@]}"; do
  [[ -d $top ]] && present+=("$top")
done
mapfile -t files < <(find "${present[@]}" -type f \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
if [[ ${#files[@]} -eq 0 ]]; then
  echo "$PWD: no source files in ${tops[*]}; nothing was checked" >&2
  exit 1
fi

awk -v table="$table" '
  function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }

  # The layer whose folder holds the path: the longest folder that it begins with; "" when none does.
  function layer_of(path,   folder, best) {
    best = ""
    for (folder in layer_of_folder)
      if (index(path, folder "/") == 1 && length(folder) > length(best)) best = folder
    return best == "" ? "" : layer_of_folder[best]
  }

  function violation(rule) {
    printf "%s:%d: %s\n", FILENAME, FNR, rule
    ++violations
  }

  # A library that few files may know: they are those whose path begins with one of the words of `where`.
  function only(header, pattern, where,   word, words, i) {
    if (header !~ pattern) return
    words = split(where, word, " ")
    for (i = 1; i <= words; ++i)
      if (index(FILENAME, word[i]) == 1) return
    violation("<" header "> is included only by " where)
  }

  # Whether `room` is reached again from `at`; `path` says by which way. Rooms that lead to no cycle are remembered.
  function leads_back(at, path,   other, n, list, i) {
    if (state[at] == "open") {
      printf "the rooms include each other in a circle: %s > %s\n", path, at
      return 1
    }
    if (state[at] == "done") return 0
    state[at] = "open"
    n = split(includes[at], list, " ")
    for (i = 1; i <= n; ++i)
      if (leads_back(list[i], path == "" ? at : path " > " at)) return 1
    state[at] = "done"
    return 0
  }

  BEGIN {
    rows = split(table, row, "\n")
    for (r = 1; r <= rows; ++r) {
      split(row[r], cell, "|")
      name = trim(cell[1])
      room[r] = name
      count = split(trim(cell[2]), part, /[ \t]+/)
      for (i = 1; i <= count; ++i) layer_of_folder[part[i]] = name
      below[name] = trim(cell[3])
      count = split(below[name], part, /[ \t]+/)
      for (i = 1; i <= count; ++i) allowed[name, part[i]] = 1
    }
  }

  FNR == 1 {
    ++checked
    layer = layer_of(FILENAME)
    if (layer == "") violation("stands in no folder of TRAINCTL_LAYERS")
    ++files_of[layer]
  }

  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    quoted = $0 ~ /include[ \t]*"/
    header = $0
    sub(/^[^<"]*[<"]/, "", header)
    sub(/[>"].*$/, "", header)

    only(header, "^mpi\\.h$", "parallel/mpi_communicator.cpp")
    only(header, "^nccl\\.h$", "parallel/nccl_")
    only(header, "^cuda_|^nvtx3/", "kernels/cuda/ parallel/nccl_")
    only(header, "^cublas", "kernels/cuda/")
    only(header, "^CLI/", "cmd/")
    only(header, "^curl/", "ckpt/curl_library.h")
    only(header, "^httplib", "runtime/observe/live/live_server.cpp")
    only(header, "(^|/)dnnl[a-z_]*\\.h", "kernels/cpu/")
    if (header ~ /^nlohmann\//) json[++jsons] = FILENAME ":" FNR

    if (!quoted || layer == "") next
    target = layer_of(header)
    if (target != "" && target != layer && !((layer, target) in seen)) {
      seen[layer, target] = 1
      includes[layer] = includes[layer] (includes[layer] == "" ? "" : " ") target
    }
    if (target == "")
      violation("\"" header "\" is in no layer; write includes from the root, and those of libraries with <>")
    else if (target != layer && !((layer, target) in allowed) && !((layer, header) in allowed))
      violation("\"" header "\" is of layer " target "; layer " layer " may include " \
                (below[layer] == "" ? "nothing but itself" : "only " below[layer]))
  }

  END {
    for (r = 1; r <= rows; ++r) {
      ordered = ""
      for (i = 1; i <= rows; ++i)
        if ((room[r], room[i]) in seen) ordered = ordered " " room[i]
      printf "%-10s %3d files, includes%s\n", room[r], files_of[room[r]], ordered == "" ? " nothing of ours" : ordered
    }
    for (r = 1; r <= rows; ++r)
      if (leads_back(room[r], "")) {
        ++violations
        break
      }
    printf "%d files, %d violations; nlohmann/json is included by %d:\n", checked, violations, jsons
    for (i = 1; i <= jsons; ++i) print "  " json[i]
    exit violations > 0
  }
' "${files[@]}"
