#include "runtime/run/record/uneven_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace trainctl {
namespace {

std::string fields_text(const ExpertSummary& s, int64_t steps) {
  Json fields = record_json(s);
  fields["in_a_row"] = steps;
  return dump_json(fields);
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
  if (idle && !noticed_idle_) {
    noticed_idle_ = true;
    notices.push_back(
        {EventKind::experts_idle, fields_text(s, s.idle_steps),
         fmt::format(" ! expert {} of layer {} has had no token for {} steps{}; see `trainctl report`, and "
                     "model.moe.aux_loss_coefficient or model.moe.selection_bias",
                     s.idle_expert, s.idle_layer, s.idle_steps,
                     s.idle > 1 ? fmt::format(" ({} experts had none in the last {})", s.idle,
                                              count_of(s.steps, "step"))
                                : "")});
  }
  if (uneven_steps_ >= kSteps && !noticed_uneven_) {
    noticed_uneven_ = true;
    notices.push_back(
        {EventKind::experts_uneven, fields_text(s, uneven_steps_),
         fmt::format(
             " ! expert {} of layer {} has {:.3g} times as many tokens as the mean one, and one has had more "
             "than {:.3g} times for {} steps",
             s.most_expert, s.most_layer, s.most, most_allowed(s), uneven_steps_)});
  }
  if (even_steps_ >= kSteps && (noticed_idle_ || noticed_uneven_)) {
    noticed_idle_ = noticed_uneven_ = false;
    notices.push_back(
        {EventKind::experts_even, fields_text(s, even_steps_),
         fmt::format("   experts are used more evenly again: for {} steps none had more than {:.3g} "
                     "times the mean",
                     even_steps_, most_allowed(s))});
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
