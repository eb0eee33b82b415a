#!/usr/bin/env bash
# What a shell offers for lines of trainctl that are not complete.
#   completion.sh SHELL TRAINCTL     SHELL: bash, zsh or fish
# Ends with 77 where the shell is not installed.
set -euo pipefail
shell=$1 trainctl=$2
command -v "$shell" >/dev/null || { echo "there is no $shell"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p runs/mine-7Q2K runs/other-0001 folder
touch job.json
unset TRAINCTL_RUN_DIR
"$trainctl" completion "$shell" >script

# Each prints what the shell offers for the line $1, a word a line.
bash_offers() {
  bash --norc -c '
    source ./script
    line=$1
    # As readline cuts words: at blanks and at equals signs.
    words=(${line//=/ = })
    [[ $line == *" " || $line == *= ]] && words+=("")
    [[ ${words[-1]} == "" && ${words[-2]} == = ]] && unset "words[-1]"
    COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _trainctl 2>/dev/null
    printf "%s\n" "${COMPREPLY[@]}"' _ "$1"
}
fish_offers() { HOME=$work fish --no-config -c 'source ./script; complete -C $argv[1]' "$1" | cut -f1; }
# In a terminal of its own, once for all lines: the keys of a line, then a widget completes it and writes what it has
# become. Answers go to the file `answers`, a line each.
zsh_session() {
  timeout 1200 zsh -f -c '
    zmodload zsh/zpty
    zpty z zsh -f -i
    zpty -w z "PS1=; unsetopt zle_bracketed_paste list_beep; autoload -Uz compinit; compinit -D -u; source ./script"
    zpty -w z "offers() { zle complete-word; print -r -- \"<<\$BUFFER>>\" >>answers; BUFFER=; print -r -- do\"\"ne; }"
    zpty -w z "zle -N offers; bindkey \"^X\" offers; print rea\"\"dy"
    zpty -r -m z all "*ready*"
    for line in "$@"; do
      zpty -n -w z "$line"$'"'\\x18'"'
      zpty -r -m z all "*done*"
      [[ $all != *"bad option"* && $all != *"not found"* ]] || { print -r -- "$all" >&2; exit 1; }
    done
    zpty -d z' _ "$@" >/dev/null
}
zsh_offers() { grep -m 1 -F "<<$1" answers | sed 's/^<<\(.*\)>>$/\1/; s/ *$//; s/.* //'; }

failures=0
asked=()
# offers LINE WORD...: each WORD is among what the shell offers. zsh shows the one word that it inserts: it gets lines
# with one continuation only, and is asked for all of them at once.
offers() {
  if [ "$shell" = zsh ] && [ ! -e answers ]; then
    asked+=("$1")
    return
  fi
  local line=$1 offered word
  shift
  offered=$("${shell}_offers" "$line")
  for word in "$@"; do
    case $'\n'"$offered"$'\n' in
      *$'\n'"$word"$'\n'*) ;;
      *)
        echo "$shell: \`$line\` does not offer $word but: $(echo "$offered" | head -n 20 | tr '\n' ' ')"
        failures=$((failures + 1))
        ;;
    esac
  done
}

all() {
  offers 'trainctl resu' resume
  offers 'trainctl data toke' tokenize
  offers 'trainctl data tokenize --train-vo' --train-vocab
  offers 'trainctl launch --dry' --dry-run
  offers 'trainctl plan --color al' always
  offers 'trainctl resume mi' mine-7Q2K
  offers 'trainctl compare mine-7Q2K oth' other-0001
  offers 'trainctl logs --follow mi' mine-7Q2K
  offers 'trainctl validate jo' job.json
  offers 'trainctl init llama3-8' llama3-8b
  offers 'trainctl explain E0504' E0504
  offers 'trainctl explain parallelism.ten' parallelism.tensor
  offers 'trainctl completion ba' bash
  offers 'trainctl help exit' exit-codes
  offers 'trainctl help jo' job
  if [ "$shell" != bash ]; then
    offers 'trainctl launch job.json -s parallelism.ten' parallelism.tensor=
    offers 'trainctl launch job.json --set precision.compute=b' precision.compute=bf16
    offers 'trainctl launch job.json -s model.preset=llama3-8' model.preset=llama3-8b
    offers 'trainctl status --run-dir fol' folder/
  else
    offers 'trainctl launch job.json -s parallelism.ten' parallelism.tensor=
    offers 'trainctl launch job.json --set precision.compute=' f32 bf16
    offers 'trainctl launch job.json -s model.preset=llama3-8' llama3-8b
    offers 'trainctl status --run-dir fol' folder
  fi
}
all
if [ "$shell" = zsh ]; then
  zsh_session "${asked[@]}"
  touch answers
  all
fi
[ "$failures" = 0 ] || exit 1
echo "$shell offers commands, options, runs, fields, values, presets, codes and files"
