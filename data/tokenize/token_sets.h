// The names of the files that `data tokenize` makes, and how they get them.
#pragma once
#include <string>
#include <vector>

#include "data/tokenize/attempt.h"
#include "data/tokenize/tokenize.h"

namespace trainctl::data {

/// "." if there is none.
std::string folder_of(const std::string& path);
/// The path of a trained tokenizer.
std::string model_path(const TokenizeOptions& options);
/// The prefixes of the token sets: training, then validation if there is one.
std::vector<std::string> prefixes(const TokenizeOptions& options);
/// Their names in the folder of an attempt.
inline constexpr const char* kSetNames[] = {"train", "val"};

/// A run cannot be resumed after its token set or tokenizer was replaced: Error(kUsage), with their names,
/// if one of them exists, unless options.force; and where the tokenizer would have the name of a file of tokens.
void refuse_existing(FileSystem& fs, const TokenizeOptions& options);

/// Gives the files of a complete attempt their names: the trained tokenizer first, then each set. A process
/// that ends on the way leaves an attempt from which this function goes on. At no time an index has the
/// tokens of another set.
///   has_weights   the sets have loss files
void publish(FileSystem& fs, const TokenizeOptions& options, bool has_weights, Attempt& attempt);

}  // namespace trainctl::data
