// libpmix, loaded at run time, with one pointer per function.
//
// Only runtime/machine/pmix/pmix_*.cpp include this header, because it includes the header of PMIx.
#pragma once
#include <pmix.h>
#include <pmix_server.h>

#include <string>

namespace trainctl {

/// The functions that a server needs; libpmix 4 and newer have all of them. Valid until the process ends.
struct PmixLibrary {
  std::string path;     ///< the file that was loaded
  std::string problem;  ///< why it could not be loaded, one sentence; "": it is loaded
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_finalize) server_finalize = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_deregister_nspace) deregister_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_generate_regex) generate_regex = nullptr;
  decltype(&PMIx_generate_ppn) generate_ppn = nullptr;
  decltype(&PMIx_Info_load) info_load = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
};

/// Loads libpmix at the first call. Prefers the libpmix in the folder of the MPI library that this program is
/// linked with, because the ranks use that one.
const PmixLibrary& pmix_library();

}  // namespace trainctl
