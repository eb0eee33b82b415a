// A Recording is what a rank recorded in the traced steps, and who the rank is. As a file it is one line of
// JSON, then the spans as they lie in memory: it is written and read by the same version of the program.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/spans/span.h"

namespace trainctl {

/// A communicator of the rank.
struct SpanGroup {
  std::string name;
  int size = 0, own = 0;     ///< size 0: only the name is known; own: the rank of this process in the group
  std::vector<int> members;  ///< world ranks of the first 64
  static void fields(auto& f, auto& r) {
    f("name", r.name);
    f("size", r.size);
    f("own", r.own);
    f("members", r.members);
  }
};

struct Recording {
  // The rank: its place in the mesh, the sizes of the mesh, and its part of the pipeline.
  int rank = 0, ranks = 1;
  int pp = 0, dp = 0, tp = 0;
  int pp_size = 1, dp_size = 1, tp_size = 1;
  int virtual_stages = 1;  ///< on each rank
  bool on_device = false;  ///< the rank computes on a GPU: spans of its host enqueue the work
  uint64_t epoch = 0;
  int64_t first_step = 0, last_step = -1;  ///< the recorded steps; none if last_step < first_step
  uint64_t overwritten = 0;                ///< spans for which the ring had no room; the oldest ones
  std::vector<std::string> texts;
  std::vector<SpanGroup> groups;
  std::vector<Span> spans;  ///< in the order in which they ended

  std::string encode() const;
  /// Error(kIo) if `bytes` is not a whole recording of this version. `name`: of the file, for the error.
  static Recording decode(const std::string& bytes, const std::string& name);
  static void fields(auto& f, auto& r) {
    f("rank", r.rank);
    f("ranks", r.ranks);
    f("pp", r.pp);
    f("dp", r.dp);
    f("tp", r.tp);
    f("pp_size", r.pp_size);
    f("dp_size", r.dp_size);
    f("tp_size", r.tp_size);
    f("virtual_stages", r.virtual_stages);
    f("on_device", r.on_device);
    f("epoch", r.epoch);
    f("first_step", r.first_step);
    f("last_step", r.last_step);
    f("overwritten", r.overwritten);
    f("texts", r.texts);
    f("groups", r.groups);
  }
};

/// rank-00003.spans
std::string recording_file_name(int rank);

}  // namespace trainctl
