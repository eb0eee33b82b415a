#include "runtime/run/record/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {

void RunSummary::Best::take(double value, int64_t at) {
  if (!std::isfinite(value) || (step > 0 && value >= loss)) return;
  loss = value;
  step = at;
}

void RunSummary::step(const StepLine& v, double unix_s) {
  if (v.step <= 0) return;
  if (first_step_ == 0) {
    first_step_ = v.step;
    first_tokens_ = double(v.tokens);
    first_step_unix_s_ = unix_s;
    step_tokens_ = double(v.tokens) / double(v.step);
  }
  if (v.step > last_step_ && v.skipped) ++skipped_;
  last_step_ = std::max(last_step_, v.step);
  last_tokens_ = std::max(last_tokens_, double(v.tokens));
  last_step_unix_s_ = unix_s;
  if (std::isfinite(v.loss)) last_loss_ = v.loss;
  training_.take(v.loss, v.step);
  if (v.val_loss) validation_.take(*v.val_loss, v.step);
  if (!v.tasks.empty()) tasks_ = v.tasks, tasks_step_ = v.step;
}

std::string RunSummary::render(double ended_unix_s, double val_bytes_per_token) const {
  if (first_step_ == 0) return "";
  const int64_t steps = last_step_ - first_step_ + 1;
  std::string text = fmt::format("summary     {} · {} · {} tokens", short_duration(ended_unix_s - started_unix_s_),
                                 count_of(steps, "step"), short_number(last_tokens_ - first_tokens_ + step_tokens_));
  // From the end of the first step on: starting ranks and warming caches is no training speed.
  if (const double s = last_step_unix_s_ - first_step_unix_s_; steps > 1 && s > 0)
    text += fmt::format(" · {} tokens/s on average, saves and evaluations included", short_number((last_tokens_ - first_tokens_) / s));
  if (training_.step > 0)
    text += fmt::format("\n            loss {:.4f} at the end, {:.4f} at best (step {})", last_loss_, training_.loss, training_.step);
  // A loss of a token depends on the vocabulary, one of a byte does not.
  const std::string bits =
      val_bytes_per_token > 0
          ? fmt::format(", {:.3f} bits a byte", validation_.loss / std::log(2.0) / val_bytes_per_token)
          : "";
  if (validation_.step > 0)
    text += fmt::format(" · validation {:.4f}{} at best (step {})", validation_.loss, bits, validation_.step);
  if (!tasks_.empty())
    text += fmt::format("\n            tasks at step {}: {}", tasks_step_, scores_text(tasks_));
  if (skipped_ > 0)
    text += fmt::format(
        "\n            {} skipped: loss or gradient norm not finite, or no target (events.jsonl: "
        "step_skipped)",
        count_of(skipped_, "step"));
  return text;
}

}  // namespace trainctl
