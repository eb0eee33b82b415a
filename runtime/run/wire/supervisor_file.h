// supervisor.json: where the agents of a run find its supervisor.
#pragma once
#include <string>

#include "runtime/base/record_fields.h"

namespace trainctl {

/// supervisor.json of a run, mode 0600: the address and token of its supervisor. A supervisor removes the
/// file when it ends. `requeue` and `chain` are kept for a supervisor that takes over.
struct SupervisorFile {
  std::string address, token;
  bool requeue = false;  ///< as in SlurmTies
  std::string chain;     ///< as in SlurmTies
  std::string to_json() const;
  static SupervisorFile from_json(const std::string& text);  ///< Error(kIo)
  static void fields(auto& f, auto& r) {
    f("address", r.address);
    f("token", r.token);
    f.later("requeue", r.requeue);
    f.later("chain", r.chain);
  }
};
std::string supervisor_file(const std::string& run_directory);

}  // namespace trainctl
