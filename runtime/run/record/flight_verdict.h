// FlightVerdict: what the flight rings of all ranks say together: which rank is missing in which exchange,
// how many wait for it and since when, and which ranks are behind others of their stage. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/words.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/run/wire/flight_ring.h"

namespace trainctl {

struct FlightVerdict {
  enum class Why {
    stopped,    ///< by SIGSTOP or a debugger
    ended,      ///< its process is gone
    no_ring,    ///< nothing is known of it
    computing,  ///< it computes, and others wait for it
    waiting,    ///< all wait for each other; it is the furthest behind
  };
  /// A rank without which others cannot go on.
  struct Missing {
    int rank = 0, pid = 0;
    std::string host;
    Why why = Why::computing;
    std::string operation, communicator;  ///< in which the first one waits for it; "": none does
    int waiting = 0;                      ///< ranks that wait for it, or for one that does
    int first = -1;                       ///< the one that has waited for longest
    double since_unix_s = 0;              ///< when that began
    std::string last;                     ///< what it did last, and when that began
    double last_unix_s = 0;
    int64_t behind = 0;  ///< instructions behind the first of its stage
  };
  struct Behind {
    int rank = 0;
    int64_t instructions = 0;
  };
  std::vector<Missing> missing;  ///< the first is the cause
  std::vector<Behind> behind;    ///< the furthest first
  std::vector<int> without;      ///< ranks without a ring
  int ranks = 0, waiting = 0;
  static constexpr size_t kMost = 8;  ///< of each list

  std::string summary() const;  ///< one sentence
  OrderedJson to_json() const;  ///< as runtime/observe/schemas/diagnose.schema.json has it under `merged`
};
template <>
struct Words<FlightVerdict::Why> {
  static constexpr std::string_view list[] = {"stopped", "ended", "no_ring", "computing", "waiting"};
};

/// A rank that waited for longer than this and ended then has given its peer up: the peer is the cause.
inline constexpr double kGaveUpS = 2;

/// `ranks`: of the attempt; `stages`: of its pipeline, each of as many consecutive ranks.
FlightVerdict merge_flights(std::span<const FlightLog> logs, int ranks, int stages);

/// The rings of an attempt in a folder of a failure; unreadable ones are left out.
std::vector<FlightLog> read_flights(FileSystem& fs, const std::string& folder, uint64_t epoch);
/// The same, merged; writes merged.json into the folder. nullopt: there are no rings. Error(kIo).
std::optional<FlightVerdict> merge_failure(FileSystem& fs, const std::string& folder, uint64_t epoch,
                                           int stages);

/// The rings that are merged for `diagnose --merge`, and where they are from.
struct FoundFlights {
  std::string from;  ///< "the nodes' memory", or the folder of a failure; "": there are none
  uint64_t epoch = 0;
  int ranks = 0;  ///< of that attempt, whose width may be another one than the job's
  std::vector<FlightLog> logs;
};
/// Those of the ranks on this machine, if the run has any that live; else of the newest failure that has
/// some. Error(kIo).
FoundFlights find_flights(FileSystem& fs, const RunDirectory& run, const RunStatus& status);

}  // namespace trainctl
