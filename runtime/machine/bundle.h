// A bundle is a folder with this program and all libraries that it needs, except for glibc and a GPU driver.
// It can be moved.
//
//   ROOT/bin/trainctl  mpirun  orted     ROOT/lib/*.so       libraries, found relative to the files that need them
//   ROOT/share/openmpi  share/pmix       ROOT/lib/openmpi    what OpenMPI loads at run time
//   ROOT/etc/openmpi                     ROOT/lib/pmix, ROOT/lib/hwloc
//
// OpenMPI and PMIx contain the paths of the machine on which they were built; environment variables replace
// these by the bundle's paths. mpirun and every rank need the variables. scripts/bundle.sh makes a bundle.
#pragma once
#include <functional>
#include <string>

#include "runtime/machine/process.h"

namespace trainctl {

/// The root of the bundle that has the program at `program` (full path); "" if it is in no bundle. `exists`:
/// whether a folder exists.
std::string bundle_root(const std::string& program, const std::function<bool(const std::string&)>& exists);
/// The root of the bundle of this process; "" if it is in no bundle.
std::string own_bundle();

/// The variables that OpenMPI and PMIx need to run from the bundle `root`; empty for "".
Environment bundle_environment(const std::string& root);
/// Sets these variables in this process. Call it before a second thread runs and before MPI_Init.
void enter_bundle(const std::string& root);

/// The full path of the launcher `name`. A name without a slash is the bundle's program if it has one,
/// otherwise the first on PATH; a path is used as it is. `find`: the full path of an executable, "" if there
/// is none.
std::string find_launcher(const std::string& name, const std::string& root,
                          const std::function<std::string(const std::string&)>& find);
/// Whether `program` is in the bundle `root`. Other launchers must not get bundle_environment.
bool is_of_bundle(const std::string& program, const std::string& root);

}  // namespace trainctl
