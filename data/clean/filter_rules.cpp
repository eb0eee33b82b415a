#include "data/clean/filter_rules.h"

#include <charconv>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr RuleSet kQuality = RuleSet::gopher_quality, kRepetition = RuleSet::gopher_repetition;
constexpr std::array<FilterRuleText, kFilterRules> kTexts{{
    {"min_chars", RuleSet::none, 0, "characters"},
    {"max_chars", RuleSet::none, 0, "characters"},
    {"min_words", kQuality, 50, "words"},
    {"max_words", kQuality, 100'000, "words"},
    {"min_mean_word_length", kQuality, 3, "mean length of words, in characters"},
    {"max_mean_word_length", kQuality, 10, "mean length of words, in characters"},
    {"max_hashes_per_word", kQuality, 0.1, "number of # over words"},
    {"max_ellipses_per_word", kQuality, 0.1, "number of ellipses over words"},
    {"max_bullet_lines", kQuality, 0.9, "share of lines that begin with a bullet"},
    {"max_ellipsis_lines", kQuality, 0.3, "share of lines that end with an ellipsis"},
    {"min_alphabetic_words", kQuality, 0.8, "share of words with a letter"},
    {"min_stop_words", kQuality, 2, "different words of: the be to of and that have with"},
    {"max_duplicate_lines", kRepetition, 0.3, "share of lines that were there before"},
    {"max_duplicate_line_chars", kRepetition, 0.2, "share of the text in such lines"},
    {"max_duplicate_paragraphs", kRepetition, 0.3, "share of paragraphs that were there before"},
    {"max_duplicate_paragraph_chars", kRepetition, 0.2, "share of the text in such paragraphs"},
    {"max_top_2gram_chars", kRepetition, 0.2, "share of the text in the most frequent 2 words"},
    {"max_top_3gram_chars", kRepetition, 0.18, "share of the text in the most frequent 3 words"},
    {"max_top_4gram_chars", kRepetition, 0.16, "share of the text in the most frequent 4 words"},
    {"max_duplicate_5gram_chars", kRepetition, 0.15, "share of the text in 5 words that repeat"},
    {"max_duplicate_6gram_chars", kRepetition, 0.14, "share of the text in 6 words that repeat"},
    {"max_duplicate_7gram_chars", kRepetition, 0.13, "share of the text in 7 words that repeat"},
    {"max_duplicate_8gram_chars", kRepetition, 0.12, "share of the text in 8 words that repeat"},
    {"max_duplicate_9gram_chars", kRepetition, 0.11, "share of the text in 9 words that repeat"},
    {"max_duplicate_10gram_chars", kRepetition, 0.1, "share of the text in 10 words that repeat"},
    {"max_blocked_words", RuleSet::none, 0, "words of the --blocklist"},
    {"min_language_share", RuleSet::none, 0, "share of the text in the wanted languages"},
    {"min_label_probability", RuleSet::none, 0, "probability of the wanted labels"},
}};

FilterRule rule_of(std::string_view name) {
  std::string names;
  for (size_t i = 0; i < kFilterRules; ++i) {
    if (kTexts[i].name == name) return FilterRule(i);
    names += (names.empty() ? "" : ", ") + std::string(kTexts[i].name);
  }
  throw Error(ErrorCode::kUsage, fmt::format("there is no rule `{}`; the rules are {}", name, names));
}

void check_limit(std::string_view name, double limit) {
  if (std::isfinite(limit) && limit >= 0) return;
  throw Error(ErrorCode::kUsage,
              fmt::format("the limit of {} is {}; give a number from 0 on, or off", name, limit));
}

}  // namespace

const FilterRuleText& text_of(FilterRule rule) { return kTexts[size_t(rule)]; }

void FilterLimits::add_set(std::string_view name) {
  const bool quality = name == "gopher" || name == "gopher-quality";
  const bool repetition = name == "gopher" || name == "gopher-repetition";
  if (!quality && !repetition)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("there is no set of rules `{}`; use gopher, gopher-quality, gopher-repetition, or the "
                    "path of a .json file",
                    name));
  for (size_t i = 0; i < kFilterRules; ++i)
    if ((quality && kTexts[i].set == kQuality) || (repetition && kTexts[i].set == kRepetition))
      limits[i] = kTexts[i].gopher;
}

void FilterLimits::set(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == assignment.npos)
    throw Error(ErrorCode::kUsage,
                fmt::format("--rule {} is not NAME=LIMIT, such as min_words=20", assignment));
  const std::string_view name = assignment.substr(0, equals), word = assignment.substr(equals + 1);
  const FilterRule rule = rule_of(name);
  if (word == "off") {
    (*this)[rule] = std::nullopt;
    return;
  }
  double limit = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), limit);
  if (error != std::errc() || end != word.data() + word.size())
    throw Error(ErrorCode::kUsage,
                fmt::format("--rule {} has no number; write {}=LIMIT, or {}=off", assignment, name, name));
  check_limit(name, limit);
  (*this)[rule] = limit;
}

void FilterLimits::add_file(const std::string& text, const std::string& name) {
  const Json file = try_parse_json(text);
  try {
    if (!file.is_object()) throw Error(ErrorCode::kUsage, "it is no JSON object");
    if (const auto sets = file.find("sets"); sets != file.end()) {
      if (!sets->is_array()) throw Error(ErrorCode::kUsage, "`sets` is no list of names");
      for (const auto& set : *sets) {
        if (!set.is_string()) throw Error(ErrorCode::kUsage, "`sets` is no list of names");
        add_set(set.get<std::string>());
      }
    }
    for (const auto& [key, value] : file.items()) {
      if (key == "sets") continue;
      const FilterRule rule = rule_of(key);
      if (value.is_null()) {
        (*this)[rule] = std::nullopt;
        continue;
      }
      if (!value.is_number())
        throw Error(ErrorCode::kUsage, fmt::format("{} is neither a number nor null", key));
      check_limit(key, value.get<double>());
      (*this)[rule] = value.get<double>();
    }
  } catch (const Error& e) {
    throw Error(ErrorCode::kUsage, fmt::format("the rule file {} cannot be used: {}", name, e.what()));
  }
}

bool FilterLimits::any() const {
  for (const auto& limit : limits)
    if (limit) return true;
  return false;
}

}  // namespace trainctl::data
