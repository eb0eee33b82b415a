#include "runtime/supervise/decide/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kMostFailures = 16;  // remembered of a node
/// So many times loop_limit attempts in a row without progress are a crash loop, however they failed.
constexpr int kIdleFactor = 3;
constexpr int kAborted = 130;

bool usable(const PoolNode& n) { return n.state == PoolNode::ready && !n.quarantined; }

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > kMost ? text + fmt::format(" and {} more", names.size() - kMost) : text;
}

std::string joined(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "; " + second;
}

std::vector<std::string> without(const std::vector<std::string>& names, std::vector<std::string> others) {
  std::sort(others.begin(), others.end());
  std::vector<std::string> left;
  for (const std::string& name : names)
    if (!std::binary_search(others.begin(), others.end(), name)) left.push_back(name);
  return left;
}

}  // namespace

Recovery::Recovery(Options options, double now_s)
    : options_(std::move(options)),
      free_since_s_(now_s),
      step_(options_.from_step),
      in_memory_(options_.from_memory),
      was_saved_(options_.from_step && !options_.from_memory),
      newest_step_(options_.from_step.value_or(0)) {
  ENSURE(!options_.widths.empty() && options_.tensor > 0);
  for (const std::string& name : options_.nodes) node(name, now_s);
}

std::string text_of(Recovery::Regroup regroup) {
  switch (regroup) {
    case Recovery::Regroup::wider: return "a node is free again: saving, then going on wider";
    case Recovery::Regroup::without_quarantined:
      return "a node is in quarantine: saving, then going on without it";
    case Recovery::Regroup::none: return "";
  }
  return "";
}

PoolNode& Recovery::node(const std::string& name, double now_s) {
  for (PoolNode& n : pool_)
    if (n.name == name) return n;
  pool_.push_back({.name = name, .since_s = now_s});
  return pool_.back();
}

// ---- nodes

void Recovery::node_coming(const std::string& name, double now_s) {
  PoolNode& n = node(name, now_s);
  if (n.state != PoolNode::lost) return;
  n.state = PoolNode::coming;
  n.since_s = now_s;
}

void Recovery::node_ready(const std::string& name, int slots, double now_s) {
  PoolNode& n = node(name, now_s);
  n.slots = slots;
  if (n.state == PoolNode::ready) return;
  n.state = PoolNode::ready;
  n.since_s = now_s;
}

void Recovery::node_lost(const std::string& name, const std::string& why, double now_s) {
  PoolNode& n = node(name, now_s);
  if (n.state == PoolNode::lost) return;
  const bool was_ready = n.state == PoolNode::ready;
  n.state = PoolNode::lost;
  n.since_s = now_s;
  n.why = why;
  n.place = -1;
  if (std::exchange(n.member, false) && running_ && lost_member_.empty()) lost_member_ = name;
  // Losses that follow each other at once have one cause: a flapping link, or this process that was stopped
  // meanwhile.
  if (was_ready && (n.failures.empty() || now_s - n.failures.back() >= options_.settle_s)) blame(n, now_s);
  // A node that returns is the last spare.
  const auto it = std::find_if(pool_.begin(), pool_.end(), [&](const PoolNode& p) { return p.name == name; });
  std::rotate(it, it + 1, pool_.end());
}

void Recovery::set_quarantined(const std::string& name, bool quarantined, bool by_this_run) {
  PoolNode& n = node(name, 0);
  n.quarantined = quarantined;
  n.put_out = quarantined && by_this_run;
  n.failures.clear();
  if (quarantined) n.place = -1;
}

void Recovery::blame(PoolNode& n, double now_s) {
  n.failures.push_back(now_s);
  if (n.failures.size() > kMostFailures) n.failures.erase(n.failures.begin());
  if (n.quarantined || !enough_failures(n.failures, now_s, options_.quarantine)) return;
  int others = 0;
  for (const PoolNode& p : pool_)
    if (p.name != n.name && usable(p)) others += ranks_on(p);
  if (others < options_.widths.back().ranks) return;
  set_quarantined(n.name, true, true);
  suspects_.push_back(n.name);
  // One more attempt shows whether the node was the cause.
  alike_ = std::min(alike_, options_.loop_limit - 1);
  idle_ = std::min(idle_, kIdleFactor * options_.loop_limit - 1);
}

std::vector<std::string> Recovery::take_quarantined() { return std::exchange(quarantined_, {}); }

int Recovery::ranks_on(const PoolNode& n) const { return n.slots / options_.tensor * options_.tensor; }

const Width* Recovery::widest(int ranks) const {
  for (const Width& w : options_.widths)
    if (w.ranks <= ranks) return &w;
  return nullptr;
}

std::vector<const PoolNode*> Recovery::select(int ranks) const {
  std::vector<const PoolNode*> at(size_t(places_), nullptr), spares;
  for (const PoolNode& n : pool_) {
    if (!usable(n) || ranks_on(n) == 0) continue;
    if (n.place >= 0)
      at[size_t(n.place)] = &n;
    else
      spares.push_back(&n);
  }
  auto spare = spares.begin();
  for (const PoolNode*& place : at)
    if (!place && spare != spares.end()) place = *spare++;
  at.insert(at.end(), spare, spares.end());
  std::erase(at, nullptr);
  int carried = 0;
  size_t needed = 0;
  while (needed < at.size() && carried < ranks) carried += ranks_on(*at[needed++]);
  ENSURE(carried >= ranks, "{} of {} ranks", carried, ranks);
  at.resize(needed);
  return at;
}

// ---- attempts

void Recovery::attempt_started(const StartAttempt& start, double now_s) {
  running_ = ever_ran_ = true;
  stepped_ = progressed_ = false;
  width_ = start.width;
  step_ = start.step;
  in_memory_ = start.in_memory;
  last_nodes_ = start.nodes;
  places_ = int(start.nodes.size());
  lost_member_.clear();
  too_few_since_s_.reset();
  why_.clear();
  for (PoolNode& n : pool_) n.place = -1, n.member = false;
  for (size_t i = 0; i < start.nodes.size(); ++i) {
    PoolNode& n = node(start.nodes[i], now_s);
    n.member = n.state == PoolNode::ready;
    if (n.member)
      n.place = int(i);
    else if (lost_member_.empty())
      lost_member_ = n.name;
  }
}

void Recovery::note_progress() {
  progressed_ = true;
  // The work went on without them: they are a matter for other jobs, too.
  quarantined_.insert(quarantined_.end(), suspects_.begin(), suspects_.end());
  suspects_.clear();
}

void Recovery::progressed(int64_t step) {
  stepped_ = true;
  attempt_step_ = step;
  if (step <= newest_step_) return;
  newest_step_ = step;
  note_progress();
}

void Recovery::saved(int64_t step) {
  was_saved_ = true;
  if (step > step_.value_or(0)) note_progress();
}

void Recovery::attempt_ended(const AttemptEnd& e, double now_s) {
  ENSURE(running_);
  running_ = false;
  free_since_s_ = now_s;
  for (PoolNode& n : pool_) n.member = false;
  switch (e.how) {
    case AttemptEnd::finished: end(StopRun{0, ""}); return;
    case AttemptEnd::stopped: end(StopRun{exit_status(ErrorCode::kStopped), "stopped on request"}); return;
    case AttemptEnd::aborted: end(StopRun{kAborted, "stopped at once on request"}); return;
    case AttemptEnd::regrouped:
      look_ = true;
      at_most_.reset();
      charged_ = false;
      cause_.clear();
      return;
    case AttemptEnd::failed: failed(e, now_s); return;
  }
}

void Recovery::failed(const AttemptEnd& e, double now_s) {
  cause_ = why_ = e.cause;
  const StopRun give_up = {exit_status(e.code), e.cause};
  if (stop_ != StopLevel::none) return void(end(give_up));
  if (e.code == ErrorCode::kCheckpoint && step_ && in_memory_ && !stepped_) {
    memory_out_of_reach();
    charged_ = false;
    why_ = fmt::format("step {} cannot be loaded from memory ({})", *step_, e.cause);
    return;
  }
  if (e.code == ErrorCode::kCheckpoint && step_ && !options_.step_fixed) {
    look_ = true;
    at_most_ = *step_ - 1;
    charged_ = false;
    why_ = fmt::format("checkpoint step {} cannot be loaded ({})", *step_, e.cause);
    return;
  }
  const bool lost = !lost_member_.empty();
  if (!worth_restarting(e.code) || (!lost && restarts_ >= options_.max_restarts)) return void(end(give_up));
  count_idle({.code = e.code,
              .step = stepped_ ? attempt_step_ : step_.value_or(0),
              .stepped = stepped_,
              .lost = lost,
              .rank = lost ? -1 : e.rank,
              .node = lost ? lost_member_ : e.node});
  for (PoolNode& n : pool_)
    if (!lost && n.name == e.node) blame(n, now_s);
  if (alike_ >= options_.loop_limit || idle_ >= kIdleFactor * options_.loop_limit) {
    const int loop = alike_ >= options_.loop_limit ? alike_ : idle_;
    end(StopRun{give_up.exit_code,
                fmt::format("{}; {} in a row made no progress{}", e.cause, count_of(loop, "attempt"),
                            loop == alike_ ? " and failed alike" : "")});
    return;
  }
  look_ = true;
  at_most_.reset();
  charged_ = !lost;
  if (lost) return;
  ++restarts_;
  why_ = fmt::format("{}; restart {} of {}", e.cause, restarts_, options_.max_restarts);
}

void Recovery::count_idle(const Failure& f) {
  if (progressed_) {
    alike_ = idle_ = 0;
  } else {
    const auto& last = last_failure_;
    const bool same_place =
        last && ((f.rank >= 0 && f.rank == last->rank) || (!f.node.empty() && f.node == last->node));
    const bool same = last && f.code == last->code && f.step == last->step && f.stepped == last->stepped &&
                      f.lost == last->lost && (same_place || (f.stepped && !f.lost));
    ++idle_;
    alike_ = same ? alike_ + 1 : 1;
  }
  last_failure_ = f;
}

void Recovery::checkpoint_found(int64_t step, std::optional<StateId> in_memory) {
  look_ = false;
  step_ = step;
  in_memory_ = in_memory;
}

void Recovery::memory_out_of_reach() {
  ENSURE(in_memory_ && !running_);
  refused_.push_back(*in_memory_);
  look_ = true;
}

void Recovery::no_checkpoint(int skipped) {
  look_ = false;
  in_memory_.reset();
  // A run that was saved never begins again unasked: that would move every checkpoint aside.
  if (!at_most_ && skipped == 0 && !was_saved_) {
    step_.reset();
    return;
  }
  if (charged_) --restarts_;
  const char* what = at_most_      ? "there is no older usable checkpoint"
                     : skipped > 0 ? "the run was saved, but none of its checkpoints is usable"
                                   : "the run was saved, but its checkpoints are gone";
  end(StopRun{exit_status(ErrorCode::kCheckpoint), joined(cause_, what)});
}

void Recovery::stop(StopLevel level) { stop_ = std::max(stop_, level); }

// ---- decisions

Decision Recovery::end(Decision decision) {
  over_ = std::move(decision);
  return *over_;
}

Decision Recovery::next(double now_s) {
  if (over_) return *over_;
  if (running_) return Wait{kNever, ""};
  if (stop_ != StopLevel::none)
    return end(StopRun{stop_ == StopLevel::now ? kAborted : exit_status(ErrorCode::kStopped),
                       joined("stopped on request while no attempt ran", cause_)});
  if (look_) return FindCheckpoint{at_most_, refused_};
  pardon_if_needed();
  int ranks = 0, coming = 0;
  for (const PoolNode& n : pool_) {
    if (usable(n)) ranks += ranks_on(n);
    if (n.state == PoolNode::coming && !n.quarantined) ++coming;
  }
  const Width* fits = widest(ranks);
  const double until_s =
      free_since_s_ + (fits && ever_ran_ ? options_.rejoin_limit_s : options_.gather_limit_s);
  if (fits != &options_.widths.front() && coming > 0 && now_s < until_s)
    return Wait{until_s, fmt::format("waiting for {} that {} being started", count_of(coming, "node"),
                                     coming == 1 ? "is" : "are")};
  return fits ? Decision(start(*fits)) : too_few(now_s, ranks);
}

/// A suspect node is better than none: what this run has put out is used again where the run fits in no other
/// way.
void Recovery::pardon_if_needed() {
  int ranks = 0, all = 0;
  for (const PoolNode& n : pool_) {
    if (usable(n)) ranks += ranks_on(n);
    if (usable(n) || (n.put_out && n.state == PoolNode::ready)) all += ranks_on(n);
  }
  if (widest(ranks) || !widest(all)) return;
  for (PoolNode& n : pool_) {
    if (!n.put_out) continue;
    n.quarantined = n.put_out = false;
    std::erase(suspects_, n.name);
  }
}

Decision Recovery::too_few(double now_s, int ranks) {
  if (!too_few_since_s_) too_few_since_s_ = now_s;
  const int live = int(std::count_if(pool_.begin(), pool_.end(), usable));
  const std::string why = joined(
      cause_, fmt::format("too few nodes: {} ready for {}, and the smallest width has {}",
                          count_of(live, "node"), count_of(ranks, "rank"), options_.widths.back().ranks));
  const double until_s = *too_few_since_s_ + options_.wait_limit_s;
  switch (options_.too_few) {
    case TooFew::wait:
      if (now_s < until_s) return Wait{until_s, why};
      return end(StopRun{exit_status(ErrorCode::kStopped),
                         fmt::format("{}; waited for {}", why, short_duration(options_.wait_limit_s))});
    case TooFew::requeue: return end(RequeueJob{why});
    case TooFew::stop: return end(StopRun{exit_status(ErrorCode::kStopped), why});
  }
  return *over_;
}

StartAttempt Recovery::start(const Width& width) const {
  StartAttempt s{.width = width, .step = step_, .why = why_, .in_memory = in_memory_};
  for (const PoolNode* n : select(width.ranks)) s.nodes.push_back(n->name);
  if (!ever_ran_) return s;
  const std::vector<std::string> gone = without(last_nodes_, s.nodes), come = without(s.nodes, last_nodes_);
  if (!come.empty())
    s.why = joined(s.why, "with " + list_of(come) + (gone.empty() ? "" : " in place of " + list_of(gone)));
  else if (!gone.empty())
    s.why = joined(s.why, "without " + list_of(gone));
  if (width.data != width_.data)
    s.why = joined(s.why, fmt::format("data-parallel width {} → {}", width_.data, width.data));
  return s;
}

Recovery::Regroup Recovery::regroup(double now_s) const {
  if (!running_ || !stepped_ || stop_ != StopLevel::none || !lost_member_.empty()) return Regroup::none;
  int ranks = 0;
  bool leave = false;
  for (const PoolNode& n : pool_) {
    leave = leave || (n.member && n.quarantined);
    if (usable(n) && (n.member || n.since_s + options_.settle_s <= now_s)) ranks += ranks_on(n);
  }
  const Width* fits = widest(ranks);
  if (fits && fits->ranks > width_.ranks) return Regroup::wider;
  return leave && fits && fits->ranks == width_.ranks ? Regroup::without_quarantined : Regroup::none;
}

}  // namespace trainctl
