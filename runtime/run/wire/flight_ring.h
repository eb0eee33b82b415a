// FlightRing holds the last things that a rank did, with their times: each instruction that it began, and
// each wait of an exchange that blocked. It lies in the memory of the node, in a file of its own next to the
// ActivityBoard, so that it can be read after the rank was killed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/activity.h"

namespace trainctl {

struct FlightEntry {
  int64_t unix_ns = 0;       ///< when it began
  uint64_t instruction = 0;  ///< instructions that the rank had begun by then, this one included
  uint32_t index = 0;        ///< of the instruction within its step
  bool goes_on = false;      ///< the instruction goes on after a wait
  Activity activity;
};

/// What is known of a rank.
struct FlightLog {
  int rank = 0, pid = 0;
  uint64_t epoch = 0;
  int ranks = 0;  ///< of the attempt; 0: not known
  std::string host;
  /// Before its node ended the ranks: it was stopped (SIGSTOP or a debugger); its process had ended, which is
  /// then when this was seen.
  bool stopped = false;
  std::optional<double> lost_unix_s;
  uint64_t written = 0;              ///< entries so far; the ring holds the last ones
  std::vector<FlightEntry> entries;  ///< oldest first
};

/// One writer, any number of readers in any process, no locks. If the writer is killed during a write, that
/// entry is lost.
class FlightRing {
 public:
  static constexpr uint32_t kEntries = 128;
  /// The file of a rank near the board's.
  static std::string path_of(const std::string& board_path, int rank);
  /// Makes the file; used by the rank. Null if it cannot be made: then nothing is recorded.
  static std::unique_ptr<FlightRing> create(const std::string& path, int rank);
  /// What the file holds; nullopt if it does not exist or is no ring.
  static std::optional<FlightLog> read(const std::string& path);
  ~FlightRing();
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  /// The rank does this from now on. Mere progress within an instruction is no entry; a wait that goes on
  /// is one entry with its newest peers. No system call.
  void note(const Activity& activity);
  void note(const Activity& activity, int64_t unix_ns);
  /// For measurements and plans: bytes of a ring.
  static size_t bytes();

 private:
  struct Memory;
  explicit FlightRing(Memory* memory) : memory_(memory) {}
  void put(const FlightEntry& entry, uint64_t number);
  Memory* memory_;
  uint64_t written_ = 0;
  FlightEntry last_;
};

/// The file of the ActivityBoard in the folder of an epoch in shared memory.
std::string board_path_of(const std::string& shared_memory_folder);

/// One line of JSON, with at most the newest `most` entries.
std::string flight_line(const FlightLog& log, size_t most);
/// nullopt if the text is not such a line.
std::optional<FlightLog> flight_log_of(const std::string& line);

/// Of the rings that a node leaves of an attempt that failed: entries of a rank, and about the bytes of all.
inline constexpr size_t kMostFlightEntries = 64;
inline constexpr size_t kMostFlightBytes = size_t(16) << 20;
/// The text of such a file: a line for each rank.
std::string flight_text(const std::vector<FlightLog>& logs);
/// In the folder `failures` of the run; "node-0007.rings" of the node whose first rank is 7.
std::string flight_file_name(int first_rank);
inline constexpr const char* kFlightSuffix = ".rings";

}  // namespace trainctl
