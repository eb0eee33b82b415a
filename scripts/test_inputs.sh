#!/usr/bin/env bash
# What each ctest entry depends on. Reads entries from standard input, as "NAME<tab>INPUTS" lines: INPUTS are
# folders or files of the tree, divided by blanks; `program` is the whole program (all rooms, the sample jobs).
#
#   scripts/test_inputs.sh hashes     prints "NAME HASH": of the contents of all files the entry depends on
#   scripts/test_inputs.sh affected   prints the NAMEs that depend on a file that $CHANGED names (one a line)
#
# A test file depends on its folder's data, on what it includes, and on the files and folders of the tree that
# its strings name; with a file of a room on all files of that room and of the rooms below it (TRAINCTL_LAYERS).
# Every entry depends on the build's description.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=$1
entries=$(cat)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=$(awk '/^set\(TRAINCTL_LAYERS/ { inside = 1; next } inside && /^\)/ { exit } inside' CMakeLists.txt |
  sed -n 's/^[[:space:]]*"\(.*\)"[[:space:]]*$/\1/p')
files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard
  else
    find . -type f ! -path './build*' ! -path './.git/*' | sed 's|^\./||'
  fi | while read -r file; do if [ -f "$file" ]; then printf '%s\n' "$file"; fi; done | sort
}
list=$(files)
grep -E '\.(h|cpp|cu|cuh)$' <<<"$list" | xargs -d '\n' grep -HoE '^[ \t]*#[ \t]*include[ \t]*"[^"]+"' |
  sed -E 's/^([^:]+):.*"([^"]+)"$/I \1 \2/' >"$work/graph"
grep -E '^test/.*\.(h|cpp)$' <<<"$list" | xargs -d '\n' \
  grep -HoE '"/?((cmd|runtime|data|test|scripts|packaging)/[A-Za-z0-9_]|README|CONTRIBUTING)[A-Za-z0-9_./-]*' |
  sed -E 's/^([^:]+):"\/?(.*[^\/])\/?$/S \1 \2/' >>"$work/graph"
if [ "$mode" = hashes ]; then
  xargs -d '\n' sha1sum <<<"$list" | sed -E 's/^\\?([0-9a-f]+)  (.*)$/F \2 \1/' >>"$work/graph"
else
  sed 's/^/F /; s/$/ -/' <<<"$list" >>"$work/graph"
  sed 's/^/C /' <<<"${CHANGED:-}" >>"$work/graph"
fi
# What is the same for all: the machine's compiler and its processor, whose instructions the kernels choose.
about=$(g++ --version 2>/dev/null | head -n 1; grep -m 1 '^flags' /proc/cpuinfo; command -v nvcc || true)

awk -v table="$table" -v entries="$entries" -v mode="$mode" -v about="$about" '
  function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
  function layer_of(path,   folder, best) {
    best = ""
    for (folder in layer_of_folder)
      if (index(path, folder "/") == 1 && length(folder) > length(best)) best = folder
    return best == "" ? "" : layer_of_folder[best]
  }
  # A room and all below it.
  function take_room(room,   n, part, i) {
    if (room == "" || room in rooms) return
    rooms[room] = 1
    n = split(below[room], part, /[ \t]+/)
    for (i = 1; i <= n; ++i) take_room(part[i] ~ /\// ? layer_of(part[i]) : part[i])
  }
  # A file of the tests, or of a room, and what it includes.
  function take_file(path,   n, part, i, source) {
    if (!(path in hash) || path in taken) return
    taken[path] = 1
    if (path !~ /^(test|scripts)\//) take_room(room_of[path])
    if (path !~ /^test\//) return
    n = split(includes[path], part, " ")
    for (i = 1; i <= n; ++i) take_file(part[i])
    n = split(strings[path], part, " ")
    for (i = 1; i <= n; ++i) take_named(part[i])
    source = path
    if (sub(/\.h$/, ".cpp", source)) take_file(source)
  }
  # A file or a folder of the tree; whether there is one of that name.
  function take_named(name,   i, found) {
    if (name in hash) { take_file(name); return 1 }
    for (i = 1; i <= files; ++i)
      if (index(file[i], name "/") == 1) { take_file(file[i]); found = 1 }
    return found
  }
  function take(input,   i) {
    if (input == "program") {
      for (i = 1; i <= rows; ++i) take_room(name_of_row[i])
      take("cmd/main.cpp")
      take("kernels")
      take("parallel")
      take("scripts/jobs")
      return
    }
    if (!take_named(input) && input != "always") {
      print "the table in test/README.md names " input ", which does not exist" >"/dev/stderr"
      exit missing = 1
    }
  }

  BEGIN {
    rows = split(table, row, "\n")
    for (r = 1; r <= rows; ++r) {
      split(row[r], cell, "|")
      name_of_row[r] = trim(cell[1])
      layer_of_folder[trim(cell[2])] = name_of_row[r]
      below[name_of_row[r]] = trim(cell[3])
    }
  }
  $1 == "I" { includes[$2] = includes[$2] " " $3 }
  $1 == "S" { strings[$2] = strings[$2] " " $3 }
  $1 == "F" { file[++files] = $2; hash[$2] = $3; room_of[$2] = layer_of($2) }
  $1 == "C" { changed[$2] = 1 }
  END {
    if (missing) exit 1
    n = split(entries, entry, "\n")
    for (e = 1; e <= n; ++e) {
      split(entry[e], cell, "\t")
      split("", rooms)
      split("", taken)
      parts = split(cell[2] " CMakeLists.txt test/CMakeLists.txt test/golden", part, " ")
      for (p = 1; p <= parts; ++p) take(part[p])
      for (i = 1; i <= files; ++i)
        if (room_of[file[i]] in rooms) taken[file[i]] = 1
      if (mode == "affected") {
        for (path in changed)
          if (path in taken) { print cell[1]; break }
        continue
      }
      printf "%s ", cell[1]
      fflush()
      sum = "sha1sum | cut -c1-40"
      print about | sum
      print cell[1] | sum
      for (i = 1; i <= files; ++i)
        if (file[i] in taken) print file[i], hash[file[i]] | sum
      close(sum)
    }
  }' "$work/graph"
