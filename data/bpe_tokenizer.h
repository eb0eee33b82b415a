// Byte-level byte pair encoding: the tokenizers of GPT-2, Llama 3, Qwen and their kin, from whatever file
// describes them.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "data/added_tokens.h"
#include "data/known_patterns.h"
#include "data/regex.h"
#include "data/tokenizer.h"

namespace trainctl::data {

/// The ids of a tokenizer that a file describes are below this.
constexpr int64_t kMostIds = int64_t(1) << 24;

/// What becomes of a match of a splitting pattern. Source: SplitDelimiterBehavior of Hugging Face's
/// tokenizers.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// A space goes before each piece that has none at its start.
struct SpaceBefore {};
/// One step in dividing text into pieces.
struct PieceStage {
  /// A pattern that a scanner knows, a regular expression, or text that is looked for as it is.
  std::variant<SpaceBefore, KnownPattern, std::shared_ptr<const Regex>, std::string> pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool inverted = false;  ///< matches and what lies between them change places
};

/// All that a byte-level BPE tokenizer consists of.
struct BpeModel {
  struct Merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
  };
  std::vector<std::string>
      tokens;  ///< the bytes of each id; of added tokens their content; "" where there is no token
  std::array<int32_t, 256> byte_ids{};
  std::vector<Merge> merges;
  bool whole_pieces = false;  ///< a piece that is a token is that token, whatever the merges
  bool normalizes_c = false;
  std::vector<PieceStage> stages;
  std::vector<AddedToken> added;
  bool finds_added = true;  ///< added tokens are found in text; otherwise their text is text like any other
  int32_t end_of_text = -1;
  std::string name;  ///< of the file, for messages
};

/// Encoding follows Hugging Face's tokenizers with add_special_tokens=False. Bytes that are not UTF-8 are
/// divided as U+FFFD would be and keep their values, so that decoding restores every byte that no
/// normalisation changed.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeModel model);

/// The token that ends documents, among the added ones: by the names that well-known models give it.
/// nullopt: none of them.
std::optional<int32_t> find_end_of_text(const std::vector<AddedToken>& added);

}  // namespace trainctl::data
