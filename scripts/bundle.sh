#!/usr/bin/env bash
# Builds trainctl and packs it, with everything it needs but glibc and a GPU driver, into one archive that runs from any folder of an
# x86-64 Linux with glibc 2.36 or newer, by any user, with nothing installed.
#
#   scripts/bundle.sh [--out FILE] [--tests] [--no-build] [--fast] [--cuda FOLDER]
#     --cuda FOLDER  build with the CUDA toolkit there (default: the nvcc on PATH). It decides which GPU driver the archive needs: CUDA 13.x
#                  needs 580 or later; 12.1 to 12.9 need 530 or later, so 12.8 or 12.9 serves machines with driver 535
#     --out FILE   where to write it; default trainctl-VERSION-linux-x86_64.tar.zst in the build folder
#     --tests      add what checks a machine with a GPU: test programs, golden files, benchmarks, scripts/gpu_check.sh
#     --no-build   pack what TRAINCTL_BUILD (default: build/) holds
#     --fast       compress quickly: for tests
#
# Inside: bin/ (trainctl, mpirun, orted), lib/ (each shared library, found relative to the file that needs it), lib/openmpi and lib/pmix
# (what OpenMPI loads at run time), share/, etc/. CUDA's own libraries (cuBLASLt, NCCL) are half a gigabyte and stay those of the
# machine. Fails when a library is missing, when a symbol of a newer glibc is needed, or when the archive exceeds 60 MB.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TRAINCTL_BUILD:-$root/build}
newest_glibc=2.36
most_bytes=60000000
out="" tests=0 make=1 level=19 toolkit=""
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out needs a file}; shift ;;
    --tests) tests=1 ;;
    --no-build) make=0 ;;
    --fast) level=3 ;;
    --cuda) toolkit=${2:?--cuda needs the folder of a CUDA toolkit}; shift ;;
    *) echo "bundle.sh: unknown option $1; see the top of $0" >&2; exit 2 ;;
  esac
  shift
done
die() { echo "bundle: $*" >&2; exit 1; }
for tool in patchelf zstd readelf objdump strip ompi_info; do
  command -v "$tool" >/dev/null || die "$tool is missing; scripts/install.sh installs it"
done

# ---- what goes in ---------------------------------------------------------------------------------------------------------------------
test_programs=(test_gpu bench_cuda_kernels bench_gpu_streams)
if [ -n "$toolkit" ]; then
  [ $make = 1 ] || die "--cuda chooses the toolkit of the build, and --no-build asks for none; leave one of them out"
  [ -x "$toolkit/bin/nvcc" ] || die "--cuda $toolkit has no bin/nvcc; give the folder of a CUDA toolkit, such as /usr/local/cuda-12.9"
  # A build folder keeps the compiler that it was made with, so each toolkit has a folder of its own.
  build=${TRAINCTL_BUILD:-$root/build-$(basename "$(readlink -f "$toolkit")")}
  export TRAINCTL_BUILD=$build TRAINCTL_CUDA_TOOLKIT=$toolkit
fi
if [ $make = 1 ]; then
  # A new build folder takes CUDA where a toolkit is: the archive is for other machines, too.
  if [ ! -f "$build/CMakeCache.txt" ]; then export TRAINCTL_CUDA=${TRAINCTL_CUDA:-AUTO}; fi
  "$root/scripts/build.sh" >&2
  if [ $tests = 1 ]; then
    for program in "${test_programs[@]}"; do
      # A build without CUDA has none of them.
      if ninja -C "$build" -t query "$program" >/dev/null 2>&1; then cmake --build "$build" --target "$program" >/dev/null; fi
    done
  fi
fi
[ -x "$build/trainctl" ] || die "$build/trainctl is not built"
version=$("$build/trainctl" --version | cut -d' ' -f2)
name=trainctl-$version-linux-x86_64
driver=$("$build/trainctl" doctor --json 2>/dev/null | tr -d '\n' | sed -n 's/.*"driver_needed": *"\([^"]*\)".*/\1/p' || true)
out=${out:-$build/$name.tar.zst}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
top=$stage/$name
mkdir -p "$top"/{bin,lib/openmpi,lib/pmix,lib/hwloc,share,etc/openmpi}

# Each file that is copied, with where it came from: its libraries are looked up there, before its paths are changed.
sources=()
take() { # FILE FOLDER [NAME]
  cp -L "$1" "$top/$2/${3:-$(basename "$1")}"
  chmod u+w "$top/$2/${3:-$(basename "$1")}"
  sources+=("$1")
}
take "$build/trainctl" bin
take "$(command -v orterun)" bin mpirun
take "$(command -v orted)" bin

# OpenMPI's components. Left out: those of fabrics (their libraries are their drivers', and a run uses shared memory), of Java, OpenSHMEM,
# parallel files and monitoring. A component that is not there is one that OpenMPI does not choose.
info() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p"; }
plugins=$(info pkglibdir)
[ -d "$plugins" ] || die "OpenMPI's components are not in '$plugins', where ompi_info says they are"
for plugin in "$plugins"/mca_*.so; do
  case $(basename "$plugin") in
    *_ucx.so | *_ofi.so | *_openib.so | *_psm*.so | *_monitoring.so | *_portals*.so | *_usnic.so | *_uct.so) continue ;;
    mca_memheap_* | mca_scoll_* | mca_spml_* | mca_sshmem_* | mca_atomic_* | mca_io_* | mca_fbtl_* | mca_fcoll_* | mca_fs_* | \
      mca_sharedfp_* | mca_crs_* | mca_vprotocol_*) continue ;;
  esac
  take "$plugin" lib/openmpi
done
cp -r "$(info pkgdatadir)" "$top/share/openmpi"
cp "$(info sysconfdir)"/openmpi-mca-params.conf "$top/etc/openmpi/"
: >"$top/etc/openmpi/pmix-mca-params.conf"

# Every shared library that one of these needs, by the loader's own search, whatever level it is needed at.
is_of_the_system() { # glibc and the GPU driver
  case $1 in
    ld-linux-x86-64.so.* | libc.so.6 | libm.so.6 | libmvec.so.1 | libpthread.so.0 | libdl.so.2 | librt.so.1 | libresolv.so.2 | \
      libutil.so.1 | libanl.so.1 | libnss_*.so.* | libBrokenLocale.so.1 | libthread_db.so.1) return 0 ;;
    libcuda.so.1 | libnvidia-*.so.*) return 0 ;;
  esac
  return 1
}
declare -A libraries=()
collect() { # FILE
  local line soname path
  while read -r line; do
    soname=${line%% *}
    soname=$(basename "$soname")
    if [ "$soname" = linux-vdso.so.1 ] || is_of_the_system "$soname"; then continue; fi
    case $line in *"not found"*) die "$1 needs $soname, which is not on this machine" ;; esac
    path=$(sed -n 's/.* => \(\/.*\) (0x[0-9a-f]*)$/\1/p' <<<"$line")
    [ -n "$path" ] || die "cannot tell where $soname, needed by $1, is: $line"
    libraries[$soname]=$path
  done < <(ldd "$1" | sed 's/^[[:space:]]*//' | grep -v '^statically linked$')
}
if [ $tests = 1 ]; then
  mkdir -p "$top/test" "$top/scripts"
  for program in "${test_programs[@]}"; do
    if [ -x "$build/$program" ]; then take "$build/$program" bin
    elif [ -x "$build/test/$program" ]; then take "$build/test/$program" bin
    else echo "bundle: $program is not built; left out" >&2; fi
  done
  cp -r "$root/test/golden" "$top/test/golden"
  cp -r "$root/scripts/jobs" "$root/scripts/gpu_check.sh" "$top/scripts/"
  mkdir -p "$top/scripts/bench"
  if [ -f "$root/scripts/bench/peer_torch.py" ]; then cp "$root/scripts/bench/peer_torch.py" "$top/scripts/bench/"; fi
fi
for file in "${sources[@]}"; do collect "$file"; done
# PMIx loads components of its own, from beside its library.
if [ -n "${libraries[libpmix.so.2]:-}" ]; then
  pmix=$(dirname "$(readlink -f "${libraries[libpmix.so.2]}")")
  before=${#sources[@]}
  for plugin in "$pmix"/pmix/*.so; do
    if [ -f "$plugin" ]; then take "$plugin" lib/pmix; fi
  done
  for file in "${sources[@]:$before}"; do collect "$file"; done
  if [ -d "$pmix/../share/pmix" ]; then cp -r "$pmix/../share/pmix" "$top/share/pmix"; fi
fi
for soname in "${!libraries[@]}"; do
  cp -L "${libraries[$soname]}" "$top/lib/$soname"
  chmod u+w "$top/lib/$soname"
done

# ---- made relocatable -----------------------------------------------------------------------------------------------------------------
mapfile -t binaries < <(find "$top/bin" "$top/lib" -type f | sort)
for file in "${binaries[@]}"; do
  case $file in
    */bin/*) where="\$ORIGIN/../lib" ;;
    "$top"/lib/*/*) where="\$ORIGIN/.." ;;
    *) where="\$ORIGIN" ;;
  esac
  strip --strip-unneeded "$file"
  # RPATH, not RUNPATH: a library of the same name in LD_LIBRARY_PATH must not come first.
  patchelf --force-rpath --set-rpath "$where" "$file"
done
cat >"$top/README" <<TEXT
trainctl $version for x86-64 Linux with glibc $newest_glibc or newer: unpack anywhere, then run bin/trainctl doctor; nothing else is installed.
bin/trainctl init -o job.json writes a job to start from; bin/trainctl launch job.json trains it; bin/trainctl --help lists the rest.
${driver:+This archive was built with CUDA: on GPUs it needs $driver.
}GPUs need the NVIDIA driver, cuBLASLt and NCCL of the machine (a CUDA toolkit and libnccl2, or Python's nvidia-* packages); doctor says what was found.
TEXT

# ---- checked --------------------------------------------------------------------------------------------------------------------------
for file in "${binaries[@]}"; do
  while read -r soname; do
    is_of_the_system "$soname" || [ -f "$top/lib/$soname" ] || die "${file#"$top"/} needs $soname, which is not in the bundle"
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' || true)
done
newest=$(objdump -T "${binaries[@]}" 2>/dev/null | grep -o 'GLIBC_2\.[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
[ -n "$newest" ] || die "no symbol versions were found; objdump does not read these files"
[ "$(printf '%s\n%s\n' "$newest" $newest_glibc | sort -V | tail -n 1)" = $newest_glibc ] ||
  die "a symbol of glibc $newest is needed; build on a system with glibc $newest_glibc or older (Debian 12)"

mkdir -p "$(dirname "$out")"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@"$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)" \
  -C "$stage" -cf - "$name" | zstd -q -$level -T0 -f -o "$out"
bytes=$(stat -c %s "$out")
echo "bundle: ${#binaries[@]} programs and libraries, $(du -sm "$top" | cut -f1) MB unpacked, newest glibc symbol $newest"
echo "bundle: $out  $bytes bytes"
if [ -n "$driver" ]; then echo "bundle: on GPUs it needs $driver"; else echo "bundle: built without CUDA: it trains on CPUs alone"; fi
[ "$bytes" -le $most_bytes ] || die "that is more than $most_bytes bytes"
