#include "runtime/run/wire/supervisor_file.h"

#include "runtime/base/record.h"

namespace trainctl {

std::string supervisor_file(const std::string& run_directory) { return run_directory + "/supervisor.json"; }

std::string SupervisorFile::to_json() const { return record_text(*this); }
SupervisorFile SupervisorFile::from_json(const std::string& text) {
  return read_record<SupervisorFile>(text, "supervisor.json");
}

}  // namespace trainctl
