// The messages of the control channel between a rank and the supervisor: one JSON object per line, "k" is its
// kind.
//
// Up (rank to supervisor): hello, beat, times, step, event, shard, trace, done. Down: welcome, stop, saved,
// alive (about once a second while a save is under way), trace. Pure text. The sockets are in
// control_client.cpp (the rank's end) and channel.cpp (the agent's end). The agent passes all messages but
// beat on to the supervisor, the times of its ranks together (wire::RankStepTimes).
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/train/control/control.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl::protocol {

/// A longer line ends the connection. trainctl sends none: a receipt of 100,000 chunks has about 30 MB.
inline constexpr size_t kMaxLineBytes = 256u << 20;

/// Saves of an attempt of which parts are handed in and that are not published. Of more, agent and supervisor
/// keep the newest: a disk that publishes none for so long must not fill their memory.
inline constexpr size_t kMostUnpublishedSaves = 8;

struct Hello {
  std::string token, host;
  int rank = -1;
  int pid = 0;
  static void fields(auto& f, auto& r) {
    f("token", r.token);
    f("rank", r.rank);
    f("pid", r.pid);
    f("host", r.host);
  }
};
struct Beat {
  Activity activity;
};
/// A rank's times of one step (Control::report_times).
struct Times {
  int64_t step = 0;
  RankTimes times;
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("times", r.times);
  }
};
struct Event {
  EventKind kind = EventKind::end;
  std::string json;
  static void fields(auto& f, auto& r) {
    f("kind", r.kind);
    f("json", r.json);
  }
};
/// A rank's part of a save (Control::HandedIn).
struct Shard {
  uint64_t epoch = 0;
  int64_t step = 0, number = 0;  ///< the save
  ckpt::ShardReceipt receipt;
  std::vector<ckpt::Tensor> tensors;     ///< rank 0 only
  std::optional<ckpt::StateInfo> state;  ///< rank 0 only
  std::string failure;                   ///< why the rank could not write its shard; "": it could
  double took_s = 0, cpu_s = 0;
  static void fields(auto& f, auto& r) {
    f("epoch", r.epoch);
    f("took_s", r.took_s);
    f.when(r.cpu_s > 0, "took_cpu_s", r.cpu_s);
    f("number", r.number);
    f("step", r.step);
    f("receipt", r.receipt);
    f("tensors", r.tensors);
    f.maybe("state", r.state);
    f("failure", r.failure);
  }
};

/// A message of a rank: exactly one of the optionals is set, or `done` is true.
struct Up {
  std::optional<Hello> hello;
  std::optional<Beat> beat;
  std::optional<Times> times;
  std::optional<StepReport> step;
  std::optional<Event> event;
  std::optional<Shard> shard;
  std::optional<TraceResult> trace;
  bool done = false;
};

struct Down {
  enum Kind { welcome, stop, saved, alive, trace } kind = welcome;
  StopLevel level = StopLevel::none;  ///< stop
  /// stop: how long the ranks have until they are ended; infinite: there is no limit
  double left_s = std::numeric_limits<double>::infinity();
  bool ok = true;                     ///< saved
  int64_t number = 0;                 ///< saved: the save; the same answer may come twice
  std::string message;                ///< saved: root hash, or reason if not ok
  TraceOrder order = {};              ///< trace
};

std::string encode(const Up& message);  ///< ends with a newline
std::string encode(const Down& message);
/// Both throw Error(kLauncher) for a line that is not such a message.
Up decode_up(std::string_view line);
Down decode_down(std::string_view line);
/// The kind of an encoded line of a rank. They do not parse the whole line, because the keys are sorted.
bool is_beat(std::string_view line);
/// The number of the save, if the line is a shard.
std::optional<int64_t> shard_number(std::string_view line);
bool is_done(std::string_view line);
bool is_times(std::string_view line);

/// Cuts a byte stream into lines.
class LineBuffer {
 public:
  void append(const char* data, size_t size) { buffer_.append(data, size); }
  /// The next complete line without its newline; nullopt if more bytes are needed. Error(kLauncher) for a
  /// line longer than kMaxLineBytes.
  std::optional<std::string> next();

 private:
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;
};

}  // namespace trainctl::protocol
