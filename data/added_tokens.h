// Tokens that are found in text before it is divided into pieces: `<|endoftext|>` and the like.
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;     ///< decoding leaves it out
  bool lstrip = false;      ///< takes the white space before it
  bool rstrip = false;      ///< takes the white space after it
  bool normalized = false;  ///< looked for in the normalised text, otherwise in the text as it is
};

/// Finds the tokens in a text: the leftmost, and of these the longest. Thread-safe.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  /// Calls on_text for each stretch between tokens, which is not empty, and on_token for each token, in
  /// order.
  void divide(std::string_view text, const std::function<void(std::string_view)>& on_text,
              const std::function<void(int32_t)>& on_token) const;

 private:
  /// The longest token at `at`; null: none.
  const AddedToken* token_at(std::string_view text, size_t at) const;
  /// The first place from `at` on where a token may begin; the size of the text: none.
  size_t next_place(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // longest first
  std::array<std::vector<uint32_t>, 256> by_first_byte_;
  std::bitset<256> first_bytes_;
};

}  // namespace trainctl::data
