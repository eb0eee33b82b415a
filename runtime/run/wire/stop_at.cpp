#include "runtime/run/wire/stop_at.h"

#include <fmt/format.h>

#include <charconv>

#include "runtime/base/error.h"

namespace trainctl {

std::optional<StopAt> StopAt::parse(const std::string& text, uint64_t epoch) {
  std::string_view rest = text;
  for (; epoch > 1 && !rest.empty(); --epoch) {
    const size_t end = std::min(rest.find(';'), rest.size());
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  rest = rest.substr(0, rest.find(';'));
  if (rest.empty()) return std::nullopt;
  const auto next = [&rest] {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  const auto is_number = [](std::string_view part, auto& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size();
  };
  StopAt when;
  const bool has_rank = is_number(next(), when.rank);
  const auto phase = run_phase_of(next());
  const std::string_view step = next();
  if (!has_rank || !phase || (!step.empty() && !is_number(step, when.step)))
    throw Error(ErrorCode::kUsage, fmt::format("{}={} is not RANK:PHASE[:STEP[:WAIT]]", kStopAtVariable, text));
  when.phase = *phase;
  when.wait = rest;
  return when;
}

bool StopAt::matches(const Activity& a) const {
  if (a.phase != phase || a.step < step) return false;
  if (wait.empty()) return !a.is_waiting();
  if (wait == kInProgress) return !a.is_waiting() && a.done > 0;
  return a.is_waiting() && (a.communicator.view().starts_with(wait) || a.operation.view().starts_with(wait));
}

}  // namespace trainctl
