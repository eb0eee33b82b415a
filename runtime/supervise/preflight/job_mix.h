// What a job draws from each of its training sources.
#pragma once
#include <cstdint>
#include <optional>

#include "data/mix.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// Opens the training sources of the job and counts. `tokens`: the budget, rounded up to whole steps;
/// nullopt: all steps of the job. Error(kData): a source cannot be opened. Error(kUsage): as data::mix_of.
data::Mix mix_of_job(const JobSpec& job, std::optional<uint64_t> tokens);

}  // namespace trainctl
