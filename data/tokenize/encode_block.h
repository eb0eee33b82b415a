// The tokens of a block of a corpus: what one thread does.
#pragma once
#include <cstdint>
#include <vector>

#include "data/corpus/block.h"
#include "data/tokenize/answers.h"
#include "data/tokenize/text_checks.h"
#include "data/tokenizer.h"

namespace trainctl::data {

/// The tokens of the texts of a block.
struct EncodedBlock {
  struct Text {
    size_t end = 0;  ///< of its tokens; they begin where those of the text before end
    uint64_t text_bytes = 0;
    bool ends_document = true;  ///< its last token is the end of text
  };
  std::vector<int32_t> ids;
  std::vector<uint8_t> weights;  ///< of each token, of records with answers; else empty
  std::vector<Text> texts;
  TextFaults faults;
  uint64_t empty_documents = 0;
  std::vector<LeftOut> left_out;  ///< left out, those of Block::left_out first
};

inline constexpr size_t kEncodedAtOnce = size_t(1) << 20;  ///< bytes of text

/// Error(kData) with file and place of a bad record, unless options.skip_bad.
///   answers   of records with answers (CorpusOptions::whole_lines), which end as their template ends; null: each
///             document ends with the end of text
EncodedBlock encode_block(const Tokenizer& tokenizer, Tokenizer::Encoder& encoder, const Block& block,
                          const CorpusOptions& options, const AnswerEncoder* answers = nullptr);

}  // namespace trainctl::data
