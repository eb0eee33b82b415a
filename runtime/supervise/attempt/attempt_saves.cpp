#include "runtime/supervise/attempt/attempt_saves.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace trainctl {
namespace {

/// After an attach: until everything that waited for a supervisor has come.
constexpr double kBacklogS = 1;
constexpr double kAliveIntervalS = 0.9;

}  // namespace

AttemptSaves::AttemptSaves(FileSystem& fs, Clock& clock, RunLog& log, SaveCollector::Options options,
                           bool attach, Attempt attempt)
    : clock_(clock),
      log_(log),
      attach_(attach),
      attempt_(std::move(attempt)),
      started_s_(clock.monotonic_s()),
      collector_(fs, std::move(options)),
      published_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

AttemptSaves::~AttemptSaves() {
  if (publishing_.valid()) publishing_.wait();
  ::close(published_fd_);
}

void AttemptSaves::hello(int rank) {
  // Answers belong to saves, and a rank that connects late must not miss any.
  for (const protocol::Down& answer : begun_) attempt_.send_rank(rank, answer);
}

void AttemptSaves::begin(const protocol::Begin& begin) {
  began_s_ = clock_.monotonic_s();
  number_ = begin.number;
  // After an attach: the supervisor before may have answered, and even published.
  const bool first = attach_ && begun_.empty();
  if (const auto published = first ? collector_.published(begin.state.step) : std::nullopt)
    return adopt_published(begin, *published);
  // A second save before the first is answered cannot come from a rank that keeps the protocol.
  const Problem reason = publishing_.valid() ? Problem("the save before is still being published")
                         : first             ? collector_.adopt(begin.state)
                                             : collector_.begin(begin.state);
  if (reason.exists()) log_.saved({.step = begin.state.step, .message = reason.text()}, 0);
  begun_.push_back({.kind = protocol::Down::begun,
                    .ok = reason.is_none(),
                    .number = begin.number,
                    .message = reason.text_or_empty()});
  attempt_.send_ranks(begun_.back());
}

void AttemptSaves::adopt_published(const protocol::Begin& begin, const SaveOutcome& outcome) {
  if (outcome.ok)
    log_.saved_before(outcome);
  else
    log_.saved(outcome, 0);
  if (outcome.ok) attempt_.published(outcome.step);
  attempt_.send_ranks(
      {.kind = protocol::Down::saved, .ok = outcome.ok, .number = begin.number, .message = outcome.message});
}

void AttemptSaves::hand_in(int rank, protocol::Shard&& shard) {
  const std::vector<int> missing = publishing_.valid() ? std::vector<int>{} : collector_.missing();
  if (std::find(missing.begin(), missing.end(), rank) == missing.end() ||
      shard.step != collector_.state().step) {
    // After an attach shards of the other nodes may come before rank 0's begin: they are taken then.
    if (attach_ && begun_.empty() && clock_.monotonic_s() - started_s_ < kBacklogS)
      return early_.push_back({rank, std::move(shard)});
    return answer_late(rank, shard);
  }
  if (rank == 0) collector_.set_tensors(std::move(shard.tensors));
  if (!collector_.add(rank, std::move(shard.receipt), shard.failure)) return;
  // Publishing waits for the disk: on its own thread, or heartbeats would go unread.
  publishing_ = std::async(std::launch::async, [this] {
    SaveOutcome outcome = collector_.finish();
    ::eventfd_write(published_fd_, 1);
    return outcome;
  });
}

/// A save that is not under way: the supervisor before may have published it and answered some ranks only.
void AttemptSaves::answer_late(int rank, const protocol::Shard& shard) {
  const auto published = attach_ ? collector_.published(shard.step) : std::nullopt;
  const std::string none = fmt::format("no save of step {} is under way", shard.step);
  attempt_.send_rank(rank, {.kind = protocol::Down::saved,
                            .ok = published && published->ok,
                            .number = shard.number,
                            .message = published ? published->message : none});
}

void AttemptSaves::turn() {
  take_early();
  take_result(false);
  keep_ranks_waiting();
}

void AttemptSaves::end() {
  take_early();
  take_result(true);
  collector_.abandon();
}

void AttemptSaves::take_early() {
  if (begun_.empty() && clock_.monotonic_s() - started_s_ < kBacklogS) return;
  for (auto& [rank, shard] : std::exchange(early_, {})) hand_in(rank, std::move(shard));
}

void AttemptSaves::take_result(bool wait) {
  if (!publishing_.valid()) return;
  if (!wait && publishing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  const SaveOutcome outcome = publishing_.get();
  if (outcome.taken) throw RunTaken(ErrorCode::kLauncher, outcome.message);
  eventfd_t count;
  ::eventfd_read(published_fd_, &count);
  log_.saved(outcome, clock_.monotonic_s() - began_s_);
  attempt_.progressed();
  if (outcome.ok) attempt_.published(outcome.step);
  attempt_.send_ranks(
      {.kind = protocol::Down::saved, .ok = outcome.ok, .number = number_, .message = outcome.message});
}

/// Ranks that have written their part wait for the slowest one as long as the supervisor lives.
void AttemptSaves::keep_ranks_waiting() {
  if (!publishing_.valid() && collector_.missing().empty()) return;
  if (clock_.monotonic_s() < alive_s_ + kAliveIntervalS) return;
  alive_s_ = clock_.monotonic_s();
  attempt_.send_ranks({.kind = protocol::Down::alive});
}

}  // namespace trainctl
