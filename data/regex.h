// Regex finds the matches of a regular expression in text. Patterns are those of tokenizer files, which
// Hugging Face's tokenizers hand to Oniguruma; here PCRE2 matches them. What the two read differently is
// translated, or refused.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// The same pattern for PCRE2 with UTF and UCP. Classes of Unicode are written out where the libraries may
/// differ: \s, and characters that an older PCRE2 does not know. Error(kData), after `where`: a construct
/// outside the known set, by its name.
std::string pcre_of_oniguruma(std::string_view pattern, const std::string& where);

/// A part of a text.
struct Stretch {
  size_t begin, end;
  bool is_match;
};

/// Thread-safe.
class Regex {
 public:
  /// `where`: what has the pattern, for messages. Error(kData): the pattern is unknown, wrong, or matches
  /// the empty text.
  Regex(std::string_view pattern, std::string where);
  ~Regex();

  /// What one thread needs to match.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    /// The whole text as matches and the stretches between them; none is empty. Broken UTF-8 is matched as
    /// U+FFFD, a byte each. Error(kData): the pattern needs too many steps on this text.
    void divide(std::string_view text, std::vector<Stretch>& stretches);

   private:
    void divide_valid(std::string_view text, std::vector<Stretch>& stretches);
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace trainctl::data
