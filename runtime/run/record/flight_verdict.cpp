#include "runtime/run/record/flight_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/process.h"

namespace trainctl {
namespace {

constexpr double kNsOfSecond = 1e9;
/// An agent sees the ends of several processes in one turn of its loop.
constexpr double kAtOnceS = 1e-3;

/// The ranks of an attempt, as their rings show them.
class Merge {
 public:
  Merge(std::span<const FlightLog> logs, int ranks, int stages)
      : logs_(size_t(ranks), nullptr), of_stage_(std::max(1, ranks / std::max(1, stages))) {
    for (const FlightLog& log : logs)
      if (log.rank >= 0 && log.rank < ranks && !log.entries.empty()) logs_[size_t(log.rank)] = &log;
    waiters_.resize(size_t(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      if (!is_in_wait(rank)) continue;
      const Activity& wait = last(rank).activity;
      for (int i = 0; i < wait.peer_count; ++i)
        if (wait.peers[i] >= 0 && wait.peers[i] < ranks) waiters_[size_t(wait.peers[i])].push_back(rank);
    }
  }

  FlightVerdict verdict() {
    FlightVerdict v{.ranks = int(logs_.size())};
    find_behind(v);
    for (int rank = 0; rank < v.ranks; ++rank) {
      v.waiting += waits(rank);
      if (!log(rank) && v.without.size() < FlightVerdict::kMost) v.without.push_back(rank);
    }
    std::vector<int> causes = find_causes();
    if (causes.size() > FlightVerdict::kMost) causes.resize(FlightVerdict::kMost);
    for (const int rank : causes) v.missing.push_back(missing(rank));
    return v;
  }

 private:
  const FlightLog* log(int rank) const { return logs_[size_t(rank)]; }
  const FlightEntry& last(int rank) const { return log(rank)->entries.back(); }
  double last_s(int rank) const { return double(last(rank).unix_ns) / kNsOfSecond; }
  bool is_stopped(int rank) const { return log(rank) && log(rank)->stopped; }
  bool has_given_up(int rank) const {
    return last(rank).activity.is_waiting() && *log(rank)->lost_unix_s - last_s(rank) >= kGaveUpS;
  }
  bool has_ended(int rank) const { return log(rank) && log(rank)->lost_unix_s && !has_given_up(rank); }
  bool is_in_wait(int rank) const {
    return log(rank) && last(rank).activity.is_waiting() && !is_stopped(rank);
  }
  bool waits(int rank) const { return is_in_wait(rank) && !has_ended(rank); }

  /// Those that hold up others, the most certain first.
  std::vector<int> find_causes() const {
    std::vector<int> stopped, ended, silent, computing;
    for (int rank = 0; rank < int(logs_.size()); ++rank) {
      const bool is_awaited = !waiters_[size_t(rank)].empty();
      if (is_stopped(rank))
        stopped.push_back(rank);
      else if (has_ended(rank))
        ended.push_back(rank);
      else if (!log(rank) && is_awaited)
        silent.push_back(rank);
      else if (is_awaited && !waits(rank))
        computing.push_back(rank);
    }
    const auto by_start = [this](int a, int b) { return since(a) < since(b); };
    std::stable_sort(stopped.begin(), stopped.end(), by_start);
    std::stable_sort(computing.begin(), computing.end(), by_start);
    if (!ended.empty()) ended = {first_end(std::move(ended))};
    for (const std::vector<int>* causes : {&stopped, &silent, &ended, &computing})
      if (!causes->empty()) return *causes;
    return in_a_circle();
  }

  /// The others ended because of it. Ends that were seen at once have no order: then one that did not wait,
  /// and for which others did, is the first; else the one that did nothing for longest.
  int first_end(std::vector<int> ended) const {
    const auto lost_s = [this](int rank) { return *log(rank)->lost_unix_s; };
    const double first_s = lost_s(
        *std::min_element(ended.begin(), ended.end(), [&](int a, int b) { return lost_s(a) < lost_s(b); }));
    std::erase_if(ended, [&](int rank) { return lost_s(rank) > first_s + kAtOnceS; });
    return *std::min_element(ended.begin(), ended.end(), [this](int a, int b) {
      return std::tuple(!holds_up(a), last_s(a)) < std::tuple(!holds_up(b), last_s(b));
    });
  }
  bool holds_up(int rank) const { return !waiters_[size_t(rank)].empty() && !is_in_wait(rank); }

  std::vector<int> in_a_circle() const {
    std::optional<int> worst;
    for (int rank = 0; rank < int(logs_.size()); ++rank)
      if (waits(rank) && !waiters_[size_t(rank)].empty())
        if (!worst || behind(rank) > behind(*worst) ||
            (behind(rank) == behind(*worst) && last_s(rank) < last_s(*worst)))
          worst = rank;
    return worst ? std::vector<int>{*worst} : std::vector<int>{};
  }

  /// Of those that wait for the rank itself, the one that has for longest.
  std::optional<int> first_waiter(int rank) const {
    const std::vector<int>& all = waiters_[size_t(rank)];
    const auto first =
        std::min_element(all.begin(), all.end(), [this](int a, int b) { return last_s(a) < last_s(b); });
    return first == all.end() ? std::nullopt : std::optional(*first);
  }
  double since(int rank) const {
    const auto first = first_waiter(rank);
    return first ? last_s(*first) : INFINITY;
  }

  int count_waiting(int rank) const {
    std::vector<bool> seen(logs_.size(), false);
    std::vector<int> open = {rank};
    seen[size_t(rank)] = true;
    int count = 0;
    while (!open.empty()) {
      const int next = open.back();
      open.pop_back();
      for (const int waiter : waiters_[size_t(next)])
        if (!seen[size_t(waiter)]) seen[size_t(waiter)] = true, ++count, open.push_back(waiter);
    }
    return count;
  }

  FlightVerdict::Missing missing(int rank) const {
    using Why = FlightVerdict::Why;
    FlightVerdict::Missing m{.rank = rank};
    m.why = is_stopped(rank)  ? Why::stopped
            : has_ended(rank) ? Why::ended
            : !log(rank)      ? Why::no_ring
            : waits(rank)     ? Why::waiting
                              : Why::computing;
    m.waiting = count_waiting(rank);
    if (const auto first = first_waiter(rank)) {
      const Activity& wait = last(*first).activity;
      m.first = *first;
      m.since_unix_s = last_s(*first);
      m.operation = wait.operation.view();
      m.communicator = wait.communicator.view();
    }
    if (!log(rank)) return m;
    m.pid = log(rank)->pid;
    m.host = log(rank)->host;
    m.last = render(last(rank).activity);
    m.last_unix_s = last_s(rank);
    m.behind = behind(rank);
    return m;
  }

  // ---- who is behind

  struct Stage {
    int64_t step = -1, index = -1;  ///< of the rank that is furthest
    int64_t of_step = 1;            ///< instructions
  };
  int64_t behind(int rank) const {
    if (!log(rank) || stages_.empty()) return 0;
    const Stage& stage = stages_[size_t(rank / of_stage_)];
    const FlightEntry& entry = last(rank);
    if (entry.activity.step < 0 || stage.step < 0) return 0;
    return std::max<int64_t>(
        0, (stage.step - entry.activity.step) * stage.of_step + stage.index - int64_t(entry.index));
  }

  void find_behind(FlightVerdict& v) {
    stages_.resize((logs_.size() + size_t(of_stage_) - 1) / size_t(of_stage_));
    for (int rank = 0; rank < v.ranks; ++rank) {
      if (!log(rank)) continue;
      Stage& stage = stages_[size_t(rank / of_stage_)];
      for (const FlightEntry& entry : log(rank)->entries)
        if (entry.activity.step >= 0) stage.of_step = std::max(stage.of_step, int64_t(entry.index) + 1);
      const FlightEntry& entry = last(rank);
      const std::pair at{entry.activity.step, int64_t(entry.index)};
      if (at > std::pair{stage.step, stage.index}) stage.step = at.first, stage.index = at.second;
    }
    for (int rank = 0; rank < v.ranks; ++rank)
      if (const int64_t instructions = behind(rank); instructions > 0)
        v.behind.push_back({rank, instructions});
    std::stable_sort(v.behind.begin(), v.behind.end(),
                     [](const auto& a, const auto& b) { return a.instructions > b.instructions; });
    if (v.behind.size() > FlightVerdict::kMost) v.behind.resize(FlightVerdict::kMost);
  }

  std::vector<const FlightLog*> logs_;     ///< by rank; null: none
  std::vector<std::vector<int>> waiters_;  ///< of each rank, those that wait for it itself
  const int of_stage_;
  std::vector<Stage> stages_;
};

const char* words_of(FlightVerdict::Why why) {
  switch (why) {
    case FlightVerdict::Why::stopped: return "is stopped (by SIGSTOP or a debugger)";
    case FlightVerdict::Why::ended: return "has ended";
    case FlightVerdict::Why::no_ring: return "left no ring";
    case FlightVerdict::Why::computing: return "computes";
    case FlightVerdict::Why::waiting: return "waits in a circle";
  }
  return "";
}

}  // namespace

FlightVerdict merge_flights(std::span<const FlightLog> logs, int ranks, int stages) {
  return Merge(logs, ranks, stages).verdict();
}

std::string FlightVerdict::summary() const {
  if (missing.empty())
    return fmt::format("no rank is missing in an exchange: {} of {} ranks wait, {} left no ring", waiting,
                       ranks, without.size() < kMost ? fmt::format("{}", without.size()) : "many");
  const Missing& m = missing.front();
  std::string text = fmt::format("rank {}{}{} {}", m.rank, m.pid ? fmt::format(" (pid {})", m.pid) : "",
                                 m.host.empty() ? "" : " on " + m.host, words_of(m.why));
  if (!m.last.empty()) text += fmt::format(" while: {}, since {}", m.last, utc_text(m.last_unix_s));
  if (m.behind > 0) text += fmt::format(", {} behind its stage", count_of(m.behind, "instruction"));
  if (m.first >= 0)
    text += fmt::format("; it is missing in {}{}: {} of {} ranks wait, rank {} since {}", m.operation,
                        m.communicator.empty() ? "" : fmt::format(" ({})", m.communicator), m.waiting, ranks,
                        m.first, utc_text(m.since_unix_s));
  if (missing.size() > 1) {
    text += "; also missing:";
    for (size_t i = 1; i < missing.size(); ++i)
      text += fmt::format("{} {}", i > 1 ? "," : "", missing[i].rank);
  }
  return text;
}

OrderedJson FlightVerdict::to_json() const {
  OrderedJson list = OrderedJson::array(), late = OrderedJson::array();
  for (const Missing& m : missing) {
    list.push_back({{"rank", m.rank}, {"pid", m.pid}, {"host", m.host}, {"why", word_of(m.why)}});
    if (m.first >= 0) {
      list.back()["operation"] = m.operation;
      list.back()["communicator"] = m.communicator;
      list.back()["first_waiting"] = m.first;
      list.back()["since"] = m.since_unix_s;
    }
    list.back()["waiting"] = m.waiting;
    list.back()["behind"] = m.behind;
    if (!m.last.empty()) list.back()["last"] = m.last, list.back()["last_since"] = m.last_unix_s;
  }
  for (const Behind& b : behind) late.push_back({{"rank", b.rank}, {"instructions", b.instructions}});
  return {{"summary", summary()},      {"ranks", ranks},         {"waiting", waiting}, {"missing", list},
          {"behind", std::move(late)}, {"without_ring", without}};
}

std::vector<FlightLog> read_flights(FileSystem& fs, const std::string& folder, uint64_t epoch) {
  std::vector<FlightLog> logs;
  for (const std::string& name : fs.list(folder)) {
    if (!name.ends_with(kFlightSuffix)) continue;
    try {
      const std::string text = fs.read_text(folder + "/" + name);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        auto log = flight_log_of(text.substr(begin, end - begin));
        if (log && log->epoch == epoch) logs.push_back(std::move(*log));
        begin = end + 1;
      }
    } catch (const Error&) {
      // The rings of one node less.
    }
  }
  return logs;
}

std::optional<FlightVerdict> merge_failure(FileSystem& fs, const std::string& folder, uint64_t epoch,
                                           int stages) {
  const std::vector<FlightLog> logs = read_flights(fs, folder, epoch);
  if (logs.empty()) return std::nullopt;
  FlightVerdict verdict = merge_flights(logs, logs.front().ranks, stages);
  fs.replace_text(folder + "/merged.json", dump_json(verdict.to_json()) + "\n");
  return verdict;
}

namespace {

std::vector<FlightLog> living_flights(const RunDirectory& run, FileSystem& fs, const RunStatus& status) {
  std::vector<FlightLog> logs;
  if (!fs.exists(run.attempt())) return logs;
  const AttemptFile attempt = AttemptFile::from_json(fs.read_text(run.attempt()));
  for (const RankStatus& rank : status.ranks) {
    auto log = FlightRing::read(FlightRing::path_of(board_path_of(attempt.shared_memory_folder), rank.rank));
    if (!log || log->rank != rank.rank) continue;
    log->epoch = attempt.epoch;
    log->ranks = int(status.ranks.size());
    log->host = rank.host;
    log->stopped = rank.stopped || process_stopped(log->pid);
    if (rank.phase == RankPhase::lost) log->lost_unix_s = rank.heard_unix_s;
    logs.push_back(std::move(*log));
  }
  return logs;
}

}  // namespace

FoundFlights find_flights(FileSystem& fs, const RunDirectory& run, const RunStatus& status) {
  if (!status.ended())
    if (auto logs = living_flights(run, fs, status); !logs.empty())
      return {"the memory of this machine", logs.front().epoch, logs.front().ranks, std::move(logs)};
  const std::string failures = run.file("failures");
  int newest = 0;
  for (const std::string& name : fs.is_directory(failures) ? fs.list(failures) : std::vector<std::string>{})
    if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 9)
      newest = std::max(newest, std::stoi(name));
  for (int n = newest; n > 0; --n) {
    const std::string folder = fmt::format("{}/{}", failures, n);
    if (!fs.exists(folder + "/verdict.json")) continue;
    const Json verdict = try_parse_json(fs.read_text(folder + "/verdict.json"));
    if (!verdict.is_object()) continue;
    const uint64_t epoch = verdict.value("epoch", uint64_t(0));
    if (auto logs = read_flights(fs, folder, epoch); !logs.empty())
      return {folder, epoch, logs.front().ranks, std::move(logs)};
  }
  return {};
}

}  // namespace trainctl
