// Quarantine: nodes and GPUs that a run must not use, with the evidence against them, on a list that outlives
// the job.
//
//   clear --failures within a window, a failed probe, slow--> out --cool-down over, or lifted--> clear
//                                                              (each time out doubles the next cool-down)
//
// Decisions are pure (QuarantineList); reading and writing the file is QuarantineFile. Times are unix
// seconds. Several runs on several machines may share one file: a writer holds its lock and changes what is
// there, so no entry is lost.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl {

struct QuarantineRules {
  int failures = 3;  ///< of a place within the window put it out; 0: failures never do
  double window_s = 3600;
  double cool_down_s = 86400;  ///< of the first time out; doubles each time, at most 16 times as long
};

/// Whether `times` (of failures, ascending) hold enough within the window that ends now.
bool enough_failures(std::span<const double> times, double now_s, const QuarantineRules& rules);

/// What speaks against a node or one of its GPUs.
struct NodeEvidence {
  enum Kind { failure, failed_probe, slow } kind = failure;
  std::string run;
  uint64_t epoch = 0;
  std::string cause;  ///< one sentence
  double unix_s = 0;
};

struct QuarantineEntry {
  std::string node;
  int gpu = -1;                        ///< -1: the node as a whole
  std::vector<NodeEvidence> evidence;  ///< oldest first, the newest 16
  int count = 0;                       ///< pieces of evidence ever
  int times_out = 0;
  double out_since_s = 0, out_until_s = 0;  ///< of the last time out; 0, 0: never out
  double lifted_s = 0;                      ///< when a person lifted it last, 0: never
  std::string lifted_by;
  bool is_out(double now_s) const { return now_s < out_until_s; }
  /// "node3", or "node3:gpu2": what --lift takes.
  std::string place() const;
};

class QuarantineList {
 public:
  /// Adds evidence. True if this puts the place out; a place that is out stays out, and its evidence grows.
  bool add(const std::string& node, int gpu, const NodeEvidence& evidence, const QuarantineRules& rules,
           double now_s);
  /// Clears a node with all its GPUs ("node3"), or one GPU ("node3:gpu2"): earlier evidence no longer counts.
  /// False: not out.
  bool lift(const std::string& place, const std::string& by, double now_s);
  /// Nodes that must not be used now, sorted; a node whose GPU is out is one of them.
  std::vector<std::string> nodes_out(double now_s) const;
  /// Whether the node is out by failures of that run alone.
  bool only_by(const std::string& node, const std::string& run, double now_s) const;
  const std::vector<QuarantineEntry>& entries() const { return entries_; }

  std::string to_json() const;
  /// Error(kUsage) with one sentence where `text` is no such list.
  static QuarantineList from_json(const std::string& text);
  /// A table for people, a line an entry; "" if there is none.
  std::string describe(double now_s) const;

 private:
  QuarantineEntry& entry_of(const std::string& node, int gpu);
  std::vector<QuarantineEntry> entries_;
};

/// The list as a file. Not thread-safe. A missing file is an empty list.
class QuarantineFile {
 public:
  QuarantineFile(FileSystem& fs, Clock& clock, std::string path);
  const std::string& path() const { return path_; }
  /// Error(kUsage) where the file is no list, Error(kIo) where it cannot be read.
  QuarantineList read() const;
  /// Changes the list under the lock PATH.lock and replaces the file in one step; makes its folder.
  /// Error(kIo) when another writer holds the lock for longer than 5 s.
  void update(const std::function<void(QuarantineList&)>& change);

 private:
  FileSystem& fs_;
  Clock& clock_;
  const std::string path_;
};

/// `shared` where a spec names a path; else $TRAINCTL_QUARANTINE; else $XDG_CONFIG_HOME or ~/.config,
/// trainctl/quarantine.json.
/// "": none of them is known (no home).
std::string quarantine_path(const std::string& shared);

}  // namespace trainctl
