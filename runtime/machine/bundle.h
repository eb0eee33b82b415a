// A bundle: this program in a folder that can be moved, together with everything it needs but glibc and a GPU driver.
//
//   ROOT/bin/trainctl  mpirun  orted     ROOT/lib/*.so       libraries, found relative to the files that need them
//   ROOT/share/openmpi  share/pmix       ROOT/lib/openmpi    what OpenMPI loads at run time
//   ROOT/etc/openmpi                     ROOT/lib/pmix, ROOT/lib/hwloc
//
// OpenMPI and PMIx have the paths of the machine they were built on in them; variables of the environment put the bundle's in their
// place. mpirun needs them, and so does each rank, however it is started. Made by scripts/bundle.sh.
#pragma once
#include <functional>
#include <string>

#include "runtime/machine/process.h"

namespace trainctl {

/// The root of the bundle that the program at `program` (full path) belongs to; "" if it belongs to none. `exists` looks for a folder.
std::string bundle_root(const std::string& program, const std::function<bool(const std::string&)>& exists);
/// The same of this process.
std::string own_bundle();

/// What OpenMPI and PMIx have to be told to live in `root`; nothing for "".
Environment bundle_environment(const std::string& root);
/// Sets it in this process; to be called before another thread runs and before MPI starts.
void enter_bundle(const std::string& root);

/// The launcher called `name`: a bare name is the bundle's own where it has one, then the first on PATH; a path is taken as it is. `find`
/// gives the full path of an executable, "" if there is none.
std::string find_launcher(const std::string& name, const std::string& root,
                          const std::function<std::string(const std::string&)>& find);
/// Whether `program` is one of the bundle: a launcher of elsewhere must not be told to live in it.
bool is_of_bundle(const std::string& program, const std::string& root);

}  // namespace trainctl
