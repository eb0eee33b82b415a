#include "runtime/supervise/attempt/attempt_saves.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace trainctl {
namespace {

constexpr double kAliveIntervalS = 0.9;
/// A rank that connects again can have missed no more: it waits for the last one only.
constexpr size_t kMostAnswers = 16;

Control::HandedIn part_of(protocol::Shard&& shard) {
  Control::HandedIn part{.number = shard.number,
                         .state = {},
                         .tensors = std::move(shard.tensors),
                         .receipt = std::move(shard.receipt),
                         .failure = std::move(shard.failure),
                         .took_s = shard.took_s};
  if (shard.state) part.state = std::move(*shard.state);
  part.state.epoch = shard.epoch;
  part.state.step = shard.step;
  return part;
}

}  // namespace

AttemptSaves::AttemptSaves(FileSystem& fs, Clock& clock, RunLog& log, SaveCollector::Options options,
                           bool attach, Attempt attempt)
    : clock_(clock),
      log_(log),
      attach_(attach),
      attempt_(std::move(attempt)),
      collector_(fs, std::move(options)),
      published_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

AttemptSaves::~AttemptSaves() {
  if (publishing_.valid()) publishing_.wait();
  ::close(published_fd_);
}

void AttemptSaves::hello(int rank) {
  for (const auto& [number, answer] : answers_) attempt_.send_rank(rank, answer);
}

void AttemptSaves::hand_in(int rank, protocol::Shard&& shard) {
  if (const auto known = answers_.find(shard.number); known != answers_.end())
    return attempt_.send_rank(rank, known->second);
  if (complete_.end() != std::find_if(complete_.begin(), complete_.end(),
                                      [&](const CollectedSave& save) { return save.number == shard.number; }))
    return;
  const auto [began, is_first] = began_s_.try_emplace(shard.number, clock_.monotonic_s());
  began->second = std::min(began->second, clock_.monotonic_s() - shard.took_s);
  // The supervisor before may have published it and answered some ranks only.
  if (const auto before =
          attach_ && is_first ? collector_.published(shard.step, shard.epoch) : std::nullopt) {
    if (before->ok)
      log_.saved_before(*before);
    else
      log_.saved(*before, 0);
    return answer(shard.number, *before);
  }
  auto save = collector_.add(rank, part_of(std::move(shard)));
  if (!save) return;
  complete_.push_back(std::move(*save));
  publish_next();
}

void AttemptSaves::answer(int64_t number, const SaveOutcome& outcome) {
  if (outcome.ok) attempt_.published(outcome.step);
  const protocol::Down down{
      .kind = protocol::Down::saved, .ok = outcome.ok, .number = number, .message = outcome.message};
  began_s_.erase(number);
  answers_[number] = down;
  while (answers_.size() > kMostAnswers) answers_.erase(answers_.begin());
  attempt_.send_ranks(down);
}

/// Publishing waits for the disk: on its own thread, or heartbeats would go unread.
void AttemptSaves::publish_next() {
  if (publishing_.valid() || complete_.empty()) return;
  publishing_ = std::async(std::launch::async, [this, &save = complete_.front()] {
    SaveOutcome outcome = collector_.publish(save);
    ::eventfd_write(published_fd_, 1);
    return outcome;
  });
}

void AttemptSaves::turn() {
  take_result(false);
  keep_ranks_waiting();
}

void AttemptSaves::end() {
  while (publishing_.valid()) take_result(true);
  collector_.abandon();
}

void AttemptSaves::take_result(bool wait) {
  if (!publishing_.valid()) return;
  if (!wait && publishing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  const SaveOutcome outcome = publishing_.get();
  const int64_t number = complete_.front().number;
  complete_.pop_front();
  if (outcome.taken) throw RunTaken(ErrorCode::kLauncher, outcome.message);
  eventfd_t count;
  ::eventfd_read(published_fd_, &count);
  log_.saved(outcome, clock_.monotonic_s() - began_s_[number]);
  attempt_.progressed();
  answer(number, outcome);
  publish_next();
}

/// Ranks that have written their part wait for the slowest one as long as the supervisor lives.
void AttemptSaves::keep_ranks_waiting() {
  if (!publishing_.valid() && !collector_.under_way()) return;
  if (clock_.monotonic_s() < alive_s_ + kAliveIntervalS) return;
  alive_s_ = clock_.monotonic_s();
  attempt_.send_ranks({.kind = protocol::Down::alive});
}

}  // namespace trainctl
