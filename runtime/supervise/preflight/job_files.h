// Checks that the files that a job reads exist: token files, tokenizer, initial weights.
#pragma once
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// One error for each file of the job that is missing or has an unknown format: E0504 (token files), E0506
/// (tokenizer), E0507 (initial weights), and for each that does not fit the job: E0508 (vocabulary), E0509
/// (tokenizer), E0511 (documents), E0513 and E0514 (loss files), in the order of the spec. Reads only names,
/// first bytes, sidecars and tokenizers.
///   weights   also check model.init.from, which a run reads only before its first step
std::vector<Diagnostic> missing_files(const ParsedJob& job, FileSystem& fs, bool weights = true);

/// Whether all sources of the job have the boundaries of documents. False also where one is missing.
bool sources_have_documents(const DataSpec& data);
/// Where some have them and some do not, so that data.documents = auto comes to `ignore`: which, in a
/// sentence.
Problem mixed_documents(const DataSpec& data);

/// What `data.loss` = auto comes to. Where a loss file cannot be read, `mask`: it is reported where the data
/// are opened.
TargetLoss loss_of_sources(const DataSpec& data, FileSystem& fs);

/// The `trainctl data tokenize` command that makes the first training source. `vocab_size`: of the model.
std::string tokenize_command(const DataSpec& data, int64_t vocab_size, FileSystem& fs);

}  // namespace trainctl
