// PieceSplitter divides text into the pieces within which bytes are merged, by a list of stages.
#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "data/bpe_tokenizer.h"

namespace trainctl::data {

/// The pattern, if the stages are that one pattern and its scanner gives their pieces.
std::optional<KnownPattern> scanner_of(const std::vector<PieceStage>& stages);

/// Any stages, one after the other, each on the pieces of the one before. Of one thread; outlived by the
/// stages.
class PieceSplitter {
 public:
  explicit PieceSplitter(const std::vector<PieceStage>& stages);
  ~PieceSplitter();
  /// Calls on_piece for each piece, in order. Pieces are valid during the call.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_piece);

 private:
  void split_from(size_t stage, std::string_view text, const std::function<void(std::string_view)>& on_piece);
  std::vector<Stretch> stretches_of(size_t stage, std::string_view text);

  const std::vector<PieceStage>& stages_;
  std::vector<std::unique_ptr<Regex::Matcher>> matchers_;  // by stage; null: not a regular expression
};

}  // namespace trainctl::data
