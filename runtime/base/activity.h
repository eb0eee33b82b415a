// What a rank does at this moment: whether it computes or waits, where in the run, and for whom.
//
// A value of fixed size without pointers, so that it can lie in shared memory, be read after its rank was killed, and be
// written as JSON by a signal handler. English is made of it in one place, render(); all decisions use the fields.
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

namespace trainctl {

/// The parts of a run in their order; those from reading_data to reporting belong to a training step.
enum class RunPhase : uint8_t {
  starting, joining, opening_data, building, loading, meeting,
  reading_data, receiving_activation, forward, sending_activation, receiving_gradient, backward, weight_gradient,
  sending_gradient, reducing_gradients, exchanging_scalars, optimizer,
  reporting, evaluating, saving, leaving,
};
/// "opening_data"
const char* name_of(RunPhase phase);
std::optional<RunPhase> run_phase_of(std::string_view name);
/// Whether the phase belongs to a training step.
constexpr bool is_step_phase(RunPhase phase) {
  return phase >= RunPhase::reading_data && phase <= RunPhase::reporting;
}

/// Text of at most N - 2 bytes in N; longer text is cut between two characters.
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

  // Only if it waits.
  static constexpr int kMostPeers = 8;
  int32_t peers[kMostPeers] = {};      ///< world ranks that have not come yet
  int32_t peer_count = 0;              ///< entries of `peers`; 0: unknown, or no rank is waited for
  bool more_peers = false;             ///< there are more than `peers` holds
  FixedText<96> communicator;          ///< "dp group of stage 1, tp 0"
  FixedText<80> operation;             ///< "all-reduce"

  bool is_waiting() const { return kind == waiting; }
  bool waits_for(int rank) const;
  /// One more world rank that is waited for.
  void add_peer(int world_rank);
};

/// "step 12: forward of micro-batch 3, virtual stage 1, waiting for rank 4 (tp group of stage 0, dp 0: all-reduce)".
std::string render(const Activity& activity);

/// What a rank does whose device, too, may wait: `device` tells for whom, and counts while the host itself does not wait.
Activity with_device(const Activity& host, const std::optional<Activity>& device);

/// Who holds the others up: those of `computing` (ranks) for which a rank waits, directly; all of them if there is none. `all` holds the
/// activity of each rank, null where it is unknown.
std::vector<int> awaited_of(const std::vector<int>& computing, const std::vector<const Activity*>& all);

/// Writes the activity as a JSON object without a final NUL and returns its length. kActivityJsonBytes always suffice.
/// Async-signal-safe.
constexpr size_t kActivityJsonBytes = 1536;
size_t write_json(const Activity& activity, char* out);
std::string to_json(const Activity& activity);
/// Nothing for a text that is no such object.
std::optional<Activity> activity_from_json(const std::string& text);

/// A place for an activity that one thread writes and any number of threads and processes read, without locks. A writer that
/// is killed in the middle leaves the one before. All zero is an empty slot, so it may lie in fresh shared memory.
class ActivitySlot {
 public:
  void write(const Activity& activity);
  /// Nothing if none was written.
  std::optional<Activity> read() const;

 private:
  static constexpr size_t kWords = (sizeof(Activity) + 7) / 8;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> copies_[2][kWords] = {};   // the newest is copies_[written_ % 2]
};

}  // namespace trainctl
