#include "runtime/run/agent/agent_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {
namespace {

/// A tick that comes so long after its deadline: the agent itself did not run (SIGSTOP, a starved machine), and silence meanwhile
/// proves nothing.
constexpr double kOwnPauseS = 1.0;
/// Between two agents, or groups of them, that start a supervisor: the first is up and heard by then.
constexpr double kTakeoverStepS = 3.0;

}  // namespace

double takeover_after_s(double silence_s, double grace_s, int order) {
  ENSURE(order >= 0, "node {}", order);
  const int turn = int(std::bit_width(unsigned(order) + 1)) - 1;
  const double first_s = std::max(grace_s / 4, silence_s), last_s = std::max(first_s, 0.75 * grace_s);
  return std::min(first_s + turn * std::min(kTakeoverStepS, grace_s / 12), last_s);
}

AgentState::AgentState(const Options& options, double now_s)
    : options_(options), heard_s_(now_s), dialed_s_(now_s - options.dial_s), beat_s_(now_s), last_tick_s_(now_s) {}

void AgentState::connected(double now_s) {
  if (phase_ != Phase::dialing) return;
  forgive_pause(now_s);  // the dial may have waited for a file
  phase_ = Phase::greeting;
  dialed_s_ = now_s;
  actions_.push_back(Action::greet);
}

void AgentState::disconnected(double now_s) {
  if (phase_ != Phase::greeting && phase_ != Phase::attached) return;
  phase_ = Phase::dialing;
  dialed_s_ = now_s;
}

void AgentState::welcomed(const Options& limits, double now_s) {
  if (phase_ != Phase::greeting) return;
  options_ = limits;
  next_takeover_s_ = 0;
  phase_ = Phase::attached;
  heard_s_ = now_s;
  beat_s_ = now_s - options_.beat_s;
}

void AgentState::heard(double now_s) {
  // Before the welcome it may be anyone.
  if (phase_ == Phase::attached) heard_s_ = now_s;
}

void AgentState::ended_by_order(double) { end("the supervisor has ended the run"); }

void AgentState::end(std::string reason) {
  if (phase_ == Phase::ending || phase_ == Phase::over) return;
  reason_ = std::move(reason);
  phase_ = Phase::ending;
  actions_.push_back(Action::kill_all);
  if (!epoch_) {
    phase_ = Phase::over;
    actions_.push_back(Action::leave);
  }
}

bool AgentState::accept(uint64_t epoch) {
  if (epoch < newest_ || phase_ == Phase::ending || phase_ == Phase::over) return false;
  newest_ = epoch;
  return true;
}

void AgentState::running(uint64_t epoch) {
  ENSURE(!epoch_ || epoch >= *epoch_, "epoch {} after {}", epoch, *epoch_);
  ENSURE(phase_ != Phase::ending && phase_ != Phase::over, "epoch {} begins at the end", epoch);
  epoch_ = epoch;
}

void AgentState::gone(uint64_t epoch, double) {
  if (epoch_ == epoch) epoch_.reset();
  if (phase_ != Phase::ending || epoch_) return;
  phase_ = Phase::over;
  actions_.push_back(Action::leave);
}

/// Never into the future: a message may have come after the pause.
void AgentState::forgive_pause(double now_s) {
  const double pause_s = now_s - deadline_s();
  if (pause_s > kOwnPauseS) heard_s_ = std::min(heard_s_ + pause_s, now_s);
}

void AgentState::tick(double now_s) {
  forgive_pause(now_s);
  last_tick_s_ = now_s;
  if (phase_ == Phase::ending || phase_ == Phase::over) return;
  if (now_s - heard_s_ > options_.grace_s) {
    abandoned_ = true;
    return end(fmt::format("no word from a supervisor for {:.1f} s", now_s - heard_s_));
  }
  if (waits_for_supervisor() && now_s >= takeover_due_s()) {
    next_takeover_s_ = now_s + options_.grace_s / 10;
    actions_.push_back(Action::take_over);
  }
  switch (phase_) {
    case Phase::attached:
      if (now_s - heard_s_ > options_.silence_s) {
        phase_ = Phase::dialing;
        dialed_s_ = now_s;
        actions_.push_back(Action::drop);
      } else if (now_s - beat_s_ >= options_.beat_s) {
        beat_s_ = now_s;
        actions_.push_back(Action::beat);
      }
      return;
    case Phase::greeting:
      if (now_s - dialed_s_ > options_.silence_s) {
        phase_ = Phase::dialing;
        dialed_s_ = now_s;
        actions_.push_back(Action::drop);
      }
      return;
    case Phase::dialing:
      if (now_s - dialed_s_ >= options_.dial_s) {
        dialed_s_ = now_s;
        actions_.push_back(Action::dial);
      }
      return;
    default: return;
  }
}

std::vector<AgentState::Action> AgentState::take_actions() { return std::exchange(actions_, {}); }

double AgentState::takeover_due_s() const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (options_.takeover_s <= 0) return kNever;
  const double due_s = std::max(heard_s_ + options_.takeover_s, next_takeover_s_);
  return due_s < heard_s_ + options_.grace_s ? due_s : kNever;
}

double AgentState::deadline_s() const {
  const double end_s = std::min(heard_s_ + options_.grace_s,
                                waits_for_supervisor() ? takeover_due_s() : heard_s_ + options_.grace_s);
  switch (phase_) {
    case Phase::attached: return std::min({end_s, heard_s_ + options_.silence_s, beat_s_ + options_.beat_s});
    case Phase::greeting: return std::min(end_s, dialed_s_ + options_.silence_s);
    case Phase::dialing: return std::min(end_s, dialed_s_ + options_.dial_s);
    default: return last_tick_s_ + options_.dial_s;
  }
}

}  // namespace trainctl
