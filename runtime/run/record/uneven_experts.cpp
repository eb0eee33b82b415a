#include "runtime/run/record/uneven_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace trainctl {
namespace {

/// mark: how a line of the console begins.
UnevenExperts::Notice notice_of(EventKind kind, const ExpertSummary& s, const char* mark,
                                const std::string& text) {
  Json fields = record_json(s);
  fields["text"] = text;
  return {kind, dump_json(fields), mark + text};
}

}  // namespace

double UnevenExperts::most_allowed(const ExpertSummary& s) {
  const double possible = s.top_k > 0 ? double(s.experts) / double(s.top_k) : 0;
  return std::min(kMost, kOfPossible * possible);
}

std::vector<UnevenExperts::Notice> UnevenExperts::step(const StepLine& line) {
  std::vector<Notice> notices;
  if (!line.experts) return notices;
  const ExpertSummary& s = *line.experts;
  const bool uneven = s.most > most_allowed(s) && s.most > 1, idle = s.idle_steps >= kSteps;
  uneven_steps_ = uneven ? uneven_steps_ + s.steps : 0;
  even_steps_ = uneven || idle ? 0 : even_steps_ + s.steps;
  if (idle && !std::exchange(noticed_idle_, true))
    notices.push_back(notice_of(
        EventKind::experts_idle, s, " ! ",
        fmt::format("expert {} of layer {} has had no token for {} steps{}; see `trainctl report`, and "
                    "model.moe.aux_loss_coefficient or model.moe.bias_update_rate",
                    s.idle_expert, s.idle_layer, s.idle_steps,
                    s.idle > 1 ? fmt::format(" ({} experts had none in the last {})", s.idle,
                                             count_of(s.steps, "step"))
                               : "")));
  if (uneven_steps_ >= kSteps && !std::exchange(noticed_uneven_, true))
    notices.push_back(notice_of(
        EventKind::experts_uneven, s, " ! ",
        fmt::format("for {} steps an expert has had more than {:.3g} times the mean's tokens; now expert {} of "
                    "layer {} has {:.3g} times",
                    uneven_steps_, most_allowed(s), s.most_expert, s.most_layer, s.most)));
  if (even_steps_ >= kSteps && (noticed_idle_ || noticed_uneven_)) {
    noticed_idle_ = noticed_uneven_ = false;
    notices.push_back(notice_of(EventKind::experts_even, s, "   ",
                                fmt::format("experts are used more evenly again: for {} steps none had more "
                                            "than {:.3g} times the mean",
                                            even_steps_, most_allowed(s))));
  }
  return notices;
}

std::string experts_text(const ExpertSummary& s) {
  std::string text =
      fmt::format("{:.3g} × the mean at most (layer {}, expert {}) · entropy {:.3g} (layer {})", s.most,
                  s.most_layer, s.most_expert, s.entropy, s.entropy_layer);
  text += s.idle == 0
              ? std::string(" · all have tokens")
              : fmt::format(" · {} without tokens (layer {}, expert {} for {})", count_of(s.idle, "expert"),
                            s.idle_layer, s.idle_expert, count_of(s.idle_steps, "step"));
  if (s.dropped) text += fmt::format(" · {} dropped", *s.dropped);
  return text + fmt::format(" · step {}", s.step);
}

}  // namespace trainctl
