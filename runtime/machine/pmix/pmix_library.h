// libpmix as this program uses it: found and loaded at run time, one pointer a function.
//
// Only runtime/machine/pmix_*.cpp include this: it needs the header of PMIx.
#pragma once
#include <pmix.h>
#include <pmix_server.h>

#include <string>

namespace trainctl {

/// The functions that a server needs; all of libpmix 4 and newer. Valid until the process ends.
struct PmixLibrary {
  std::string path;     ///< the file that was opened
  std::string problem;  ///< empty when loaded; otherwise one sentence
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

/// Loaded at the first call. The libpmix beside the MPI library that this program is linked with is
/// preferred: the ranks use that one.
const PmixLibrary& pmix_library();

}  // namespace trainctl
