#include "runtime/train/save/save_decider.h"

#include <utility>

namespace trainctl {
namespace {

/// So many newer saves may have begun before the answer to one counts as lost.
constexpr int64_t kMostUnanswered = 64;

}  // namespace

SaveDecider::SaveDecider(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {
  if (!options_.decides) return;
  const double given_s = options_.checkpoint.mtbf_seconds;
  SaveRule rule = directory_rule(options_.checkpoint);
  rule.waits = options_.waits;
  std::vector<SaveRule> rules{rule};
  if (options_.has_memory && options_.checkpoint.memory_when == EverySteps::automatic)
    rules.push_back(memory_rule());
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
  if (!partner_ || !partner_->alone) {
    calendar_->stepped(seconds);
  } else {
    calendar_->stepped_beside(seconds);
    // The copy in the memory of the node, for which training waits, is made also without a partner.
    if (partner_->ok) calendar_->cost(SaveTier::partner, calendar_->take_cost_beside());
  }
  if (partner_ && partner_->ended) partner_.reset();
  report();
}

void SaveDecider::count(int64_t step, const std::function<SaveTargets()>& stage) {
  const double began_s = clock_.monotonic_s();
  const SaveTargets begun = stage();
  if (!calendar_ || !begun.any()) return;
  stall_s_ = clock_.monotonic_s() - began_s;
  stalls_for_directory_ = begun.directory;
  // A save that goes farther is copied there first.
  if (options_.has_memory) calendar_->began(SaveTier::memory, step, began_s);
  if (begun.partner) {
    calendar_->began(SaveTier::partner, step, began_s);
    calendar_->take_cost_beside();
    partner_ = PartnerCopy{.began_s = began_s, .alone = !begun.directory};
  }
  if (begun.directory) {
    calendar_->began(SaveTier::directory, step, began_s);
    const int64_t number = options_.newest_save();
    // An answer that this rank has missed must not end the measuring.
    const bool is_lost = directory_ && number - directory_->number > kMostUnanswered;
    if (!directory_ || is_lost) directory_ = DirectorySave{number, began_s};
  }
}

void SaveDecider::fenced(double waited_s, const SavesUnderWay& saves) {
  if (!calendar_) return;
  if (stall_s_) {
    const double cost_s = *std::exchange(stall_s_, std::nullopt) + waited_s;
    // A copy that training does not wait for any more is whole.
    calendar_->cost(SaveTier::memory, cost_s);
    calendar_->safe(SaveTier::memory, cost_s);
    if (stalls_for_directory_) calendar_->cost(SaveTier::directory, cost_s);
  }
  const double now_s = clock_.monotonic_s();
  take_partner_result(saves, now_s);
  if (!directory_) return;
  const auto result = options_.saved(directory_->number);
  if (!result) return;  // it is not published yet
  if (result->ok) calendar_->safe(SaveTier::directory, now_s - directory_->began_s);
  directory_.reset();
}

void SaveDecider::take_partner_result(const SavesUnderWay& saves, double now_s) {
  if (!partner_ || partner_->ended || saves.writing) return;
  partner_->ended = true;
  partner_->ok = !saves.no_partner;
  if (!partner_->ok)
    calendar_->failed(SaveTier::partner, now_s);
  else if (partner_->alone)
    calendar_->safe(SaveTier::partner, now_s - partner_->began_s);
}

void SaveDecider::report() {
  for (const SaveInterval& interval : calendar_->take_changes(clock_.monotonic_s()))
    options_.decided(interval);
  for (const ShortInterval& warning : calendar_->take_warnings()) options_.warned(warning);
}

}  // namespace trainctl
