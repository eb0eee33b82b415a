// Three runs of one tiny job that several tests look at: `hurt`, which lost a rank and went on, `narrow` on
// another mesh, and `other` with another learning rate. Each has sixty steps of four hundred.
#pragma once
#include <string>
#include <vector>

#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

/// Launches job.json of `dir` as run `id` for sixty steps of four hundred; a rank is killed in step 18,
/// and the run restarts from its newest checkpoint. Returns the run's folder.
std::string run_with_failure(const TemporaryFolder& dir, const std::string& id);

/// The folder with job.json and runs/, made by the first call.
const TemporaryFolder& shown_runs();
/// The folder of one of the runs.
std::string folder_of(const std::string& run);
/// trainctl in that folder.
Outcome ran(const std::vector<std::string>& words);

std::vector<std::string> lines_of(const std::string& text);

}  // namespace trainctl::test
