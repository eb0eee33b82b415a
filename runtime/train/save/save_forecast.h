// SaveForecast and CopyForecast: how often a run will save to its folder, to the memory of its nodes and to
// that of their partners, and what that will cost, before anything is measured.
//
// The run decides with SaveCalendar, from what it measures. The forecast asks the same calendar, with
// durations that follow from the plan and from the rates below.
//
// Pure.
#pragma once
#include <optional>

#include "runtime/plan/report.h"

namespace trainctl {

/// What a node writes to the run's folder, an assumption: a node's share of the storage behind Llama 3, which
/// sustains 2 TB/s for 2,000 nodes (arXiv:2407.21783, section 3.3.1).
inline constexpr double kAssumedWriteBytesPerS = 1e9;
/// What a rank copies into the memory of its node, hashes included. Measured on two Zen cores: 4 to 8 GB/s.
inline constexpr double kAssumedCopyBytesPerS = 4e9;
/// What a node sends to its partner: 10 Gbit Ethernet, the slowest network between nodes that train together.
inline constexpr double kAssumedSendBytesPerS = 1.25e9;

/// The forecast for a run on `nodes` nodes; nullopt: it saves only at its end, or the time of a step is
/// unknown.
std::optional<SaveForecast> forecast_saves(const PlanReport& report, int nodes);

/// The forecast of copies in the memory of each node; nullopt: none are made, or the time of a step is
/// unknown.
std::optional<CopyForecast> forecast_memory_copies(const PlanReport& report, int nodes);
/// The same for second copies in the memory of another node.
std::optional<CopyForecast> forecast_second_copies(const PlanReport& report, int nodes);

}  // namespace trainctl
