#include "data/tokenize/encode_block.h"

#include "runtime/base/error.h"

namespace trainctl::data {

EncodedBlock encode_block(const Tokenizer& tokenizer, Tokenizer::Encoder& encoder, const Block& block,
                          const CorpusOptions& options) {
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
    try {
      encode(document.text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kData) throw;
      // A text may be a part of its document, the rest of which is in other blocks.
      if (!options.skip_bad || block.kind == Block::Kind::texts)
        throw Error(ErrorCode::kData, fmt::format("{}: {}", place_of(document), error.what()));
      result.ids.resize(begin);
      result.left_out.push_back({place_of(document), error.what()});
      continue;
    }
    result.ids.push_back(tokenizer.end_of_text());
    result.texts.push_back({.end = result.ids.size(), .text_bytes = document.text.size()});
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
