// What tests of Recovery share: a run whose nodes are all ready and whose first attempt runs, by hand.
#pragma once
#include <catch2/catch.hpp>

#include <string>
#include <variant>
#include <vector>

#include "runtime/supervise/decide/recovery.h"

namespace trainctl::test {

using Names = std::vector<std::string>;
using TooFew = Recovery::TooFew;
using Regroup = Recovery::Regroup;

/// Tensor groups of two on nodes of two slots: as many replicas as nodes.
inline Recovery::Options recovery_options(int most_width, const Names& nodes) {
  Recovery::Options o = {.tensor = 2, .nodes = nodes, .max_restarts = 100};
  for (int data = most_width; data >= 1; --data) o.widths.push_back({.data = data, .ranks = 2 * data});
  return o;
}

inline AttemptEnd failure(ErrorCode code, int rank = 0, const std::string& node = "a") {
  return {.how = AttemptEnd::failed, .code = code, .cause = "it broke", .rank = rank, .node = node};
}

/// A run whose nodes are all ready and whose first attempt runs.
struct Run {
  Recovery recovery;
  StartAttempt start;
  double now_s = 0;

  explicit Run(const Recovery::Options& o) : recovery(o, 0) {
    for (const std::string& name : o.nodes) recovery.node_ready(name, 2, 0);
    go();
  }
  Decision next() { return recovery.next(now_s); }
  /// The next decision must be to start; starts.
  void go() {
    const Decision d = next();
    REQUIRE(std::holds_alternative<StartAttempt>(d));
    start = std::get<StartAttempt>(d);
    recovery.attempt_started(start, now_s);
  }
  void fail(ErrorCode code, int rank = 0, const std::string& node = "a") {
    recovery.attempt_ended(failure(code, rank, node), now_s);
  }
  /// The checkpoint that is asked for is there, at this step.
  void found(int64_t step) {
    REQUIRE(std::holds_alternative<FindCheckpoint>(next()));
    recovery.checkpoint_found(step);
  }
  void lose(const std::string& name) {
    recovery.node_lost(name, "silent", now_s);
    recovery.attempt_ended(failure(ErrorCode::kHang, 0, name), now_s);
  }
  StopRun stopped() {
    const Decision d = next();
    REQUIRE(std::holds_alternative<StopRun>(d));
    return std::get<StopRun>(d);
  }
};

}  // namespace trainctl::test
