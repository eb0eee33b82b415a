#include "runtime/supervise/history/suspects.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"

namespace trainctl {
namespace {

/// The attempt of an event, and what speaks against the checkpoint that it loaded.
class Reader {
 public:
  void read(const Json& event) {
    const auto kind = event_kind_of(event);
    if (!kind) return;
    const auto step = event.contains("step") && event["step"].is_number_integer()
                          ? event["step"].get<int64_t>()
                          : int64_t{-1};
    if (*kind == EventKind::start) return begin(record_of<StartEvent>(event));
    if (*kind == EventKind::checkpoint && step > loaded_.value_or(-1)) bad_.erase(step);
    // A step without targets is one of the data, not of the state, and an overflow one of the loss scale.
    if (*kind == EventKind::step_skipped && event.value("targets", int64_t{1}) > 0 &&
        !event.contains("loss_scale"))
      bad_step(step);
    if (*kind == EventKind::failure && event.value("code_name", "") == name_of(ErrorCode::kDiverged))
      bad_step(step + 1);
  }
  std::vector<Suspect> suspects() const {
    std::vector<Suspect> result;
    for (const auto& [step, epochs] : bad_)
      if (epochs.size() >= 2) result.push_back({step, {epochs.begin(), epochs.end()}});
    return result;
  }

 private:
  void begin(const StartEvent& start) {
    epoch_ = start.epoch;
    loaded_.reset();
    if (!start.checkpoint.empty() || !start.tier.empty()) loaded_ = start.from_step;
  }
  void bad_step(int64_t step) {
    std::set<int64_t>& origins = skipped_from_[step];
    origins.insert(loaded_.value_or(-1));
    if (loaded_ && step <= *loaded_ + kSuspectSteps && origins.size() == 1) bad_[*loaded_].insert(epoch_);
  }

  uint64_t epoch_ = 0;
  std::optional<int64_t> loaded_;                      // of the attempt
  std::map<int64_t, std::set<uint64_t>> bad_;          // by the checkpoint's step: the attempts
  std::map<int64_t, std::set<int64_t>> skipped_from_;  // by the bad step: where its attempts began
};

}  // namespace

std::string Suspect::text() const {
  return fmt::format(
      "the state of step {} is suspect: the loss was not finite within {} steps after it was loaded, "
      "in attempts {}",
      step, kSuspectSteps, fmt::join(epochs, ", "));
}

DoubtedState Suspect::doubted() const { return {.step = step, .epoch = epochs.back(), .why = text()}; }

std::string Suspect::event_json() const {
  return dump_json(Json{{"step", step}, {"epochs", epochs}, {"reason", text()}});
}

std::vector<Suspect> suspect_checkpoints(const std::vector<std::string>& events) {
  Reader reader;
  for (const std::string& line : events) {
    const Json event = try_parse_json(line);
    if (!event.is_object()) continue;
    try {
      reader.read(event);
    } catch (const std::exception&) {
      // A line that another version wrote.
    }
  }
  return reader.suspects();
}

std::vector<DoubtedState> doubted_states(const std::vector<Suspect>& suspects) {
  std::vector<DoubtedState> states;
  for (const Suspect& suspect : suspects) states.push_back(suspect.doubted());
  return states;
}

std::unique_ptr<ckpt::Checkpoint> open_latest_trusted(
    FileSystem& fs, const std::string& directory, std::optional<int64_t> at_most,
    const std::vector<Suspect>& suspects,
    const std::function<void(const std::string&, const std::string&)>& skipped,
    const std::function<void(const Suspect&, bool is_used)>& suspected) {
  std::unique_ptr<ckpt::Checkpoint> newest_suspect;
  std::vector<Suspect> passed;
  // To open_latest, a step below zero sets no limit.
  while (!at_most || *at_most >= 0) {
    auto checkpoint = ckpt::open_latest(fs, directory, at_most.value_or(-1), skipped);
    if (!checkpoint) break;
    const int64_t step = checkpoint->state().step;
    const auto suspect =
        std::find_if(suspects.begin(), suspects.end(), [&](const Suspect& s) { return s.step == step; });
    if (suspect == suspects.end()) {
      for (const Suspect& s : passed) suspected(s, false);
      return checkpoint;
    }
    passed.push_back(*suspect);
    if (!newest_suspect) newest_suspect = std::move(checkpoint);
    at_most = step - 1;
  }
  if (newest_suspect) suspected(passed.front(), true);
  return newest_suspect;  // better than none
}

}  // namespace trainctl
