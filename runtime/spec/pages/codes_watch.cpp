// Pages of the codes of runtime/spec/check_watch.cpp.
#include "runtime/spec/pages/codes.h"

namespace trainctl::spec {

const std::vector<CodePage>& watch_pages() {
  static const std::vector<CodePage> pages = {
      {"E0710", "A divergence longer than the window",
       "A divergence is a number of bad steps in a row (observability.loss_monitor.diverged_steps). They are "
       "compared with the window of steps before them, which must not be shorter.",
       R"("loss_monitor": {"window": 50, "diverged_steps": 100})", "Use a longer window, or fewer steps."},
      {"E0711", "A webhook that is no address",
       "observability.alerts.webhook gets a POST for each alert, over HTTP or HTTPS.",
       R"("webhook": "hooks.example.org/training")", R"(Write "https://hooks.example.org/training".)"},
      {"E0712", "No program for alerts",
       "The first word of observability.alerts.command is the program that is run for each alert. This "
       "machine has none of that name on PATH.",
       R"("command": ["page-me", "--team", "training"])", "Install it, or give its full path."},
      {"W0602", "Going back without checkpoints",
       "observability.loss_monitor.policy goes back to the checkpoint before a spike, but none is saved "
       "before the end: the run would begin again.",
       R"("policy": "skip" with checkpoint.every_steps 0)",
       R"(Set checkpoint.interval to "auto", or checkpoint.every_steps.)"},
  };
  return pages;
}

}  // namespace trainctl::spec
