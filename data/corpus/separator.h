// Separator: where one document of a plain text ends and the next begins.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace trainctl::data {

/// A text that ends a document wherever it occurs, if it has a newline, e.g. "\n\n"; otherwise as a whole
/// line, e.g. `<|endoftext|>`. Immutable.
class Separator {
 public:
  explicit Separator(std::string text) : text_(std::move(text)), is_line_(text_.find('\n') == text_.npos) {}

  struct Place {
    size_t begin = 0, end = 0;  ///< a line with its newline
  };
  /// The first one at or after `from`. `line_starts`: a line starts at `from`. `at_end`: nothing follows
  /// `text`. Without at_end, one in the last reserve() bytes may not be found.
  std::optional<Place> find(std::string_view text, size_t from, bool line_starts, bool at_end) const {
    for (size_t at = text.find(text_, from); at != text.npos; at = text.find(text_, at + 1)) {
      const size_t after = at + text_.size();
      if (!is_line_) return Place{at, after};
      if (at == from ? !line_starts : text[at - 1] != '\n') continue;
      const size_t newline = after + (after < text.size() && text[after] == '\r');
      if (newline < text.size() ? text[newline] == '\n' : at_end)
        return Place{at, std::min(newline + 1, text.size())};
    }
    return std::nullopt;
  }
  size_t reserve() const { return text_.size() + 2; }

 private:
  std::string text_;
  bool is_line_;
};

}  // namespace trainctl::data
