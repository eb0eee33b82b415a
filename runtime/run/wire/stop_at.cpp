#include "runtime/run/wire/stop_at.h"

#include <fmt/format.h>

#include <charconv>

#include "runtime/base/error.h"

namespace trainctl {

std::optional<HookText> HookText::of(std::string_view text, uint64_t epoch) {
  for (; epoch > 1 && !text.empty(); --epoch) {
    const size_t end = std::min(text.find(';'), text.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  text = text.substr(0, text.find(';'));
  if (text.empty()) return std::nullopt;
  const auto next = [&text] {
    const size_t end = std::min(text.find(':'), text.size());
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
  };
  const auto number = [](std::string_view part) -> std::optional<int64_t> {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() ? std::optional(value) : std::nullopt;
  };
  HookText parts;
  parts.rank = number(next());
  parts.phase = next();
  const std::string_view step = next();
  parts.step = step.empty() ? -1 : number(step);
  parts.rest = text;
  return parts;
}

std::optional<StopAt> StopAt::parse(const std::string& text, uint64_t epoch) {
  const auto parts = HookText::of(text, epoch);
  if (!parts) return std::nullopt;
  const auto phase = run_phase_of(parts->phase);
  if (!parts->rank || !phase || !parts->step)
    throw Error(ErrorCode::kUsage, fmt::format("{}={} is not RANK:PHASE[:STEP[:WAIT]]", kStopAtVariable, text));
  return StopAt{
      .rank = int(*parts->rank), .phase = *phase, .step = *parts->step, .wait = std::string(parts->rest)};
}

bool StopAt::matches(const Activity& a) const {
  if (a.phase != phase || a.step < step) return false;
  if (wait.empty()) return !a.is_waiting();
  if (wait == kInProgress) return !a.is_waiting() && a.done > 0;
  return a.is_waiting() && (a.communicator.view().starts_with(wait) || a.operation.view().starts_with(wait));
}

}  // namespace trainctl
