// The ranks of a node in an attempt.
#pragma once
#include <string>

namespace trainctl {

/// The ranks of a node: first, first + 1, ... first + count - 1.
struct NodeRanks {
  std::string name;
  int first = 0, count = 0;
};

}  // namespace trainctl
