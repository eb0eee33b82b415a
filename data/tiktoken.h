// Files of tiktoken: a line `base64(bytes) rank` for each token. The pattern and the special tokens are not
// in the file; they follow from the encoding's name.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace trainctl::data {

/// Whether the bytes of a tokenizer file begin with such a line.
bool is_tiktoken(std::string_view content);
/// The encoding is known by the file's name (cl100k_base.tiktoken) or, for files of other names, by its
/// number of tokens; tokenizer.model is Llama 3. Text is encoded as tiktoken's encode_ordinary does:
/// special tokens in it are plain text. Error(kData), one sentence: the line or the encoding that is wrong.
std::unique_ptr<Tokenizer> open_tiktoken(const std::string& content, const std::string& name);

}  // namespace trainctl::data
