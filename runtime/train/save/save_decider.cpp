#include "runtime/train/save/save_decider.h"

#include <utility>

namespace trainctl {

SaveDecider::SaveDecider(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {
  if (!options_.decides) return;
  const double given_s = options_.checkpoint.mtbf_seconds;
  SaveRule rule = directory_rule(options_.checkpoint);
  rule.waits = options_.waits;
  std::vector<SaveRule> rules{rule};
  if (options_.has_partner) rules.push_back(partner_rule(options_.checkpoint));
  calendar_.emplace(std::move(rules), options_.history,
                    SaveCalendar::Start{.step = options_.step,
                                        .now_s = clock.monotonic_s(),
                                        .mtbf_s = given_s > 0 ? given_s : assumed_mtbf_s(options_.nodes),
                                        .mtbf_is_given = given_s > 0});
  report();
}

SaveSet SaveDecider::due(int64_t step) const {
  return calendar_ ? calendar_->due(step, clock_.monotonic_s()) : SaveSet();
}

void SaveDecider::stepped(double seconds) {
  if (!calendar_) return;
  calendar_->stepped(seconds);
  report();
}

void SaveDecider::count(int64_t step, const std::function<SaveTargets()>& stage) {
  const double began_s = clock_.monotonic_s();
  const SaveTargets begun = stage();
  if (!calendar_ || !begun.leaves_node()) return;
  if (begun.partner) calendar_->began(SaveTier::partner, step, began_s);
  if (begun.directory) calendar_->began(SaveTier::directory, step, began_s);
  farthest_ = begun.directory ? SaveTier::directory : SaveTier::partner;
  began_s_ = began_s;
  stall_s_ = clock_.monotonic_s() - began_s;
}

void SaveDecider::fenced(double waited_s, bool writes) {
  if (!calendar_) return;
  // Training waits for the copy in the node's memory, which is made also without a partner.
  if (stall_s_) calendar_->cost(farthest_, farthest_ == SaveTier::partner ? 0 : *stall_s_ + waited_s);
  stall_s_.reset();
  if (!began_s_ || writes) return;
  calendar_->safe(farthest_, clock_.monotonic_s() - *began_s_);
  began_s_.reset();
}

void SaveDecider::report() {
  for (const SaveInterval& interval : calendar_->take_changes(clock_.monotonic_s()))
    options_.decided(interval);
  for (const ShortInterval& warning : calendar_->take_warnings()) options_.warned(warning);
}

}  // namespace trainctl
