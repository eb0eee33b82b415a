#!/usr/bin/env bash
# Proves the Debian package: builds it from what TRAINCTL_BUILD (default build/) holds, unpacks it into an
# empty folder, and there looks at every kind of file as its reader would: the dependencies, the manual pages, the
# completion scripts of the shells that are here, and the program, which trains for three steps.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TRAINCTL_BUILD:-$root/build}
die() { echo "package_test: $*" >&2; exit 1; }
command -v dpkg-shlibdeps >/dev/null || { echo "package_test: skipped, dpkg-dev is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$build" && cpack -G DEB -B "$work/made") >"$work/cpack.log" 2>&1 ||
  { cat "$work/cpack.log"; die "cpack failed"; }
package=$(ls "$work"/made/*.deb)
dpkg-deb -x "$package" "$work/tree"
usr=$work/tree/usr
for file in bin/trainctl share/man/man1/trainctl.1.gz share/man/man5/trainctl-job.5.gz \
            share/bash-completion/completions/trainctl share/zsh/vendor-completions/_trainctl \
            share/fish/vendor_completions.d/trainctl.fish share/doc/trainctl/copyright \
            share/doc/trainctl/changelog.gz share/doc/trainctl/README.md \
            share/doc/trainctl/examples/jobs/quickstart.json \
            share/doc/trainctl/examples/clusters/h100.json share/trainctl/schemas/status.schema.json; do
  [ -s "$usr/$file" ] || die "the package lacks $file, or it is empty"
done
depends=$(dpkg-deb -f "$package" Depends)
for name in openmpi-bin libopenmpi3 libdnnl libc6; do
  [[ $depends == *$name* ]] || die "the package does not depend on $name: $depends"
done
open=$(find "$work/tree" -perm /022 ! -type l)
[ -z "$open" ] || die "files that others may write: $open"

trainctl=$usr/bin/trainctl
for page in "$usr"/share/man/man?/*.gz; do
  if command -v groff >/dev/null; then
    problems=$(gzip -dc "$page" | groff -man -Tutf8 -ww -z 2>&1)
    [ -z "$problems" ] || die "$(basename "$page"): $problems"
  fi
done
commands=$("$trainctl" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
[ "$(wc -w <<<"$commands")" -gt 10 ] || die "the help lists its commands in another way: $commands"
text=$(gzip -dc "$usr/share/man/man1/trainctl.1.gz")
for command in $commands; do
  [[ $text == *".SS trainctl ${command//-/\\-}"* ]] || die "the manual page lacks $command"
done
bash -n "$usr/share/bash-completion/completions/trainctl"
if command -v zsh >/dev/null; then zsh -n "$usr/share/zsh/vendor-completions/_trainctl"; fi
if command -v fish >/dev/null; then
  script=$usr/share/fish/vendor_completions.d/trainctl.fish
  found=$(cd "$work" && HOME=$work fish -N -c "source '$script'; complete -C 'trainctl resu'")
  [[ $found == resume* ]] || die "fish completes 'trainctl resu' with '$found'"
fi

cd "$work"
cp "$root/test/golden/gpt2-tiny/tokens.bin" .
cat >job.json <<'JSON'
{ "version": 1, "name": "package", "model": { "preset": "gpt2-tiny" },
  "data": { "train": [ { "path": "tokens.bin", "format": "raw", "dtype": "uint16" } ], "seq_len": 32 },
  "batch": { "global_sequences": 8, "micro_sequences": 2 }, "parallelism": { "tensor": 2, "threads_per_rank": 1 },
  "schedule": { "total_steps": 3, "lr": 1e-3 } }
JSON
"$trainctl" launch job.json >launch.log 2>&1 ||
  { cat launch.log; die "the program of the package does not train"; }
[ "$(wc -l <runs/package-*/metrics.jsonl)" -eq 3 ] || die "three steps were not recorded"
echo "package_test: $(basename "$package"), $(stat -c %s "$package") bytes: $depends"
