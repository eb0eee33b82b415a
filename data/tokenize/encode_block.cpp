#include "data/tokenize/encode_block.h"

namespace trainctl::data {

EncodedBlock encode_block(const Tokenizer& tokenizer, Tokenizer::Encoder& encoder, const Block& block,
                          const CorpusOptions& options) {
  EncodedBlock result;
  result.left_out = block.left_out;
  result.faults = text_faults(block);
  BlockDocuments documents(block, options);
  Document document;
  while (documents.next(document)) {
    std::string_view text = document.text;
    while (!text.empty()) {
      const std::string_view part = text.substr(0, tokenizer.first_part(text, kEncodedAtOnce));
      encoder.encode(part, result.ids);
      text.remove_prefix(part.size());
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
