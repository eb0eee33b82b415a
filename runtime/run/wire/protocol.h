// The messages of the control channel: one JSON object a line, in both directions, with the kind under "k".
//
// Up (rank to supervisor): hello, beat, step, event, begin (rank 0), shard, done. Down: welcome, stop, begun,
// saved, alive (about once a second while a save is under way). Pure text; sockets are in control_client.cpp (the rank's
// end) and channel.cpp (the agent's, which passes all but hello and beat on to the supervisor).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/train/control.h"

namespace trainctl::protocol {

/// A line longer than this ends the connection: trainctl sends none. A receipt of 100,000 chunks is about
/// 30 MB.
inline constexpr size_t kMaxLineBytes = 256u << 20;

struct Hello {
  std::string token, host;
  int rank = -1;
  int pid = 0;
};
struct Beat {
  Activity activity;
};
struct Event {
  std::string kind, json;
};
struct Begin {
  ckpt::StateInfo state;
  int64_t number = 0;  ///< of the save in this epoch, from 0: every rank makes the same saves
};
struct Shard {
  int64_t step = 0, number = 0;  ///< of the save
  ckpt::ShardReceipt receipt;
  std::vector<ckpt::Tensor> tensors;  ///< rank 0 only
  std::string failure;
};

/// Any message of a rank; exactly one member is set (done: none of the optionals).
struct Up {
  std::optional<Hello> hello;
  std::optional<Beat> beat;
  std::optional<StepReport> step;
  std::optional<Event> event;
  std::optional<Begin> begin;
  std::optional<Shard> shard;
  bool done = false;
};

struct Down {
  enum Kind { welcome, stop, begun, saved, alive } kind = welcome;
  StopLevel level = StopLevel::none;  ///< stop
  bool ok = true;                     ///< begun, saved
  int64_t number = 0;                 ///< begun, saved: of the save; an answer may come twice
  std::string message;                ///< begun: the reason why not; saved: root hash or reason
};

std::string encode(const Up& message);  ///< ends with a newline
std::string encode(const Down& message);
/// Throw Error(kLauncher) for a line that is not such a message.
Up decode_up(std::string_view line);
Down decode_down(std::string_view line);
/// What kind an encoded line of a rank has, without parsing all of it: the keys are sorted.
bool is_beat(std::string_view line);
bool is_begin(std::string_view line);
bool is_shard(std::string_view line);
bool is_done(std::string_view line);

/// Cuts a byte stream into lines.
class LineBuffer {
 public:
  void append(const char* data, size_t size) { buffer_.append(data, size); }
  /// The next whole line without its newline, or nothing yet. Error(kLauncher) past kMaxLineBytes.
  std::optional<std::string> next();

 private:
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;
};

}  // namespace trainctl::protocol
