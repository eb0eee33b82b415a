// A request to trace a running run, and its answer, as files in the run's directory.
//
//   trace.lock           held by the command that traces: one at a time
//   trace.request        written by the command, taken by the supervisor within about a second
//   trace/N/             of request N, made and removed by the command
//     answer.json        rewritten by the supervisor while it goes on
//     rank-R.spans       written by the ranks (runtime/spans/recording.h)
//
// A command that was killed holds no lock any more: its request is dropped, and the next command removes its
// folder. One thread per object.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/spans/clock_alignment.h"

namespace trainctl {

struct TraceRequest {
  int64_t number = 0;  ///< differs from that of other requests
  int64_t steps = 0;
  std::vector<int> ranks;  ///< that record, ascending
  static void fields(auto& f, auto& r) {
    f("number", r.number);
    f("steps", r.steps);
    f("ranks", r.ranks);
  }
};

enum class TraceState { recording, complete, failed };
template <>
struct Words<TraceState> {
  static constexpr std::string_view list[] = {"recording", "complete", "failed"};
};

struct TraceAnswer {
  int64_t number = 0;
  TraceState state = TraceState::recording;
  std::string reason;  ///< failed: why, one sentence
  uint64_t epoch = 0;
  int64_t first_step = 0, last_step = -1;  ///< complete: the recorded steps
  int handed_in = 0;                       ///< ranks whose recording is written
  uint64_t spans = 0, overwritten = 0;     ///< of all of them
  struct Node {
    std::string name;
    int first = 0, count = 0;                  ///< its ranks: first .. first + count - 1
    std::optional<ClockOffset> before, after;  ///< against the supervisor; absent: the node did not answer
    static void fields(auto& f, auto& r) {
      f("name", r.name);
      f("first", r.first);
      f("count", r.count);
      f.maybe("before", r.before);
      f.maybe("after", r.after);
    }
  };
  std::vector<Node> nodes;
  double monotonic_s = 0, unix_s = 0;  ///< the supervisor's two clocks at one moment
  static void fields(auto& f, auto& r) {
    f("number", r.number);
    f("state", r.state);
    f("reason", r.reason);
    f("epoch", r.epoch);
    f("first_step", r.first_step);
    f("last_step", r.last_step);
    f("handed_in", r.handed_in);
    f("spans", r.spans);
    f("overwritten", r.overwritten);
    f("nodes", r.nodes);
    f("monotonic_s", r.monotonic_s);
    f("unix_s", r.unix_s);
  }
};

/// In a run's folder: what `trainctl trace` reported last (runtime/observe/schemas/trace.schema.json).
inline constexpr const char* kLastTrace = "trace/last.json";

/// The folder of a request.
std::string trace_folder(const RunDirectory& run, int64_t number);

/// The command's right to trace a run; it ends with this object or its process.
class TraceLock {
 public:
  /// nullopt if another command holds it. Error(kIo). On a file system without locks every command gets it.
  static std::optional<TraceLock> try_take(const RunDirectory& run);
  /// Whether a command holds it. True where the file system has no locks.
  static bool is_held(const RunDirectory& run);
  TraceLock(TraceLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TraceLock& operator=(TraceLock&&) = delete;
  ~TraceLock();

 private:
  explicit TraceLock(int fd) : fd_(fd) {}
  int fd_;
};

/// The command's side of one request. The destructor removes the request and its folder.
class TraceInquiry {
 public:
  /// Removes what killed commands left behind, makes the folder and writes the request. The caller holds the
  /// lock. Error(kIo).
  TraceInquiry(FileSystem& fs, const RunDirectory& run, const TraceRequest& request);
  ~TraceInquiry();
  TraceInquiry(const TraceInquiry&) = delete;
  TraceInquiry& operator=(const TraceInquiry&) = delete;
  const std::string& folder() const { return folder_; }
  /// nullopt: the supervisor has not taken the request yet.
  std::optional<TraceAnswer> answer() const;

 private:
  FileSystem& fs_;
  const RunDirectory run_;
  const std::string folder_;
};

/// The supervisor's side.
class TraceRequests {
 public:
  static constexpr double kLookEveryS = 0.5;
  TraceRequests(FileSystem& fs, Clock& clock, const RunDirectory& run) : fs_(fs), clock_(clock), run_(run) {}
  /// Takes the request that has come, if its command still waits. Looks at most twice a second, and again
  /// 10 s after a failure. Error(kIo): the folder cannot be read, or the request is damaged; that is removed.
  std::optional<TraceRequest> take();
  /// False: the command has given up.
  bool answer(const TraceAnswer& answer);

 private:
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  double next_look_s_ = -1e9;
};

}  // namespace trainctl
