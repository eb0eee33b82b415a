// Training of a byte-level BPE tokenizer.
#pragma once
#include <cstdint>
#include <string>

#include "data/tokenizer.h"

namespace trainctl::data {

/// Trains a byte-level BPE with at most `vocab_size` ids on the texts and returns the bytes of a Hugging
/// Face tokenizer.json: the 256 bytes in the order of GPT-2, then the merges, then <|endoftext|>. Text is
/// divided by the pattern of Llama 3. Merged is the most frequent pair, of equally frequent ones that with
/// the smallest ids, until none occurs twice; so the result depends on the texts only, not on `threads`.
/// Error(kData): the vocabulary is too small, or there is no text.
std::string train_bpe(const TextStream& next, int64_t vocab_size, int threads);

}  // namespace trainctl::data
