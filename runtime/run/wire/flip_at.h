// A hook for tests, as stop_at.h is one: in each of the first epochs, one rank computes wrongly, or its
// memory forgets a bit, at a chosen point of the run. The hook is off unless the variable is in the rank's
// environment, and works on CPU ranks only.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/activity.h"
#include "runtime/base/words.h"

namespace trainctl {

/// TRAINCTL_FLIP_AT=RANK:[PHASE]:[STEP]:WHAT, e.g. "1::5:products", "2:evaluating:4:product" or
/// "0:forward:3:moment". Without a phase: in each. Several, with ";" between them, are for the epochs 1, 2
/// and so on; an empty one flips nothing.
inline constexpr const char* kFlipAtVariable = "TRAINCTL_FLIP_AT";

/// Of what a bit is flipped.
enum class FlipWhat {
  product,   ///< the result of the first product there
  products,  ///< the result of each product there
  moment,    ///< the first moment of a parameter that AdamW updated last, once
};
template <>
struct Words<FlipWhat> {
  static constexpr std::string_view list[] = {"product", "products", "moment"};
};

struct FlipAt {
  int rank = -1;
  std::optional<RunPhase> phase;
  int64_t step = -1;  ///< the first step at which it matches; -1: any
  FlipWhat what = FlipWhat::product;

  /// What `text` says of that epoch; nullopt: nothing. Error(kUsage) if that does not have the form above.
  static std::optional<FlipAt> parse(const std::string& text, uint64_t epoch);
  bool matches(const Activity& activity) const;
};

}  // namespace trainctl
