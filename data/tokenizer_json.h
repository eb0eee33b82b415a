// Hugging Face's tokenizer.json, as far as it describes a byte-level BPE: the tokenizers of GPT-2, Llama 3,
// Qwen and their kin. Every part that is not known is refused by its name, because it could give other
// token ids.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace trainctl::data {

/// Whether the bytes of a tokenizer file look like JSON.
bool is_tokenizer_json(std::string_view content);
/// Error(kData), one sentence that names the part and its value. The file's truncation, padding and
/// post_processor do not change the ids of data: text is encoded whole and without tokens around it.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& content, const std::string& name);

}  // namespace trainctl::data
