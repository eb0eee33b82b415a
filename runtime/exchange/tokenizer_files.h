// The tokenizer files of a Hugging Face folder: what trainctl's tokenizers become there, and which of them
// trainctl can use.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"

namespace trainctl {

struct TokenizerFiles {
  std::map<std::string, std::string> texts;  ///< by file name; empty: no tokenizer is known
  std::string file;                          ///< of these, the one that has the tokens
  std::optional<int32_t> end_of_text;
  /// "bytes (...)", "SentencePiece t/tokenizer.model", "byte-level BPE t/tokenizer.json", "tiktoken ...", or
  /// ""
  std::string description;
};

/// The files for a tokenizer. Error(kData): it cannot be read, or has more ids than the model. An empty
/// choice gives no files. `max_seq_len`: of the model.
TokenizerFiles tokenizer_files(FileSystem& fs, const data::TokenizerChoice& choice, int64_t vocab_size,
                               int64_t max_seq_len);

/// Error(kCheckpoint), with the place, if the written file `path` makes other ids of a probe text than
/// `choice`.
void require_same_tokens(FileSystem& fs, const data::TokenizerChoice& choice, const std::string& path);

/// The tokenizer that a Hugging Face folder holds; none is given if there is no file of one. Error(kData),
/// one sentence that names the file and the part, if trainctl cannot use it or it has more ids than the
/// model.
data::TokenizerChoice tokenizer_in(FileSystem& fs, const std::string& folder, int64_t vocab_size);

}  // namespace trainctl
