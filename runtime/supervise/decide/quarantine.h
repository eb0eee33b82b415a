// Quarantine: a list of nodes and GPUs that runs must not use, with the evidence against them. The list
// outlives the run, and is of one cluster: the same names elsewhere are other machines.
//
//   clear --failures within a window, a failed probe, slow--> out --cool-down over, or lifted--> clear
//                                                              (each time out doubles the next cool-down)
//
// Decisions are pure (QuarantineList); QuarantineFile reads and writes the file. Times are unix seconds. Runs
// on several machines may share one file: a writer takes the file's lock, reads the file and replaces it, so
// no entry is lost.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/record_fields.h"
#include "runtime/base/units.h"
#include "runtime/base/words.h"

namespace trainctl {

struct QuarantineRules {
  int failures = 3;  ///< so many failures within the window put a node or GPU out; 0: failures never do
  double window_s = kHourS;
  double cool_down_s = kDayS;  ///< length of the first time out; doubles each time, to at most 16 times
};

/// Whether at least rules.failures of `times` (ascending) lie within the window that ends at `now_s`.
bool enough_failures(std::span<const double> times, double now_s, const QuarantineRules& rules);

/// Evidence against a node or one of its GPUs.
struct NodeEvidence {
  enum Kind { failure, failed_probe, slow } kind = failure;
  std::string run;
  uint64_t epoch = 0;
  std::string cause;  ///< one sentence
  double unix_s = 0;
  static void fields(auto& f, auto& r) {
    f("kind", r.kind);
    f("run", r.run);
    f("epoch", r.epoch);
    f("cause", r.cause);
    f("unix_s", r.unix_s);
  }
};
template <>
struct Words<NodeEvidence::Kind> {
  static constexpr std::string_view list[] = {"failure", "failed_probe", "slow"};
};

struct QuarantineEntry {
  std::string node, cluster;           ///< cluster "": not known; counts everywhere
  int gpu = -1;                        ///< -1: the node as a whole
  std::vector<NodeEvidence> evidence;  ///< the newest 16, oldest first
  int count = 0;                       ///< all pieces of evidence so far
  int times_out = 0;                   ///< how often it was put out
  double out_since_s = 0, out_until_s = 0;  ///< the last time out; 0, 0: never out
  double lifted_s = 0;                      ///< when a person lifted it last; 0: never
  std::string lifted_by;
  bool is_out(double now_s) const { return now_s < out_until_s; }
  /// "node3" or "node3:gpu2", the argument of --lift.
  std::string place() const;
  /// "hpc/node3", the argument for a node of another cluster than this one's.
  std::string place_with_cluster() const { return cluster.empty() ? place() : cluster + "/" + place(); }
  static void fields(auto& f, auto& r) {
    f("node", r.node);
    f.when(!r.cluster.empty(), "cluster", r.cluster);
    f("gpu", r.gpu);
    f("count", r.count);
    f("times_out", r.times_out);
    f("out_since_s", r.out_since_s);
    f("out_until_s", r.out_until_s);
    f("lifted_s", r.lifted_s);
    f("lifted_by", r.lifted_by);
    f("evidence", r.evidence);
  }
};

class QuarantineList {
 public:
  /// The cluster whose nodes the names in all calls below are.
  void set_cluster(std::string cluster) { cluster_ = std::move(cluster); }
  /// Adds evidence against a node (gpu -1) or one of its GPUs. Returns true if this puts it out, false if it
  /// is out already or the evidence is not enough.
  bool add(const std::string& node, int gpu, const NodeEvidence& evidence, const QuarantineRules& rules,
           double now_s);
  /// Clears a node with all its GPUs ("node3"), or one GPU ("node3:gpu2"), so that earlier evidence no longer
  /// counts; one of another cluster by "hpc/node3". Returns false if the place was not out.
  bool lift(const std::string& place, const std::string& by, double now_s);
  /// Nodes that must not be used now, sorted; a node whose GPU is out is one of them.
  std::vector<std::string> nodes_out(double now_s) const;
  /// Until when the node is out; 0: it is not.
  double out_until_s(const std::string& node, double now_s) const;
  /// Whether the node is out because of failures of the run `run` alone.
  bool only_by(const std::string& node, const std::string& run, double now_s) const;
  /// "in quarantine for another 23h, 3 x, last 12m ago in run a: rank 1 was killed by SIGSEGV"; "": it is
  /// not.
  std::string why_out(const std::string& node, double now_s) const;
  /// Whether lift(place) is about this entry.
  bool is_meant(const QuarantineEntry& entry, const std::string& place) const;
  const std::vector<QuarantineEntry>& entries() const { return entries_; }

  std::string to_json() const;
  /// Error(kUsage) with one sentence if `text` is not such a list.
  static QuarantineList from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f.written("v", kVersion);
    f("entries", r.entries_);
  }
  /// A table for people, one line per entry; "" if there are no entries.
  std::string describe(double now_s) const;

 private:
  static constexpr int kVersion = 1;
  QuarantineEntry& entry_of(const std::string& node, int gpu);
  bool is_here(const QuarantineEntry& e) const { return e.cluster.empty() || e.cluster == cluster_; }
  std::string cluster_;
  std::vector<QuarantineEntry> entries_;
};

/// NodesOut: the nodes that a run leaves out because of the list, and when it takes them back: after their
/// time, or when a person has lifted them. Pure.
class NodesOut {
 public:
  /// `is_listed` false: it could not be written down, so the list does not say when it is over.
  void add(const std::string& node, double until_unix_s, bool is_listed = true) {
    until_s_[node] = {until_unix_s, is_listed};
  }
  bool none() const { return until_s_.empty(); }
  /// The nodes that may be used again; each is returned once. `list`: as it is now; nullopt: it cannot be
  /// read, and the times that are known count.
  std::vector<std::string> take_back(const std::optional<QuarantineList>& list, double now_unix_s);

 private:
  struct Out {
    double until_s = 0;
    bool is_listed = true;
  };
  std::map<std::string, Out> until_s_;  ///< by node
};

/// The list as a file. Not thread-safe. A missing file is an empty list.
class QuarantineFile {
 public:
  /// `cluster`: of the names in the lists that it reads and updates.
  QuarantineFile(FileSystem& fs, Clock& clock, std::string path, std::string cluster);
  const std::string& path() const { return path_; }
  /// Error(kUsage) if the file is not a list, Error(kIo) if it cannot be read.
  QuarantineList read() const;
  /// Takes the lock PATH.lock, calls `change` with the list and replaces the file atomically. Makes the
  /// folder if needed. Error(kIo) if another writer holds the lock for longer than 5 s.
  void update(const std::function<void(QuarantineList&)>& change);

 private:
  FileSystem& fs_;
  Clock& clock_;
  const std::string path_, cluster_;
};

/// The path of the list: `shared` (the path in a job spec) if it is not ""; otherwise $TRAINCTL_QUARANTINE;
/// otherwise trainctl/quarantine.json in $XDG_CONFIG_HOME or ~/.config. "" if none of them is set.
std::string quarantine_path(const std::string& shared);
/// The list that a person asked for: `given` as above. Error(kUsage) if there is no path.
QuarantineFile quarantine_of_user(FileSystem& fs, Clock& clock, const std::string& given,
                                  std::string cluster);

}  // namespace trainctl
