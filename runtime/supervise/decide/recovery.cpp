#include "runtime/supervise/decide/recovery.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {
namespace {

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > kMost ? text + fmt::format(" and {} more", names.size() - kMost) : text;
}

std::string joined(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "; " + second;
}

std::vector<std::string> without(const std::vector<std::string>& names,
                                 const std::vector<std::string>& others) {
  const std::unordered_set<std::string_view> known(others.begin(), others.end());
  std::vector<std::string> left;
  for (const std::string& name : names)
    if (!known.contains(name)) left.push_back(name);
  return left;
}

NodePool::Options pool_options(const Recovery::Options& options) {
  ENSURE(!options.widths.empty());
  ENSURE(options.widths.back().ranks > 0, "a width of {} ranks", options.widths.back().ranks);
  for (size_t i = 1; i < options.widths.size(); ++i)
    ENSURE(options.widths[i].ranks < options.widths[i - 1].ranks, "widths of {}, then {} ranks",
           options.widths[i - 1].ranks, options.widths[i].ranks);
  return {.nodes = options.nodes,
          .tensor = options.tensor,
          .least_ranks = options.widths.back().ranks,
          .settle_s = options.settle_s,
          .quarantine = options.quarantine};
}

NodeFault fault_of(const AttemptEnd& end) {
  return end.start_failed                 ? NodeFault::start
         : end.code == ErrorCode::kDevice ? NodeFault::device
                                          : NodeFault::possible;
}

}  // namespace

Recovery::Recovery(Options options, double now_s)
    : options_(std::move(options)),
      pool_(pool_options(options_), now_s),
      crash_loop_({.alike = options_.loop_limit, .max_restarts = options_.max_restarts}),
      free_since_s_(now_s),
      asks_nodes_(options_.ask_nodes && !options_.step_fixed),
      was_saved_(options_.was_saved || (options_.from_step && !options_.from_memory)),
      newest_step_(options_.from_step.value_or(0)),
      newest_saved_(newest_step_) {
  ENSURE(!options_.from_memory || options_.from_step);
  state_.step = options_.from_step;
  state_.in_memory = options_.from_memory;
}

std::string text_of(Recovery::Regroup regroup) {
  switch (regroup) {
    case Recovery::Regroup::wider: return "a node is free again: saving, then going on wider";
    case Recovery::Regroup::without_quarantined:
      return "a node is in quarantine: saving, then going on without it";
    case Recovery::Regroup::other_layers:
      return "a stage is slow: saving, then going on with fewer layers there";
    case Recovery::Regroup::none: return "";
  }
  return "";
}

// ---- nodes

void Recovery::node_coming(const std::string& name, double now_s) { pool_.coming(name, now_s); }

void Recovery::node_ready(const std::string& name, int slots, double now_s) {
  pool_.ready(name, slots, now_s);
}

void Recovery::node_lost(const std::string& name, const std::string& why, double now_s, bool by_own_pause) {
  const NodePool::Loss loss = pool_.lost(name, why, now_s, by_own_pause);
  if (loss.was_member && attempt_.is_running && attempt_.lost_member.empty()) attempt_.lost_member = name;
  if (loss.was_member) forget_layers();  // other nodes, and other ranks on them
  if (loss.is_put_out) crash_loop_.allow_one_more();
}

void Recovery::set_quarantined(const std::string& name, bool quarantined, bool by_this_run) {
  pool_.set_quarantined(name, quarantined, by_this_run);
}

void Recovery::suspect(const std::string& name, const std::string& why, double now_s) {
  if (pool_.failed(name, why, now_s)) crash_loop_.allow_one_more();
}

std::vector<NodePool::Slow> Recovery::burned_in(const std::vector<NodeTest>& nodes, double now_s) {
  for (const NodeTest& test : nodes) {
    if (test.wrong.empty())
      pool_.passed(test.node, test.product_s);
    else if (pool_.failed(test.node, "burn-in: " + test.wrong, now_s, NodeFault::device,
                          NodeEvidence::failed_probe))
      crash_loop_.allow_one_more();
  }
  return pool_.find_slow(attempt_.width.ranks, now_s);
}

std::optional<NodePool::Slow> Recovery::found_slow(const std::string& node, const std::string& text,
                                                   double now_s) {
  if (!attempt_.is_running) return std::nullopt;
  const std::optional<NodePool::Slow> slow = pool_.found_slow(node, text, attempt_.width.ranks, now_s);
  if (slow && slow->is_put_out) forget_layers();
  return slow;
}

std::vector<NodePool::Slow> Recovery::replace_slow(double now_s) {
  if (!attempt_.is_running) return {};
  std::vector<NodePool::Slow> replaced = pool_.replace_slow(attempt_.width.ranks, now_s);
  if (!replaced.empty()) forget_layers();
  return replaced;
}

void Recovery::forget_layers() {
  if (stage_layers_.empty()) return;
  stage_layers_.clear();
  pool_.judge_anew();
}

std::vector<PutOutNode> Recovery::take_quarantined() { return pool_.take_quarantined(); }

const Width* Recovery::widest(int ranks) const {
  for (const Width& w : options_.widths)
    if (w.ranks <= ranks) return &w;
  return nullptr;
}

// ---- attempts

void Recovery::attempt_started(const StartAttempt& start, double now_s) {
  ENSURE(!attempt_.is_running);  // the one before has ended, with all of its processes
  ENSURE(!over_);
  ENSURE(!start.nodes.empty() && start.width.ranks > 0, "{} ranks on {} nodes", start.width.ranks,
         start.nodes.size());
  asks_nodes_ = false;
  attempt_ = {.is_running = true,
              .has_ever_run = true,
              .width = start.width,
              .nodes = start.nodes,
              .stage_layers = start.stage_layers,
              .lost_member = pool_.begin_attempt(start.nodes, now_s),
              .step = attempt_.step};
  stage_layers_ = start.stage_layers;
  state_.step = start.step;
  state_.in_memory = start.in_memory;
  state_.back_to.clear();
  too_few_since_s_.reset();
  why_.clear();
}

void Recovery::note_progress() {
  attempt_.progressed = true;
  crash_loop_.progressed();
  state_.repaired.reset();
  pool_.progressed();
}

void Recovery::progressed(int64_t step) {
  ENSURE(attempt_.is_running, "step {}", step);
  if (!attempt_.stepped) pool_.stepped();
  attempt_.stepped = true;
  attempt_.step = step;
  if (step <= newest_step_) return;
  newest_step_ = step;
  note_progress();
}

void Recovery::saved(int64_t step) {
  ENSURE(attempt_.is_running, "step {}", step);
  was_saved_ = true;
  if (step <= newest_saved_) return;  // saved before the run went back
  newest_saved_ = step;
  note_progress();
}

void Recovery::search(std::optional<int64_t> at_most, bool is_charged) {
  ENSURE(!attempt_.is_running);
  state_.is_searched = true;
  state_.damaged.reset();
  state_.at_most = at_most;
  if (!state_.back_to.empty()) {
    const int64_t limit = state_.back_to.begin()->first;
    state_.at_most = std::min(limit, at_most.value_or(limit));
  }
  state_.is_charged = is_charged;
}

void Recovery::go_back(int64_t at_most, bool may_begin_again, const std::string& why) {
  ENSURE(at_most >= 0, "step {}", at_most);
  const bool is_earliest = state_.back_to.empty() || at_most < state_.back_to.begin()->first;
  bool& may = state_.back_to[at_most];
  may = may || may_begin_again;
  if (is_earliest) why_ = why;
  if (attempt_.is_running) return;
  if (!state_.is_searched && state_.step.value_or(0) > at_most) return search({}, false);
  // Nodes that are asked may hold a later state.
  state_.at_most = std::min(at_most, state_.at_most.value_or(at_most));
}

void Recovery::attempt_ended(const AttemptEnd& e, double now_s) {
  ENSURE(attempt_.is_running);
  attempt_.is_running = false;
  free_since_s_ = now_s;
  pool_.end_attempt();
  switch (e.how) {
    case AttemptEnd::finished: end(StopRun{0, ""}); return;
    case AttemptEnd::stopped: end(StopRun{exit_status(ErrorCode::kStopped), "stopped on request"}); return;
    case AttemptEnd::aborted: end(StopRun{kStoppedAtOnce, "stopped at once on request"}); return;
    case AttemptEnd::regrouped:
    case AttemptEnd::went_back:
      search({}, false);
      cause_.clear();
      return;
    case AttemptEnd::failed: failed(e, now_s); return;
  }
}

void Recovery::failed(const AttemptEnd& e, double now_s) {
  cause_ = why_ = e.cause;
  const StopRun give_up = {exit_status(e.code), e.cause};
  if (stop_ != StopLevel::none) return void(end(give_up));
  if (!attempt_.stepped && !attempt_.stage_layers.empty() && !moved_in_vain_) {
    // Perhaps it needs more memory than there is. What it began from is still there.
    forget_layers();
    moved_in_vain_ = true;
    return search({}, false);
  }
  if (e.code == ErrorCode::kCheckpoint && state_.step && state_.in_memory && !attempt_.stepped) {
    memory_out_of_reach();
    state_.is_charged = false;
    why_ = fmt::format("step {} cannot be loaded from memory ({})", *state_.step, e.cause);
    return;
  }
  const bool is_repaired = state_.repaired && state_.repaired == state_.step;
  if (e.code == ErrorCode::kCheckpoint && state_.step && !(options_.step_fixed && is_repaired)) {
    // Where the user named the step there is no older one.
    search(options_.step_fixed ? -1 : *state_.step - 1, false);
    if (!is_repaired) state_.damaged = state_.repaired = state_.step;
    why_ = fmt::format("checkpoint step {} cannot be loaded ({})", *state_.step, e.cause);
    return;
  }
  const bool lost = !attempt_.lost_member.empty();
  if (!worth_restarting(e.code, attempt_.stepped)) return void(end(give_up));
  const NodeFault fault = fault_of(e);
  const bool was_put_out = pool_.is_put_out(e.node);  // by its burn-in, which was heard before
  const bool is_put_out = !lost && !e.is_undecided && pool_.failed(e.node, e.cause, now_s, fault);
  const bool is_out = lost || ((is_put_out || was_put_out) && fault == NodeFault::device);
  crash_loop_.count({.code = e.code,
                     .step = attempt_.stepped ? attempt_.step : state_.step.value_or(0),
                     .stepped = attempt_.stepped,
                     .lost = lost,
                     .rank = lost ? -1 : e.rank,
                     .node = lost ? attempt_.lost_member : e.node,
                     .is_out = is_out},
                    attempt_.progressed);
  if (is_put_out) crash_loop_.allow_one_more();
  if (crash_loop_.is_out_of_restarts()) return void(end(give_up));
  if (crash_loop_.is_reached()) {
    end(StopRun{give_up.exit_code, fmt::format("{}; {}", e.cause, crash_loop_.text())});
    return;
  }
  search({}, !is_out);
  if (is_out) return;
  ++restarts_;
  why_ = fmt::format("{}; restart {} of {}", e.cause, crash_loop_.restarts(), options_.max_restarts);
}

void Recovery::checkpoint_found(int64_t step, std::optional<StateId> in_memory) {
  ENSURE(!attempt_.is_running, "step {}", step);
  ENSURE(!in_memory || in_memory->step == step);
  state_.is_searched = asks_nodes_ = false;
  state_.step = step;
  state_.in_memory = in_memory;
}

void Recovery::memory_out_of_reach() {
  ENSURE(state_.in_memory && !attempt_.is_running);
  state_.refused.push_back(*state_.in_memory);
  state_.is_searched = true;
}

void Recovery::no_checkpoint(int skipped) {
  ENSURE(!attempt_.is_running);
  state_.is_searched = asks_nodes_ = false;
  state_.in_memory.reset();
  if (!state_.back_to.empty()) {
    const auto earliest = state_.back_to.begin();
    if (earliest->second) {
      state_.step.reset();
      return;
    }
    // What cannot be done must not end the run, now and at each resume.
    not_gone_back_ = std::max(not_gone_back_, std::optional(earliest->first));
    state_.back_to.erase(earliest);
    return search({}, state_.is_charged);
  }
  // A run that was saved never begins again unasked: that would move every checkpoint aside.
  if (!state_.at_most && skipped == 0 && !was_saved_) {
    state_.step.reset();
    return;
  }
  ENSURE(!state_.is_charged || restarts_ > 0);
  if (state_.is_charged) --restarts_;
  const char* what = state_.at_most && options_.step_fixed ? "it cannot be repaired, and the step was given"
                     : state_.at_most                      ? "there is no older usable checkpoint"
                     : skipped > 0 ? "the run was saved, but none of its checkpoints is usable"
                                   : "the run was saved, but its checkpoints are gone";
  end(StopRun{exit_status(ErrorCode::kCheckpoint), joined(cause_, what)});
}

void Recovery::stop(StopLevel level) { stop_ = std::max(stop_, level); }

// ---- decisions

Decision Recovery::end(Decision decision) {
  ENSURE(!over_ && !attempt_.is_running);  // how the run ends is decided once
  over_ = std::move(decision);
  return *over_;
}

Decision Recovery::next(double now_s) {
  if (over_) return *over_;
  if (attempt_.is_running) return Wait{kNever, ""};
  if (stop_ != StopLevel::none)
    return end(StopRun{stop_ == StopLevel::now ? kStoppedAtOnce : exit_status(ErrorCode::kStopped),
                       joined("stopped on request while no attempt ran", cause_)});
  if (state_.is_searched) return FindCheckpoint{state_.at_most, state_.damaged, state_.refused};
  pool_.pardon_if_needed();
  const int ranks = pool_.usable_ranks(), coming = pool_.coming_count();
  const Width* fits = widest(ranks);
  const double until_s =
      free_since_s_ + (fits && attempt_.has_ever_run ? options_.rejoin_limit_s : options_.gather_limit_s);
  if (fits != &options_.widths.front() && coming > 0 && now_s < until_s)
    return Wait{until_s, options_.one_machine
                             ? "waiting for this machine's agent to start"
                             : fmt::format("waiting for {} that {} being started", count_of(coming, "node"),
                                           coming == 1 ? "is" : "are")};
  if (!fits) return too_few(now_s, ranks);
  if (!asks_nodes_) return start(*fits);
  if (const double ask_s = free_since_s_ + options_.ask_limit_s; coming > 0 && now_s < ask_s)
    return Wait{
        ask_s, fmt::format("waiting for {} that may hold a newer state in memory", count_of(coming, "node"))};
  return FindCheckpoint{state_.at_most, state_.damaged, state_.refused};
}

Decision Recovery::too_few(double now_s, int ranks) {
  if (!too_few_since_s_) too_few_since_s_ = now_s;
  const int live = pool_.usable_count();
  const std::string why =
      joined(cause_, options_.one_machine
                         ? fmt::format("this machine is ready for {} of the {} that the smallest width has",
                                       ranks, count_of(options_.widths.back().ranks, "rank"))
                         : fmt::format("too few nodes: {} ready for {}, and the smallest width has {}",
                                       count_of(live, "node"), count_of(ranks, "rank"),
                                       options_.widths.back().ranks));
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
  StartAttempt s{.nodes = pool_.select(width.ranks),
                 .width = width,
                 .step = state_.step,
                 .why = why_,
                 .in_memory = state_.in_memory,
                 .stage_layers = attempt_.has_ever_run && width.ranks != attempt_.width.ranks
                                     ? std::vector<int64_t>()
                                     : stage_layers_};
  if (options_.burn_in) s.burn_in = pool_.untested(s.nodes);
  if (!attempt_.has_ever_run) return s;
  const std::vector<std::string> gone = without(attempt_.nodes, s.nodes);
  const std::vector<std::string> come = without(s.nodes, attempt_.nodes);
  if (!come.empty())
    s.why = joined(s.why, "with " + some_of(come) + (gone.empty() ? "" : " in place of " + some_of(gone)));
  else if (!gone.empty())
    s.why = joined(s.why, "without " + some_of(gone));
  if (width.data != attempt_.width.data)
    s.why = joined(s.why, fmt::format("data-parallel width {} → {}", attempt_.width.data, width.data));
  if (s.stage_layers != attempt_.stage_layers)
    s.why = joined(s.why, s.stage_layers.empty()
                              ? "layers of stages as in the job"
                              : fmt::format("layers of stages {}", fmt::join(s.stage_layers, ", ")));
  return s;
}

Recovery::Regroup Recovery::regroup(double now_s) const {
  if (!attempt_.is_running || !attempt_.stepped || stop_ != StopLevel::none || !attempt_.lost_member.empty())
    return Regroup::none;
  const Width* fits = widest(pool_.settled_ranks(now_s));
  if (fits && fits->ranks > attempt_.width.ranks) return Regroup::wider;
  if (!fits || fits->ranks != attempt_.width.ranks) return Regroup::none;
  if (pool_.has_quarantined_member()) return Regroup::without_quarantined;
  return stage_layers_ != attempt_.stage_layers ? Regroup::other_layers : Regroup::none;
}

}  // namespace trainctl
