// The live page of a run: `trainctl status RUN --serve`.
#pragma once
#include <string>

#include "cmd/commands.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl::cmd {

/// Serves the page at `address` ("ADDR:PORT", "": the default) until SIGINT, SIGTERM or SIGHUP. Prints its
/// URL first. Returns the exit status.
int serve_status(const RunDirectory& run, const std::string& address, const Context& context);

}  // namespace trainctl::cmd
