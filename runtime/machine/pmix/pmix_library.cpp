#include "runtime/machine/pmix/pmix_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace trainctl {
namespace {

/// The folder of the MPI library in this process; "" if there is none.
std::string folder_of_mpi() {
  std::string folder;
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        const std::string path = object->dlpi_name ? object->dlpi_name : "";
        const size_t slash = path.rfind('/');
        if (slash == std::string::npos || path.compare(slash, 11, "/libmpi.so.") != 0) return 0;
        *static_cast<std::string*>(result) = path.substr(0, slash);
        return 1;
      },
      &folder);
  return folder;
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  if (const char* named = std::getenv("TRAINCTL_PMIX_LIBRARY"); named && *named) return {named};
  if (const std::string folder = folder_of_mpi(); !folder.empty()) paths.push_back(folder + "/libpmix.so.2");
  paths.push_back("libpmix.so.2");
  return paths;
}

template <typename Function>
void look_up(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (!function && missing.empty()) missing = name;
}

/// "" or the name of a function that is not there.
std::string look_up_all(void* handle, PmixLibrary& pmix) {
  std::string missing;
  look_up(handle, "PMIx_server_init", pmix.server_init, missing);
  look_up(handle, "PMIx_server_finalize", pmix.server_finalize, missing);
  look_up(handle, "PMIx_server_register_nspace", pmix.register_nspace, missing);
  look_up(handle, "PMIx_server_deregister_nspace", pmix.deregister_nspace, missing);
  look_up(handle, "PMIx_server_register_client", pmix.register_client, missing);
  look_up(handle, "PMIx_server_setup_fork", pmix.setup_fork, missing);
  look_up(handle, "PMIx_generate_regex", pmix.generate_regex, missing);
  look_up(handle, "PMIx_generate_ppn", pmix.generate_ppn, missing);
  look_up(handle, "PMIx_Info_load", pmix.info_load, missing);
  look_up(handle, "PMIx_Error_string", pmix.error_string, missing);
  return missing;
}

PmixLibrary load() {
  PmixLibrary pmix;
  const std::vector<std::string> paths = candidates();
  std::string reasons;
  for (const std::string& path : paths) {
    if (path.find('/') != std::string::npos && ::access(path.c_str(), F_OK) != 0) continue;
    // Global: libpmix's own plugins look for its functions.
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
      reasons += fmt::format("; {}", ::dlerror());
      continue;
    }
    const std::string missing = look_up_all(handle, pmix);
    if (!missing.empty()) {
      reasons += fmt::format("; {} has no {}, it is older than PMIx 4", path, missing);
      continue;
    }
    const link_map* map = nullptr;
    const bool named = ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name;
    pmix.path = named ? map->l_name : path;
    return pmix;
  }
  pmix.problem = fmt::format(
      "libpmix (PMIx 4 or newer) was not found: tried {}{}; install libpmix2, or name the file in "
      "TRAINCTL_PMIX_LIBRARY",
      fmt::join(paths, ", "), reasons);
  return pmix;
}

}  // namespace

const PmixLibrary& pmix_library() {
  static const PmixLibrary library = load();
  return library;
}

}  // namespace trainctl
