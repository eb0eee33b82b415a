#include "runtime/supervise/attempt/attempt_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {
namespace {

constexpr double kAliveIntervalS = 0.9;
/// A file system that has not answered for so long is reported: a busy one answers within a few seconds.
constexpr double kSilenceS = 15;

Control::HandedIn part_of(protocol::Shard&& shard) {
  Control::HandedIn part{.number = shard.number,
                         .state = {},
                         .tensors = std::move(shard.tensors),
                         .receipt = std::move(shard.receipt),
                         .failure = std::move(shard.failure),
                         .took_s = shard.took_s,
                         .cpu_s = shard.cpu_s};
  if (shard.state) part.state = std::move(*shard.state);
  part.state.epoch = shard.epoch;
  part.state.step = shard.step;
  return part;
}

}  // namespace

AttemptSaves::AttemptSaves(SavePublishing& publisher, Clock& clock, Effects& effects, int ranks, bool attach)
    : publisher_(publisher), clock_(clock), effects_(effects), attach_(attach), collector_(ranks) {}

void AttemptSaves::hello(int rank) {
  for (const auto& [number, answer] : answers_.newest())
    if (!unsent_.contains(number)) effects_.send_rank(rank, answer);
}

bool AttemptSaves::is_complete(int64_t number) const {
  if (publisher_.is_busy() && number == publishing_) return true;
  return std::any_of(complete_.begin(), complete_.end(),
                     [&](const CollectedSave& save) { return save.number == number; });
}

void AttemptSaves::answered_before(const protocol::Down& answer) {
  if (!attach_ || answers_.find(answer.number) || is_complete(answer.number)) return;
  answers_.add(answer);
  if (const auto save = collector_.take(answer.number))
    answer_as_before(answer, save->state.step);
  else if (answers_.find(answer.number))
    unsent_.insert(answer.number);
  std::erase_if(unsent_, [&](int64_t number) { return answers_.has_forgotten(number); });
}

/// What some ranks have heard is the answer for all, whatever is on the disk now.
void AttemptSaves::answer_as_before(const protocol::Down& before, int64_t step) {
  if (before.ok) {
    effects_.save_ended_before({.ok = true, .step = step, .message = before.message});
    effects_.save_published(step);
  }
  send_answer(before);
}

void AttemptSaves::hand_in(int rank, protocol::Shard&& shard) {
  if (const protocol::Down* const known = answers_.find(shard.number))
    return unsent_.erase(shard.number) ? answer_as_before(*known, shard.step)
                                       : effects_.send_rank(rank, *known);
  if (is_complete(shard.number)) return;
  if (answers_.has_forgotten(shard.number) && !collector_.has(shard.number))
    return effects_.send_rank(rank, {.kind = protocol::Down::saved,
                                     .ok = false,
                                     .number = shard.number,
                                     .message = "this save was given up long ago"});
  const auto began = began_s_.try_emplace(shard.number, clock_.monotonic_s()).first;
  began->second = std::min(began->second, clock_.monotonic_s() - shard.took_s);
  if (auto save = collector_.add(rank, part_of(std::move(shard)))) complete(std::move(*save));
  publish_next();
  give_up_oldest();
}

void AttemptSaves::complete(CollectedSave&& save) {
  // The supervisor before may have published it, and no rank has heard of it.
  const auto before = attach_ ? publisher_.published(save.state.step, save.state.epoch) : std::nullopt;
  if (!before) return complete_.push_back(std::move(save));
  effects_.save_ended_before(*before);
  answer(save.number, *before);
}

/// A disk that publishes nothing for a long time must not fill the memory of the supervisor.
void AttemptSaves::give_up_oldest() {
  if (collector_.size() + complete_.size() + publisher_.is_busy() <= protocol::kMostUnpublishedSaves) return;
  const auto waiting = complete_.begin();
  CollectedSave save;
  if (waiting != complete_.end() && waiting->number < collector_.oldest().value_or(INT64_MAX)) {
    save = std::move(*waiting);
    complete_.erase(waiting);
  } else {
    save = std::move(*collector_.take(collector_.oldest().value()));
  }
  const std::string why =
      fmt::format("{} newer saves are not published yet", protocol::kMostUnpublishedSaves);
  effects_.save_superseded(save.state.step, why);
  // The end of the attempt removes the files of the others.
  if (given_up_.size() < protocol::kMostUnpublishedSaves)
    given_up_.push_back({.epoch = save.state.epoch, .step = save.state.step});
  answer(save.number, {.step = save.state.step, .message = why});
}

void AttemptSaves::answer(int64_t number, const SaveOutcome& outcome) {
  if (outcome.ok) effects_.save_published(outcome.step);
  ENSURE(!answers_.find(number), "save {} has an answer", number);
  const protocol::Down down{
      .kind = protocol::Down::saved, .ok = outcome.ok, .number = number, .message = outcome.message};
  answers_.add(down);
  send_answer(down);
}

void AttemptSaves::send_answer(const protocol::Down& down) {
  ENSURE(!collector_.has(down.number), "save {} is still being collected", down.number);
  began_s_.erase(down.number);
  effects_.send_ranks(down);
}

/// Publishing waits for the disk: on its own thread, or heartbeats would go unread.
void AttemptSaves::publish_next() {
  if (publisher_.is_busy() || (complete_.empty() && !removes_the_rest_)) return;
  if (complete_.empty()) {
    publishing_ = -1;
    removes_the_rest_ = false;
    publisher_.remove_all();
  } else {
    publishing_ = complete_.front().number;
    ENSURE(!answers_.find(publishing_), "save {} has an answer", publishing_);
    publisher_.publish(std::move(complete_.front()), std::exchange(given_up_, {}));
    complete_.pop_front();
  }
  ENSURE(publisher_.is_busy());
  answered_s_ = *publisher_.answered_s();
  said_silence_ = false;
}

void AttemptSaves::turn() {
  take_result();
  report_silence();
  keep_ranks_waiting();
}

void AttemptSaves::finish() {
  collector_.forget();
  has_ranks_ = false;
  removes_the_rest_ = true;
  publish_next();
}

void AttemptSaves::give_up() {
  take_result();
  removes_the_rest_ = false;
  const auto waiting = std::exchange(complete_, {});
  if (!publisher_.is_busy()) return;
  const std::string why = publisher_.quiet_text();
  ended(publisher_.give_up());
  // They waited for it. The newest is what the run would go on from.
  for (const CollectedSave& save : waiting) {
    ENSURE(!answers_.find(save.number) && began_s_.contains(save.number), "save {}", save.number);
    effects_.save_ended({.step = save.state.step, .message = why},
                        clock_.monotonic_s() - began_s_[save.number]);
  }
}

void AttemptSaves::take_result() {
  if (const auto outcome = publisher_.take()) ended(*outcome);
}

void AttemptSaves::ended(const SaveOutcome& outcome) {
  if (outcome.taken) throw RunTaken(ErrorCode::kLauncher, outcome.message);
  if (publishing_ < 0) return;
  ENSURE(began_s_.contains(publishing_), "save {} has not begun", publishing_);
  effects_.save_ended(outcome, clock_.monotonic_s() - began_s_[publishing_]);
  effects_.save_progressed();
  answer(publishing_, outcome);
  publish_next();
}

/// A slow file system that answers is progress of the run; one that does not is reported once.
void AttemptSaves::report_silence() {
  const auto answered_s = publisher_.answered_s();
  if (!answered_s) return;
  if (std::exchange(answered_s_, *answered_s) != *answered_s) effects_.save_progressed();
  if (publisher_.quiet_s() < kSilenceS || std::exchange(said_silence_, true)) return;
  effects_.save_hangs(publisher_.quiet_text());
}

/// Ranks that have written their part wait for the slowest one as long as the supervisor lives.
void AttemptSaves::keep_ranks_waiting() {
  if (!has_ranks_ || (!publisher_.is_busy() && !collector_.under_way())) return;
  if (clock_.monotonic_s() < alive_s_ + kAliveIntervalS) return;
  alive_s_ = clock_.monotonic_s();
  effects_.send_ranks({.kind = protocol::Down::alive});
}

}  // namespace trainctl
