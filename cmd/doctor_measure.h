// trainctl doctor --measure.
#pragma once
#include <string>

#include "cmd/commands.h"

namespace trainctl::cmd {

struct MeasureOptions {
  std::string out;  ///< the cluster file
  int threads = 1;  ///< of a rank
  bool quick = false;
};
/// Writes a cluster file of this machine's CPU ranks. Shows on stderr what it measures.
int measure_machine(const MeasureOptions& options, const Context& context);

}  // namespace trainctl::cmd
