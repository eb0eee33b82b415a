// What a job draws from each of its training sources.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "data/mix.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// Opens the training sources of the job and counts. `tokens`: the budget, rounded up to whole steps;
/// nullopt: all steps of the job. Error(kData): a source cannot be opened. Error(kUsage): as data::mix_of.
data::Mix mix_of_job(const JobSpec& job, std::optional<uint64_t> tokens);

/// The training data of the job, as its ranks open them. Error(kData).
std::unique_ptr<data::Dataset> open_training_data(const DataSpec& data, int64_t vocab_size);

}  // namespace trainctl
