// Checks of what watches a run: the monitor of the loss, and alerts.
#include <fmt/format.h>

#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

bool is_web_address(const std::string& text) {
  const size_t scheme = text.starts_with("http://") ? 7 : text.starts_with("https://") ? 8 : 0;
  const size_t host_end = text.find_first_of("/?#", scheme);
  const bool has_host = scheme > 0 && host_end != scheme && text.size() > scheme;
  return has_host && text.find_first_of(" \t\n\r\"<>") == std::string::npos;
}

void check_loss_monitor(Resolution& r) {
  const char *window = "observability.loss_monitor.window",
             *diverged = "observability.loss_monitor.diverged_steps",
             *policy = "observability.loss_monitor.policy", *saves = "checkpoint.every_steps";
  const LossMonitorSpec& monitor = r.job.observability.loss_monitor;
  if (r.sound({window, diverged}) && monitor.diverged_steps > monitor.window)
    r.report("E0710",
             fmt::format("a divergence of {} steps cannot be compared with a window of {}",
                         monitor.diverged_steps, monitor.window),
             {diverged, window}, {fmt::format("use diverged_steps of at most {}", monitor.window)});
  const bool goes_back = monitor.policy == LossPolicy::skip || monitor.policy == LossPolicy::lower_rate;
  if (r.sound({policy, saves, "checkpoint.every_seconds", "checkpoint.keep_every_steps",
               "checkpoint.interval"}) &&
      goes_back && !r.job.checkpoint.saves_while_training())
    r.report("W0602",
             "a run that goes back for its loss begins at step 0 again: no checkpoint is saved "
             "before the end",
             {policy, saves}, {"set checkpoint.interval = \"auto\"", "or checkpoint.every_steps"});
}

}  // namespace

void check_watch(Resolution& r) {
  check_loss_monitor(r);
  const char* webhook = "observability.alerts.webhook";
  const AlertsSpec& alerts = r.job.observability.alerts;
  if (r.sound(webhook) && !alerts.webhook.empty() && !is_web_address(alerts.webhook))
    r.report("E0711", fmt::format("`{}` is no address of a web server", webhook), {webhook},
             {"write it as https://host/path or http://host:port/path"});
}

}  // namespace trainctl::spec
