// The pages of `trainctl help` that are about no single command: a job, and a run.
#pragma once
#include <span>

namespace trainctl::cmd {

struct HelpPage {
  const char *topic, *text;
};
/// All of them, in the order in which they are offered.
std::span<const HelpPage> help_pages();

}  // namespace trainctl::cmd
