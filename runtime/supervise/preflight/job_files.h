// Whether the files that a job reads exist: token files, tokenizer, initial weights. What the spec alone
// cannot tell.
#pragma once
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// One error for each file that the job names and that is not there or is of no known kind: E0504 (token
/// files), E0506 (tokenizer), E0507 (initial weights), in the order of the spec. Only looks at names and
/// first bytes.
///   weights   also at model.init.from, which a run reads before its first step only
std::vector<Diagnostic> missing_files(const ParsedJob& job, FileSystem& fs, bool weights = true);

/// The `trainctl data tokenize` that makes the first training source of the job and what belongs to it.
std::string tokenize_command(const JobSpec& job, FileSystem& fs);

}  // namespace trainctl
