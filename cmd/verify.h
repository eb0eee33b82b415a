// What `verify` and `resume --verify` share: the replay of recorded steps, and what it found.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "runtime/observe/terminal/run_comparison.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl::cmd {

enum class VerifyVerdict { identical, within_tolerance, different, undecided };

struct VerifyRequest {
  RunDirectory run;
  int64_t steps = 1;  ///< ReplayWish
  std::optional<int64_t> to;
  std::vector<std::string> overrides;  ///< of the replay: another mesh
  bool keep = false;                   ///< the replay's folder, also where nothing differs
};

struct Verified {
  VerifyVerdict verdict = VerifyVerdict::undecided;
  std::string why;  ///< one sentence: what differs, or what keeps it from a decision
  std::vector<std::string> notes;
  int64_t from = 0, to = 0;
  terminal::RunComparison found;
  std::string replay;  ///< its folder; "": it is removed
  /// The lines for people.
  std::vector<std::string> lines() const;
};

/// Computes the steps again and compares them. Throws Error if the replay itself fails.
Verified verify_run(const VerifyRequest& request, const Context& context);

}  // namespace trainctl::cmd
template <>
struct trainctl::Words<trainctl::cmd::VerifyVerdict> {
  static constexpr std::string_view list[] = {"identical", "within_tolerance", "different", "undecided"};
};
