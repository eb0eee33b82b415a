#include "runtime/run/views/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runtime/train/measure/step_line.h"

namespace trainctl {
namespace {

/// For a label's value.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out;
}

std::string text_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

class Page {
 public:
  explicit Page(const std::string& run) : run_(escaped(run)) {}

  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void sample(double value) { sample("", "", value); }
  void sample(const char* label, std::string_view of, double value) {
    out_ += fmt::format("{}{{run=\"{}\"", name_, run_);
    if (*label) out_ += fmt::format(",{}=\"{}\"", label, escaped(of));
    out_ += fmt::format("}} {}\n", text_of(value));
  }
  void gauge(const char* name, const char* help, double value) {
    family(name, "gauge", help);
    sample(value);
  }
  /// Where the run has the number.
  void known(const char* name, const char* help, double value) {
    if (!std::isnan(value)) gauge(name, help, value);
  }
  void counter(const char* name, const char* help, double value) {
    family(name, "counter", help);
    sample(value);
  }
  std::string take() { return std::move(out_); }

 private:
  const std::string run_;
  std::string out_;
  const char* name_ = "";
};

void add_state(Page& page, const RunStatus& s) {
  page.family("trainctl_build_info", "gauge", "The program that supervises the run.");
  page.sample("version", TRAINCTL_VERSION, 1);
  page.family("trainctl_state", "gauge", "1 for the state of the run, 0 for all others.");
  for (const std::string_view state : Words<RunState>::list)
    page.sample("state", state, state == word_of(s.state) ? 1 : 0);
  page.gauge("trainctl_attempt", "Starts of the ranks so far.", double(s.epoch));
  page.counter("trainctl_restarts_total", "Restarts after failures since the launch or resume.", s.restarts);
  page.gauge("trainctl_step", "The last finished step.", double(s.step));
  page.gauge("trainctl_total_steps", "The last step of the schedule.", double(s.total_steps));
  if (s.step_unix_s > 0)
    page.gauge("trainctl_last_progress_timestamp_seconds", "When the last step ended.", s.step_unix_s);
  page.gauge("trainctl_updated_timestamp_seconds", "When the supervisor wrote this.", s.updated_unix_s);
  if (s.exit_code >= 0) page.gauge("trainctl_exit_code", "How the run ended.", s.exit_code);
}

void add_step(Page& page, const StepLine& line) {
  page.counter("trainctl_tokens_total", "Tokens that the run was trained on.", double(line.tokens));
  page.counter(
      "trainctl_skipped_steps_total",
      "Steps that changed no weights, but for overflows: loss or gradient norm not finite, or no target.",
      double(line.skipped_steps));
  if (!std::isnan(line.loss_scale))
    page.counter("trainctl_overflows_total",
                 "Steps in f16 that changed no weights and halved the loss scale.", double(line.overflows));
  page.gauge("trainctl_loss", "Training loss of the last step.", line.loss);
  if (!line.sources.empty())
    page.family("trainctl_source_loss", "gauge",
                "Training loss of the last step, of each source of the data.");
  for (const SourceLoss& source : line.sources) page.sample("source", source.name, source.loss);
  page.gauge("trainctl_grad_norm", "Norm of the gradients of the last step.", line.grad_norm);
  if (line.val_loss) page.gauge("trainctl_validation_loss", "Of the last step.", *line.val_loss);
  const auto tasks = [&](const char* name, const char* help, double TaskScore::*accuracy) {
    if (line.tasks.empty()) return;
    page.family(name, "gauge", help);
    for (const TaskScore& task : line.tasks) page.sample("task", task.name, task.*accuracy);
  };
  tasks("trainctl_task_accuracy_ratio", "After the last step, by mean likelihoods of endings.",
        &TaskScore::accuracy);
  tasks("trainctl_task_accuracy_of_sums_ratio", "After the last step, by likelihoods of whole endings.",
        &TaskScore::accuracy_of_sums);
  page.known("trainctl_learning_rate", "Of the last step.", line.lr);
  page.known("trainctl_loss_scale", "Of the gradients of the last step, in f16.", line.loss_scale);
  page.known("trainctl_step_seconds", "Time of the last step.", line.step_s);
  page.known("trainctl_tokens_per_second", "Of the last step.", line.tokens_per_s);
  page.known("trainctl_mfu_ratio", "Model FLOPs over the peak of the devices, in the last step.", line.mfu);
  page.known("trainctl_rank_skew_ratio", "Compute time of the slowest rank over the median, less 1.",
             line.skew());
  if (line.phases) {
    page.family("trainctl_phase_seconds", "gauge", "Parts of the last step, means over the ranks.");
    const auto phase = [&](const char* name, double seconds) {
      if (!std::isnan(seconds)) page.sample("phase", name, seconds);
    };
    phase("data", line.phases->data_s);
    phase("forward", line.phases->forward_s);
    phase("backward", line.phases->backward_s);
    phase("communication", line.phases->communication_s);
    phase("optimizer", line.phases->optimizer_s);
    phase("evaluation", line.phases->evaluation_s);
    phase("checkpoint", line.phases->checkpoint_s);
    phase("reporting", line.phases->reporting_s);
  }
  if (line.ranks && line.ranks->peak_memory_bytes)
    page.gauge("trainctl_peak_memory_bytes", "Of the rank that took most.",
               double(line.ranks->peak_memory_bytes->max));
  if (line.gpus && line.gpus->temperature_c)
    page.gauge("trainctl_gpu_temperature_celsius", "Of the hottest GPU.", line.gpus->temperature_c->max);
}

void add_checkpoints(Page& page, const RunStatus& s) {
  page.family("trainctl_checkpoint_step", "gauge", "The newest step whose state is in each place.");
  const auto place = [&](const char* name, int64_t step) {
    if (step >= 0) page.sample("place", name, double(step));
  };
  place("memory", s.staged_step);
  place("other_nodes", s.partner_step);
  place("written", s.saved_step);
  place("verified", s.verified_step);
  place("copied", s.uploaded_step);
}

void add_nodes(Page& page, const RunStatus& s) {
  if (s.nodes.empty()) return;
  page.family("trainctl_nodes", "gauge", "Nodes of the run by state.");
  for (const std::string_view state : Words<NodeState>::list)
    page.sample("state", state, double(std::count_if(s.nodes.begin(), s.nodes.end(), [&](const NodeStatus& n) {
                  return word_of(n.state) == state;
                })));
}

/// Gauges: steps that count become steps done again where the run goes back.
void add_time(Page& page, const TimeLedger& time) {
  const auto family = [&](const char* name, const char* help, const ByCause<double>& seconds) {
    page.family(name, "gauge", help);
    for (size_t i = 0; i < kTimeCauses; ++i)
      page.sample("cause", word_of(TimeCause(i)), seconds[TimeCause(i)]);
  };
  family("trainctl_time_seconds", "Wall time of the run by what it was spent on.", time.seconds());
  family("trainctl_rank_seconds", "The same, times the ranks.", time.rank_seconds());
  page.known("trainctl_goodput_ratio", "Share of the supervised time that went into steps that count.",
             time.goodput());
}

}  // namespace

std::string prometheus_text(const RunStatus& s, const TimeLedger* time) {
  Page page(s.run_id);
  add_state(page, s);
  if (s.last_step.step > 0) add_step(page, s.last_step);
  add_checkpoints(page, s);
  add_nodes(page, s);
  if (time) add_time(page, *time);
  return page.take();
}

}  // namespace trainctl
