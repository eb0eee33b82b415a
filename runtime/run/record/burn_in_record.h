// BurnInRecord is what the burn-in of an attempt (launcher.burn_in) found on each node that was tested: the
// event `burn_in`. Rank 0 makes it of what all ranks found.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"

namespace trainctl {

struct NodeTest {
  std::string node;
  double product_s = 0;  ///< of its slowest core or GPU, the shortest time of one product; 0: not measured
  std::string place;     ///< that one: "core 3"
  std::string wrong;     ///< why it must not be used, one sentence; "": nothing is known against it
  static void fields(auto& f, auto& r) {
    f("node", r.node);
    f("product_s", r.product_s);
    f("place", r.place);
    f.when(!r.wrong.empty(), "wrong", r.wrong);
  }
};

struct BurnInRecord {
  std::vector<NodeTest> nodes;
  double seconds = 0;  ///< that it took on rank 0
  std::string text;    ///< one sentence
  bool is_well() const {
    for (const NodeTest& test : nodes)
      if (!test.wrong.empty()) return false;
    return true;
  }
  static void fields(auto& f, auto& r) {
    f("nodes", r.nodes);
    f("seconds", r.seconds);
    f("text", r.text);
  }
};

/// What one rank found; it travels as bytes.
struct RankTest {
  double product_s = 0;
  char place[24] = "";
  char wrong[488] = "";
};
/// A node of the attempt and its ranks.
struct TestedNode {
  std::string name;
  int first = 0, count = 0;
};
/// The record, without its seconds, of the results of all ranks. Of several that are wrong on a node the
/// first is named. Pure.
BurnInRecord burn_in_record(const std::vector<TestedNode>& tested, const std::vector<RankTest>& ranks);

}  // namespace trainctl
