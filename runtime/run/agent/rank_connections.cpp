#include "runtime/run/agent/rank_connections.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/machine/process.h"

namespace trainctl {

using wire::Kind;

namespace {

/// So long the times of some ranks of a step wait for those of the others.
constexpr double kTimesWaitS = 0.1;
/// So long before the end of a rank is seen, mpirun may have let stopped ones go on to end them.
constexpr double kEndS = 0.2;

/// Whether a rank that was stopped at a time did something before the first end of a rank was seen.
bool has_gone_on(const FlightLog& log, double stopped_unix_s, double end_unix_s) {
  return std::any_of(log.entries.begin(), log.entries.end(), [&](const FlightEntry& entry) {
    const double at = double(entry.unix_ns) * 1e-9;
    return at > stopped_unix_s && at < end_unix_s - kEndS;
  });
}

}  // namespace

RankConnections::RankConnections(const Options& options, Clock& clock, MachineEvents events)
    : clock_(clock),
      events_(std::move(events)),
      board_path_(board_path_of(options.folder)),
      world_size_(options.world_size),
      board_(ActivityBoard::create(board_path_, options.world_size)),
      server_("unix:" + options.folder + "/ranks", options.token, options.world_size, handler()) {}

ControlServer::Handler RankConnections::handler() {
  return {.hello =
              [this](const protocol::Hello& hello) {
                ranks_[hello.rank] = {.pid = hello.pid, .heard_s = clock_.monotonic_s(), .connected = true};
                events_({.kind = Kind::rank,
                         .rank = hello.rank,
                         .payload = protocol::encode(protocol::Up{.hello = hello})});
              },
          .beat = [this](int rank) { ranks_[rank].heard_s = clock_.monotonic_s(); },
          .line =
              [this](int rank, std::string&& line) {
                ranks_[rank].heard_s = clock_.monotonic_s();
                take_line(rank, std::move(line));
              },
          .lost = [this](int rank, const std::string& why) { lost(rank, why); }};
}

void RankConnections::take_line(int rank, std::string&& line) {
  if (protocol::is_times(line)) try {
      const protocol::Times times = *protocol::decode_up(line).times;
      if (times_.empty()) times_since_s_ = clock_.monotonic_s();
      times_.push_back({.step = times.step, .rank = rank, .times = times.times});
      return;
    } catch (const Error&) {
      // The supervisor records what is wrong with it.
    }
  // A rank's last line comes after its times.
  if (protocol::is_done(line)) ranks_[rank].done = true, send_times();
  events_({.kind = Kind::rank, .rank = rank, .payload = std::move(line)});
}

void RankConnections::serve() {
  server_.serve();
  if (times_.empty()) return;
  const auto connected =
      std::count_if(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.second.connected; });
  if (int64_t(times_.size()) >= connected || clock_.monotonic_s() - times_since_s_ >= kTimesWaitS)
    send_times();
}

void RankConnections::send_times() {
  if (times_.empty()) return;
  events_({.kind = Kind::times, .payload = wire::pack(times_)});
  times_.clear();
}

void RankConnections::lost(int rank, const std::string& why) {
  send_times();
  Rank& gone = ranks_[rank];
  gone.connected = false;
  if (!gone.done && !is_killing_) {
    gone.lost_unix_s = clock_.unix_s();
    first_end_unix_s_ = first_end_unix_s_.value_or(*gone.lost_unix_s);
  }
  // What it did last belongs to its loss. What all do now comes after it: mpirun lets stopped ranks go on to
  // end them, and before the loss that would count as "never stopped".
  events_({.kind = Kind::beat, .payload = wire::pack({digest_of(rank, ranks_[rank])})});
  events_({.kind = Kind::rank_lost, .rank = rank, .text = why});
  events_({.kind = Kind::beat, .payload = wire::pack(digests())});
}

void RankConnections::send(int rank, const std::string& line) {
  if (rank < 0)
    server_.send_all(line);
  else
    server_.send_to(rank, line);
}

wire::RankDigest RankConnections::digest_of(int number, const Rank& rank) const {
  wire::RankDigest digest{
      .rank = number, .pid = rank.pid, .silent_s = float(clock_.monotonic_s() - rank.heard_s)};
  digest.connected = rank.connected;
  // In this order: what a stopped rank does cannot change any more.
  digest.stopped = rank.connected && process_stopped(rank.pid);
  if (digest.stopped) rank.stopped_unix_s = clock_.unix_s();
  if (const auto activity = board_ ? board_->read(number) : std::nullopt) {
    digest.has_activity = 1;
    digest.activity = *activity;
  }
  return digest;
}

void RankConnections::before_kill() {
  if (std::exchange(is_killing_, true)) return;
  for (const auto& [number, rank] : ranks_) {
    has_failed_ = has_failed_ || !rank.done;
    digest_of(number, rank);
  }
  first_end_unix_s_ = first_end_unix_s_.value_or(clock_.unix_s());
}

std::vector<FlightLog> RankConnections::flights(uint64_t epoch, const std::string& host) const {
  std::vector<FlightLog> logs;
  for (const auto& [number, rank] : ranks_) {
    auto log = FlightRing::read(FlightRing::path_of(board_path_, number));
    if (!log) continue;
    log->epoch = epoch;
    log->ranks = world_size_;
    log->host = host;
    log->stopped = rank.stopped_unix_s > 0 && !rank.done &&
                   !has_gone_on(*log, rank.stopped_unix_s, first_end_unix_s_.value_or(INFINITY));
    log->lost_unix_s = rank.lost_unix_s;
    logs.push_back(std::move(*log));
  }
  return logs;
}

std::vector<wire::RankDigest> RankConnections::digests() const {
  std::vector<wire::RankDigest> all;
  for (const auto& [number, rank] : ranks_) all.push_back(digest_of(number, rank));
  return all;
}

}  // namespace trainctl
