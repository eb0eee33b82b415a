// Trains a tokenizer on a corpus before the corpus is tokenized.
#pragma once
#include <string>

#include "data/corpus/document.h"
#include "data/tokenize/tokenize.h"

namespace trainctl::data {

/// The bytes of a tokenizer's file. It learns from all of the text, or from parts spread evenly over it, of
/// about 64 MiB together. Error(kData).
std::string train_on_corpus(FileSystem& fs, const TokenizeOptions& options, CorpusOptions corpus);

}  // namespace trainctl::data
