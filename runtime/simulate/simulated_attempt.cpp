#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/simulate/simulation.h"

namespace trainctl::simulate {

Ns Simulation::paced(const Width& width) const {
  double slowest = 0;
  for (const Spell& spell : slow_)
    if (spell.begin <= now_ && now_ < spell.end) slowest = std::max(slowest, spell.slowdown);
  return Ns(double(run_.step_time_at(width)) * (1 + slowest));
}

/// How long a save that begins then takes until it is safe.
Ns Simulation::safe_of_directory(Ns from) const {
  Ns safe = from + run_.directory.safe;
  for (const Spell& outage : outages_)
    if (outage.begin < safe && from < outage.end) safe += outage.end - std::max(outage.begin, from);
  return safe - from;
}

void Simulation::lose_steps(int64_t step) {
  while (!done_.empty() && done_.back().upto > step) {
    Done& last = done_.back();
    const int64_t lost = last.upto - std::max(step, last.after);
    const Ns time = lost * last.step_time;
    result_.lost_steps += lost;
    result_.time[Cause::training] -= time;
    result_.time[Cause::recomputed] += time;
    charged_->cost += time;
    last.upto -= lost;
    if (last.upto == last.after) done_.pop_back();
  }
  steps_ = step;
  std::erase_if(wrong_, [&](const Wrong& wrong) { return wrong.step >= step; });
}

void Simulation::attempt(const StartAttempt& start) {
  recovery_->attempt_started(start, now_s());
  nodes_.place(start.nodes);
  width_ = start.width;
  ++result_.attempts;
  ++result_.loads[size_t(load_)];
  lose_steps(start.step.value_or(0));
  kept_.begins(++epoch_, steps_);
  const Ns up = now_ + ns_of(fleet_.starting_s + fleet_.starting_of_rank_s * start.width.ranks);
  const Ns load = load_ == LoadFrom::directory ? run_.directory.load
                  : load_ == LoadFrom::partner ? run_.partner.load
                  : load_ == LoadFrom::memory  ? run_.memory.load
                                               : 0;
  seen_.observed_s = now_s();
  result_.saves = decide_saves(run_, seen_, options_.saves);
  const Pauses pauses{.directory = {result_.saves.directory, run_.directory.cost},
                      .memory = {result_.saves.memory, run_.memory.cost},
                      .evaluation = run_.evaluation};
  Attempt attempt{.up = up, .clock = AttemptClock(up + load, steps_, paced(width_), pauses)};
  attempt.regroup_at = up + load + 2 * paced(width_);
  for (const std::string& name : start.nodes)
    if (const auto fault = nodes_.faulty.find(name); fault != nodes_.faulty.end()) {
      // A broken device is seen before ranks connect to each other, a broken link after that.
      const int kind = fault->second.kind;
      const Ns at =
          fleet_.failures[size_t(kind)].effect == Effect::hang ? up : now_ + ns_of(fleet_.starting_s);
      if (next_failure() < at) break;  // that comes first
      fail(attempt, at, kind, name, {}, fault->second.repair);
      return;
    }
  while (!attempt.over) go_on(attempt);
}

/// To the next event.
void Simulation::go_on(Attempt& attempt) {
  const bool is_reached = attempt.clock.steps_at(options_.end) >= run_.total_steps;
  const Ns finish = is_reached ? attempt.clock.end_of(run_.total_steps) : kNeverNs;
  Ns slow_end = kNeverNs;
  for (const Spell& spell : slow_)
    if (spell.end > now_) slow_end = std::min(slow_end, spell.end);
  const auto wrong = std::min_element(wrong_.begin(), wrong_.end(),
                                      [](const Wrong& a, const Wrong& b) { return a.found < b.found; });
  // What was found before is seen when steps go on.
  const Ns found = wrong == wrong_.end() ? kNeverNs : std::max(wrong->found, attempt.clock.end_of(steps_));
  const Ns at = std::min({finish, options_.end, slow_end, found, attempt.regroup_at, next_event()});
  now_ = at;
  if (at == options_.end || at == finish) {
    account(attempt, at, attempt.clock.steps_at(at));
    spend(Cause::training, at);  // a step that is under way at the end
    result_.is_finished = at == finish;
    attempt.over = true;
  } else if (at == nodes_.next_return()) {
    node_returns(&attempt);
  } else if (at == next_failure()) {
    strike(attempt, failures_[next_++]);
  } else if (at == found) {
    const Wrong taken = *wrong;
    wrong_.erase(wrong);
    find_wrong(attempt, taken);
  } else if (at == slow_end) {
    attempt.clock.change_pace(at, paced(width_));
  } else {
    attempt.regroup_at = kNeverNs;
    const int64_t steps = attempt.clock.steps_at(at);
    if (steps > attempt.clock.first()) recovery_->progressed(steps);
    if (recovery_->regroup(now_s()) == Recovery::Regroup::none) return;
    charged_ = &result_.regroup;
    ++result_.regroup.failures;
    regroup(attempt);
  }
}

void Simulation::find_wrong(Attempt& attempt, const Wrong& wrong) {
  at_most_ = wrong.step;
  const std::string node = nodes_.at(wrong.place);
  fail(attempt, now_, wrong.kind, node, {}, 0);
  if (wrong.repair <= 0 || node.empty() || nodes_.is_out(node)) return;
  recovery_->set_quarantined(node, true);  // by a person
  nodes_.take_out(node, now_, now_ + wrong.repair);
}

/// A failure while the attempt runs.
void Simulation::strike(Attempt& attempt, const Failure& failure) {
  const FailureKind& kind = fleet_.failures[size_t(failure.kind)];
  ++result_.kinds[size_t(failure.kind)].failures;
  const Ns until = failure.at + failure.repair;
  switch (kind.effect) {
    case Effect::slow:
      slow_.push_back({failure.at, until, failure.slowdown, failure.kind});
      return attempt.clock.change_pace(failure.at, paced(width_));
    case Effect::storage: outages_.push_back({failure.at, until, 0, failure.kind}); return;
    case Effect::silent:
      wrong_.push_back({attempt.clock.steps_at(failure.at), failure.at + failure.found, failure.repair,
                        failure.kind, failure.place});
      return;
    case Effect::planned:
      charged_ = &result_.kinds[size_t(failure.kind)];
      ++charged_->interruptions;
      return regroup(attempt);
    case Effect::crash:
    case Effect::device:
    case Effect::hang:
    case Effect::node: break;
  }
  std::vector<int> places;
  std::string node;
  for (int i = 0; i < kind.nodes; ++i) {
    const int place = (failure.place + i) % run_.nodes;
    const std::string name = nodes_.at(place);
    if (name.empty()) continue;  // it runs no ranks now
    places.push_back(place);
    if (node.empty()) node = name;
  }
  if (!places.empty()) fail(attempt, failure.at, failure.kind, node, places, failure.repair);
}

void Simulation::account(const Attempt& attempt, Ns at, int64_t steps) {
  spend(Cause::starting, std::min(at, attempt.up));
  const AttemptClock& clock = attempt.clock;
  spend(Cause::loading, std::min(at, clock.parts().front().begin));
  if (steps <= clock.first()) return;
  Ns training = 0;
  for (size_t i = 0; i < clock.parts().size(); ++i) {
    const AttemptClock::Part& part = clock.parts()[i];
    const int64_t upto = std::min(steps, i + 1 < clock.parts().size() ? clock.parts()[i + 1].step : steps);
    if (upto <= part.step) continue;
    done_.push_back(
        {part.step, upto, part.step_time,
         Ns(double(part.step_time) * double(run_.step_time) / double(run_.step_time_at(width_)))});
    training += (upto - part.step) * part.step_time;
  }
  // The pause behind the last step counts where all of it passed.
  const Ns pause = clock.pauses().all(steps - 1, steps);
  const int64_t paused = at >= clock.end_of(steps) + pause ? steps : steps - 1;
  spend(Cause::training, accounted_ + training);
  spend(Cause::saving, accounted_ + clock.pauses().saving(clock.first(), paused));
  spend(Cause::evaluation, accounted_ + clock.pauses().evaluating(clock.first(), paused));
  ENSURE(accounted_ <= at, "{} is after {}", accounted_, at);
  steps_ = steps;
}

/// The states that are safe at that time.
void Simulation::keep(const Attempt& attempt, Ns at, int64_t steps) {
  const AttemptClock& clock = attempt.clock;
  const SaveSteps& every = result_.saves;
  if (run_.memory.is_made)
    if (const int64_t step = clock.saved_at(at, every.memory, run_.memory.safe); step > 0)
      kept_.copied({step, epoch_}, false);
  if (run_.partner.is_made)
    if (const int64_t step = clock.saved_at(at, every.partner, run_.partner.safe); step > 0)
      kept_.copied({step, epoch_}, true);
  if (every.directory > 0) {
    int64_t newest = steps / every.directory * every.directory;
    while (newest > clock.first() && clock.end_of(newest) + safe_of_directory(clock.end_of(newest)) > at)
      newest -= every.directory;
    std::set<int64_t> saved;  // those that can be kept
    for (int i = 0; i < run_.keep_last; ++i) saved.insert(newest - i * every.directory);
    if (run_.keep_every > 0)
      for (int64_t step = newest / run_.keep_every * run_.keep_every; step > clock.first();
           step -= run_.keep_every)
        saved.insert(step);
    for (const int64_t step : saved)
      if (step > clock.first()) kept_.published(step);
    if (newest > clock.first()) recovery_->saved(newest);
  }
}

void Simulation::fail(Attempt& attempt, Ns at, int kind_index, const std::string& node,
                      const std::vector<int>& places, Ns repair) {
  const FailureKind& kind = fleet_.failures[size_t(kind_index)];
  const Detection& detection = detection_of(kind.effect);
  charged_ = &result_.kinds[size_t(kind_index)];
  ++charged_->interruptions;
  attempt.over = has_failed_ = true;
  const int64_t steps = attempt.clock.steps_at(at);
  account(attempt, at, steps);
  if (steps > attempt.clock.first()) {
    recovery_->progressed(steps);
    keep(attempt, at, steps);
  }
  std::vector<std::pair<int, std::string>> lost;
  if (detection.is_lost_node)
    for (const int place : places)
      if (const std::string name = nodes_.at(place); !name.empty() && !nodes_.is_out(name)) {
        kept_.lose(place);
        nodes_.take_out(name, std::max(now_, at), std::max(at + repair, at + 1));
        lost.emplace_back(place, name);
      }
  idle(Cause::detecting, at + detection.evidence);
  for (const auto& [place, name] : lost)
    if (nodes_.is_out(name)) recovery_->node_lost(name, kind.what, now_s());
  if (!detection.is_lost_node && repair > 0 && !nodes_.is_out(node))
    nodes_.faulty.try_emplace(node, FleetNodes::Fault{kind_index, repair});
  idle(Cause::recovering, now_ + detection.collecting + ns_of(fleet_.ending_s));
  recovery_->attempt_ended({.how = AttemptEnd::failed,
                            .code = detection.code,
                            .cause = kind.what,
                            .rank = places.empty() ? -1 : places.front() * run_.slots,
                            .node = node},
                           now_s());
  put_out();
  idle(Cause::recovering, now_ + ns_of(fleet_.deciding_s));
}

/// Nodes that Recovery has put out are repaired. A sound one, on which failures met, cools down.
void Simulation::put_out() {
  for (const PoolNode& node : recovery_->pool()) {
    if (!node.put_out || nodes_.is_out(node.name)) continue;
    const auto fault = nodes_.faulty.find(node.name);
    const Ns repair =
        fault == nodes_.faulty.end() ? ns_of(QuarantineRules().cool_down_s) : fault->second.repair;
    nodes_.take_out(node.name, now_, now_ + std::max<Ns>(repair, 1));
  }
}

/// The attempt saves after its step and ends, and the next one goes on from there.
void Simulation::regroup(Attempt& attempt) {
  attempt.over = true;
  const int64_t steps = attempt.clock.steps_at(now_) + 1;
  const Ns end = attempt.clock.end_of(steps);
  account(attempt, std::min(end, options_.end), end <= options_.end ? steps : steps - 1);
  spend(Cause::training, std::min(end, options_.end));
  idle(Cause::saving, now_ + run_.directory.safe);
  if (now_ >= options_.end) return;
  recovery_->progressed(steps);
  kept_.published(steps);
  recovery_->saved(steps);
  idle(Cause::recovering, now_ + ns_of(fleet_.ending_s));
  recovery_->attempt_ended({.how = AttemptEnd::regrouped}, now_s());
  idle(Cause::recovering, now_ + ns_of(fleet_.deciding_s));
}

}  // namespace trainctl::simulate
