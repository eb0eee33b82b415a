// Three runs of one tiny job that several tests look at: `hurt`, which lost a rank and went on, `narrow` on
// another mesh, and `other` with another learning rate. Each has sixty steps of four hundred.
#pragma once
#include <string>
#include <vector>

#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

/// The folder with job.json and runs/, made by the first call.
const TemporaryFolder& shown_runs();
/// The folder of one of the runs.
std::string folder_of(const std::string& run);
/// trainctl in that folder.
Outcome ran(const std::vector<std::string>& words);

std::vector<std::string> lines_of(const std::string& text);

}  // namespace trainctl::test
