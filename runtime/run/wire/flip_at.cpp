#include "runtime/run/wire/flip_at.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/run/wire/stop_at.h"

namespace trainctl {

std::optional<FlipAt> FlipAt::parse(const std::string& text, uint64_t epoch) {
  const auto parts = HookText::of(text, epoch);
  if (!parts) return std::nullopt;
  const auto phase = run_phase_of(parts->phase);
  const auto what = of_word<FlipWhat>(parts->rest);
  if (!parts->rank || !parts->step || (!phase && !parts->phase.empty()) || !what)
    throw Error(ErrorCode::kUsage,
                fmt::format("{}={} is not RANK:[PHASE]:[STEP]:WHAT", kFlipAtVariable, text));
  return FlipAt{.rank = int(*parts->rank), .phase = phase, .step = *parts->step, .what = *what};
}

bool FlipAt::matches(const Activity& a) const { return a.step >= step && (!phase || a.phase == *phase); }

}  // namespace trainctl
