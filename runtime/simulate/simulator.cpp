#include "runtime/simulate/simulator.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/simulate/simulation.h"

namespace trainctl::simulate {
namespace {

constexpr Ns kSettle = 5 * kNsOfS + 1;  // Recovery::Options::settle_s, and a little

}  // namespace

// ---- time

void Simulation::spend(Cause cause, Ns until) {
  until = std::min(until, options_.end);
  if (until <= accounted_) return;
  result_.time[cause] += until - accounted_;
  if (cause >= Cause::detecting) charged_->cost += until - accounted_;
  accounted_ = until;
  now_ = std::max(now_, until);
}

void Simulation::idle(Cause cause, Ns until) {
  until = std::min(until, options_.end);
  while (next_event() <= until && now_ < options_.end) {
    spend(cause, next_event());
    take_idle_event();
  }
  spend(cause, until);
}

void Simulation::take_idle_event() {
  if (nodes_.next_return() <= next_failure()) return node_returns(nullptr);
  const Failure& failure = failures_[next_++];
  const FailureKind& kind = fleet_.failures[size_t(failure.kind)];
  ++result_.kinds[size_t(failure.kind)].failures;
  const Ns until = failure.at + failure.repair;
  if (kind.effect == Effect::slow) slow_.push_back({failure.at, until, failure.slowdown, failure.kind});
  if (kind.effect == Effect::storage) outages_.push_back({failure.at, until, 0, failure.kind});
  for (int i = 0; i < kind.nodes; ++i) {
    const int place = (failure.place + i) % run_.nodes;
    const std::string name = nodes_.at(place);
    if (name.empty() || nodes_.is_out(name)) continue;
    if (kind.effect == Effect::node) {
      kept_.lose(place);
      nodes_.take_out(name, now_, std::max(until, now_ + 1));
      if (recovery_) recovery_->node_lost(name, kind.what, now_s());
    } else if (failure.repair > 0 && (kind.effect == Effect::crash || kind.effect == Effect::device ||
                                      kind.effect == Effect::hang)) {
      nodes_.faulty.try_emplace(name, FleetNodes::Fault{failure.kind, failure.repair});
    }
  }
}

void Simulation::node_returns(Attempt* attempt) {
  const std::string name = nodes_.take_return(now_);
  if (!recovery_) return;
  recovery_->set_quarantined(name, false);
  recovery_->node_ready(name, nodes_.slots(name), now_s());
  if (attempt) attempt->regroup_at = std::min(attempt->regroup_at, now_ + kSettle);
}

// ---- between attempts

KeptStates::Choice Simulation::choose(const FindCheckpoint& find) {
  std::optional<int64_t> at_most = std::exchange(at_most_, {});
  if (find.at_most) at_most = std::min(*find.at_most, at_most.value_or(*find.at_most));
  KeptStates::Choice choice = kept_.choose(at_most, find.refused);
  if (choice.from == LoadFrom::nothing && at_most && !find.at_most) {
    ++result_.wrong_kept;
    choice = kept_.choose({}, find.refused);
  }
  return choice;
}

void Simulation::supervise() {
  const int ranks = run_.widths.back().ranks;
  ENSURE(ranks > 0);
  Recovery::Options options{.widths = run_.widths,
                            .tensor = run_.tensor,
                            .nodes = nodes_.names(),
                            .was_saved = kept_.was_saved(),
                            .max_restarts = run_.fault.max_restarts,
                            .too_few = run_.fault.too_few_nodes == TooFewNodes::wait ? Recovery::TooFew::wait
                                       : run_.fault.too_few_nodes == TooFewNodes::requeue
                                           ? Recovery::TooFew::requeue
                                           : Recovery::TooFew::stop,
                            .wait_limit_s = run_.fault.wait_for_nodes_seconds};
  load_ = LoadFrom::nothing;
  if (const auto choice = choose({}); choice.from != LoadFrom::nothing) {
    options.from_step = choice.state.step;
    load_ = choice.from;
  }
  recovery_.emplace(std::move(options), now_s());
  for (const std::string& name : nodes_.names())
    if (nodes_.is_out(name))
      recovery_->node_lost(name, "being repaired", now_s());
    else
      recovery_->node_ready(name, nodes_.slots(name), now_s());
}

void Simulation::decide(const FindCheckpoint& find) {
  const KeptStates::Choice choice = choose(find);
  load_ = choice.from;
  if (std::exchange(has_failed_, false)) {  // else the attempt ended on order
    const bool in_memory = choice.from == LoadFrom::memory, in_partner = choice.from == LoadFrom::partner;
    seen_.memory += 1;
    seen_.partner += !in_memory;
    seen_.directory += !in_memory && !in_partner;
  }
  if (choice.from == LoadFrom::nothing)
    recovery_->no_checkpoint(0);
  else if (choice.from == LoadFrom::directory)
    recovery_->checkpoint_found(choice.state.step);
  else
    recovery_->checkpoint_found(choice.state.step, choice.state);
}

void Simulation::give_up(const std::string& why) {
  result_.end = why;
  ++result_.persons;
  kept_.forget_memory();
  recovery_.reset();
  // A person leaves out what is broken.
  for (const auto& [name, fault] : nodes_.faulty)
    if (!nodes_.is_out(name)) nodes_.take_out(name, now_, now_ + std::max<Ns>(fault.repair, 1));
  idle(Cause::stopped, now_ + std::max(ns_of(fleet_.person_s), Ns(1)));
  supervise();
}

SimulatedRun Simulation::run() {
  supervise();
  while (now_ < options_.end && !result_.is_finished) {
    // Only an attempt that begins needs the storage.
    for (const Spell& outage : outages_)
      if (outage.begin <= now_ && now_ < outage.end) {
        charged_ = &result_.kinds[size_t(outage.kind)];
        idle(Cause::idle, outage.end);
      }
    if (now_ >= options_.end) break;
    std::visit([&](const auto& decision) { decide(decision); }, recovery_->next(now_s()));
  }
  result_.wall = now_;
  result_.steps = steps_;
  result_.nodes_out = nodes_.history();
  for (const Done& done : done_) {
    const int64_t steps = done.upto - done.after;
    result_.slowed += steps * (done.wide_time - run_.step_time);
    result_.narrowed += steps * (done.step_time - done.wide_time);
  }
  Ns& training = result_.time[Cause::training];
  training -= result_.time[Cause::stragglers] = std::clamp<Ns>(result_.slowed, 0, training);
  training -= result_.time[Cause::bubble] = Ns(double(training) * run_.bubble_share);
  ENSURE(std::accumulate(result_.time.begin(), result_.time.end(), Ns(0)) == result_.wall, "{} ns of {}",
         std::accumulate(result_.time.begin(), result_.time.end(), Ns(0)), result_.wall);
  return std::move(result_);
}

int SimulatedRun::spares_for(double share) const {
  std::map<int, Ns> times;
  for (size_t i = 0; i < nodes_out.size(); ++i) {
    const Ns until = i + 1 < nodes_out.size() ? nodes_out[i + 1].first : wall;
    times[nodes_out[i].second] += std::max<Ns>(0, until - nodes_out[i].first);
  }
  Ns sum = 0;
  for (const auto& [out, time] : times) {
    sum += time;
    if (double(sum) >= share * double(wall)) return out;
  }
  return times.empty() ? 0 : times.rbegin()->first;
}

SimulatedRun simulate(const RunModel& run, const FleetModel& fleet, std::span<const Failure> failures,
                      const SimulationOptions& options) {
  return Simulation(run, fleet, failures, options).run();
}

}  // namespace trainctl::simulate
