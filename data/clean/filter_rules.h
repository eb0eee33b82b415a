// FilterRule: something that a text must be to be kept, as a limit on one number that is measured in it.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace trainctl::data {

/// What is measured, in the order in which texts are held to it: cheap ones first.
enum class FilterRule : size_t {
  min_chars,
  max_chars,
  min_words,
  max_words,
  min_mean_word_length,
  max_mean_word_length,
  max_hashes_per_word,
  max_ellipses_per_word,
  max_bullet_lines,
  max_ellipsis_lines,
  min_alphabetic_words,
  min_stop_words,
  max_duplicate_lines,
  max_duplicate_line_chars,
  max_duplicate_paragraphs,
  max_duplicate_paragraph_chars,
  max_top_2gram_chars,
  max_top_3gram_chars,
  max_top_4gram_chars,
  max_duplicate_5gram_chars,
  max_duplicate_6gram_chars,
  max_duplicate_7gram_chars,
  max_duplicate_8gram_chars,
  max_duplicate_9gram_chars,
  max_duplicate_10gram_chars,
  max_blocked_words,
  min_language_share,
  min_label_probability
};
inline constexpr size_t kFilterRules = size_t(FilterRule::min_label_probability) + 1;

enum class RuleSet { none, gopher_quality, gopher_repetition };

struct FilterRuleText {
  std::string_view name;  ///< "min_words"
  RuleSet set = RuleSet::none;
  double gopher = 0;      ///< the limit of that set
  std::string_view what;  ///< what is measured
  bool is_minimum() const { return name.starts_with("min_"); }
};
const FilterRuleText& text_of(FilterRule rule);

/// The limits in force; nullopt: the rule is off. A text at the limit is kept.
struct FilterLimits {
  std::array<std::optional<double>, kFilterRules> limits;
  std::optional<double>& operator[](FilterRule rule) { return limits[size_t(rule)]; }
  const std::optional<double>& operator[](FilterRule rule) const { return limits[size_t(rule)]; }
  /// Switches on the rules of a set: "gopher-quality", "gopher-repetition", or "gopher" for both, with the
  /// limits of Rae et al., Scaling Language Models (arXiv:2112.11446), appendix A.1.1 and table A1.
  /// Error(kUsage): there is no such set.
  void add_set(std::string_view name);
  /// "min_words=20", or "max_words=off". Error(kUsage).
  void set(std::string_view assignment);
  /// The content of a rule file: `{"sets": ["gopher"], "min_words": 20, "max_words": null}`; null is off.
  /// Error(kUsage), with the name of the file.
  void add_file(const std::string& text, const std::string& name);
  bool any() const;
};

}  // namespace trainctl::data
