#include "data/tokenize/encode_block.h"

#include "runtime/base/error.h"

namespace trainctl::data {

EncodedBlock encode_block(const Tokenizer& tokenizer, Tokenizer::Encoder& encoder, const Block& block,
                          const CorpusOptions& options, const AnswerEncoder* answers) {
  if (answers && block.kind != Block::Kind::json_lines)
    throw Error(ErrorCode::kData,
                fmt::format("{} has no JSON lines, which conversations are read from", *block.path));
  EncodedBlock result;
  result.left_out = block.left_out;
  result.faults = text_faults(block);
  BlockDocuments documents(block, options);
  Document document;
  const auto encode = [&](std::string_view text) {
    while (!text.empty()) {
      const std::string_view part = text.substr(0, tokenizer.first_part(text, kEncodedAtOnce));
      encoder.encode(part, result.ids);
      text.remove_prefix(part.size());
    }
  };
  while (documents.next(document)) {
    const size_t begin = result.ids.size();
    size_t text_bytes = document.text.size();
    try {
      if (answers)
        text_bytes = answers->encode(document.text, encoder, result.ids, result.weights);
      else
        encode(document.text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kData) throw;
      // A text may be a part of its document, the rest of which is in other blocks.
      if (!options.skip_bad || block.kind == Block::Kind::texts)
        throw Error(ErrorCode::kData, fmt::format("{}: {}", place_of(document), error.what()));
      result.ids.resize(begin);
      if (answers) result.weights.resize(begin);
      result.left_out.push_back({place_of(document), error.what()});
      continue;
    }
    if (!answers) result.ids.push_back(tokenizer.end_of_text());
    result.texts.push_back({.end = result.ids.size(), .text_bytes = text_bytes});
  }
  if (block.goes_on) {
    result.ids.pop_back();
    result.texts.back().end = result.ids.size();
    result.texts.back().ends_document = false;
  }
  result.empty_documents = documents.empty_documents();
  result.left_out.insert(result.left_out.end(), documents.left_out().begin(), documents.left_out().end());
  return result;
}

}  // namespace trainctl::data
