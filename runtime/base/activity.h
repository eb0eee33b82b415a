// An Activity is what one rank does at this moment: it computes or waits, in which phase of the run, and for
// which ranks.
//
// An Activity has a fixed size and no pointers. So it can lie in shared memory, another process can read it
// after the rank was killed, and a signal handler can write it as JSON. Only render() turns it into English;
// decisions use the fields.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl {

/// The phases of a run in order. The phases from reading_data to reporting belong to a training step.
enum class RunPhase : uint8_t {
  starting, joining, opening_data, building, loading, meeting,
  reading_data, receiving_activation, forward, sending_activation, receiving_gradient, backward, weight_gradient,
  sending_gradient, reducing_gradients, exchanging_scalars, optimizer,
  reporting, evaluating, saving, leaving,
};
/// The name in records and JSON: "opening_data".
const char* name_of(RunPhase phase);
std::optional<RunPhase> run_phase_of(std::string_view name);
/// Whether the phase belongs to a training step.
constexpr bool is_step_phase(RunPhase phase) {
  return phase >= RunPhase::reading_data && phase <= RunPhase::reporting;
}

/// Text of at most N - 2 bytes; the object has N bytes. Longer text is cut between two UTF-8 characters.
template <size_t N>
class FixedText {
 public:
  FixedText() = default;
  template <typename Text>
    requires std::is_convertible_v<const Text&, std::string_view>
  FixedText(const Text& source) {
    const std::string_view text = source;
    size_ = uint16_t(std::min(text.size(), sizeof bytes_));
    while (size_ < text.size() && size_ > 0 && (uint8_t(text[size_]) & 0xC0) == 0x80) --size_;
    std::memcpy(bytes_, text.data(), size_);
  }
  std::string_view view() const { return {bytes_, std::min<size_t>(size_, sizeof bytes_)}; }
  bool empty() const { return size_ == 0; }

 private:
  uint16_t size_ = 0;
  char bytes_[N - sizeof(uint16_t)] = {};
};

struct Activity {
  enum Kind : uint8_t { computing, waiting } kind = computing;   ///< waiting: for peers or for the supervisor
  RunPhase phase = RunPhase::starting;
  int64_t step = -1;                              ///< from 1; -1: outside a step
  int32_t micro_batch = -1, virtual_stage = -1;   ///< -1: does not apply
  uint64_t done = 0, total = 0;                   ///< progress within the phase; total 0: unknown
  bool in_bytes = false;                          ///< unit of done and total: bytes, else items
  FixedText<104> detail;                          ///< e.g. the folder that is being loaded

  // Used only while kind is waiting.
  static constexpr int kMostPeers = 8;
  int32_t peers[kMostPeers] = {};      ///< world ranks that this rank waits for
  int32_t peer_count = 0;              ///< used entries of `peers`; 0: unknown, or the rank waits for no rank
  bool more_peers = false;             ///< the rank waits for more ranks than `peers` can hold
  FixedText<96> communicator;          ///< "dp group of stage 1, tp 0"
  FixedText<80> operation;             ///< "all-reduce"

  bool is_waiting() const { return kind == waiting; }
  bool waits_for(int rank) const;
  /// Adds a world rank to `peers`, once. Sets more_peers when `peers` is full.
  void add_peer(int world_rank);
};

/// "step 12: forward of micro-batch 3, virtual stage 1, waiting for rank 4 (tp group of stage 0, dp 0:
/// all-reduce)".
std::string render(const Activity& activity);

/// The activity of a rank from its host thread and its device. If only the device waits, the result is the
/// host's activity with the device's wait; otherwise it is `host`.
Activity with_device(const Activity& host, const std::optional<Activity>& device);

/// The ranks of `computing` that at least one other rank waits for; all of `computing` if no rank waits for
/// any of them.
///   all   the activity of each world rank; null where it is unknown
std::vector<int> awaited_of(const std::vector<int>& computing, const std::vector<const Activity*>& all);

/// Writes the activity as a JSON object without a final NUL and returns its length. kActivityJsonBytes always
/// suffice. Async-signal-safe.
constexpr size_t kActivityJsonBytes = 1536;
size_t write_json(const Activity& activity, char* out);
std::string to_json(const Activity& activity);
/// nullopt if `text` is not such an object.
std::optional<Activity> activity_from_json(const std::string& text);

/// For fields of records (runtime/base/record.h). nullopt is written as null; a value that is not an activity
/// is read as nullopt.
template <>
struct JsonForm<std::optional<Activity>> {
  static Json to(const std::optional<Activity>& activity);
  static void read(const Json& json, std::optional<Activity>& activity);
};

/// Holds one activity. One thread writes; any number of threads and processes read, without locks. If the
/// writer is killed during a write, readers get the activity before it. A slot of zero bytes is empty, so new
/// shared memory is valid.
class ActivitySlot {
 public:
  void write(const Activity& activity);
  /// nullopt if no activity was written.
  std::optional<Activity> read() const;

 private:
  static constexpr size_t kWords = (sizeof(Activity) + 7) / 8;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> copies_[2][kWords] = {};   // the newest is copies_[written_ % 2]
};

}  // namespace trainctl
