#include "data/clean/filter.h"

#include <algorithm>

#include "data/clean/clean_corpus.h"
#include "data/clean/fasttext.h"
#include "data/clean/language.h"
#include "data/clean/text_measures.h"
#include "data/clean/word_list.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr double kLanguageShare = 0.5, kLabelProbability = 0.5;

/// The first characters of a text, as a JSON string.
std::string beginning_of(std::string_view text) {
  constexpr size_t kShown = 80;
  size_t end = std::min(kShown, text.size());
  while (end > 0 && end < text.size() && (uint8_t(text[end]) & 0xc0) == 0x80) --end;
  return json_string(std::string(text.substr(0, end)));
}

/// What holds documents to the rules. Immutable; measures are of a thread.
class Filter {
 public:
  explicit Filter(const FilterOptions& options) : limits_(options.limits), languages_(options.languages) {
    using R = FilterRule;
    if (!languages_.empty() && !limits_[R::min_language_share])
      limits_[R::min_language_share] = kLanguageShare;
    if (!options.blocklist.empty() && !limits_[R::max_blocked_words]) limits_[R::max_blocked_words] = 0;
    if (limits_[R::min_language_share] && languages_.empty())
      throw Error(ErrorCode::kUsage, "the rule min_language_share needs --language");
    if (limits_[R::max_blocked_words] && options.blocklist.empty())
      throw Error(ErrorCode::kUsage, "the rule max_blocked_words needs --blocklist");
    if (!options.fasttext.empty() && !limits_[R::min_label_probability])
      limits_[R::min_label_probability] = kLabelProbability;
    if (options.fasttext.empty() != options.labels.empty() ||
        (limits_[R::min_label_probability] && options.fasttext.empty()))
      throw Error(ErrorCode::kUsage,
                  "a model needs the labels to keep, and they a model: give both --fasttext and --label");
    if (!limits_.any())
      throw Error(
          ErrorCode::kUsage,
          "there is no rule to filter by; give --rules gopher, --rule NAME=LIMIT, --language or --blocklist");
    for (const std::string& code : languages_) check_language(code);
    FileSystem& fs =
        options.cleaning.file_system != nullptr ? *options.cleaning.file_system : real_file_system();
    if (!options.blocklist.empty()) list_ = WordList(read_list(fs, options.blocklist), options.blocklist);
    if (!options.fasttext.empty()) {
      model_ = FastTextModel::load(fs, options.fasttext);
      for (const std::string& label : options.labels) labels_.push_back(index_of(label, options.fasttext));
    }
    for (size_t i = 0; i < kFilterRules; ++i)
      if (limits_.limits[i]) rules_.push_back(FilterRule(i));
  }

  std::vector<std::string> reasons() const {
    std::vector<std::string> names;
    for (const FilterRule rule : rules_) names.emplace_back(text_of(rule).name);
    return names;
  }

  std::optional<Removal> examine(std::string_view text, TextMeasures& measures) const {
    measures.take(text);
    for (size_t i = 0; i < rules_.size(); ++i) {
      const FilterRule rule = rules_[i];
      const double limit = *limits_[rule];
      std::string details;
      const double value = rule == FilterRule::max_blocked_words       ? blocked_words(text, details)
                           : rule == FilterRule::min_language_share    ? language_share(text, details)
                           : rule == FilterRule::min_label_probability ? label_probability(text, details)
                                                                       : measures.value(rule);
      if (text_of(rule).is_minimum() ? value >= limit : value <= limit) continue;
      return Removal{i, fmt::format(",\"value\":{:.6g},\"limit\":{:.6g}{},\"begins\":{}", value, limit,
                                    details, beginning_of(text))};
    }
    return std::nullopt;
  }

 private:
  static std::string read_list(FileSystem& fs, const std::string& path) {
    try {
      return fs.read_text(path);
    } catch (const Error& e) {
      throw Error(ErrorCode::kUsage, fmt::format("--blocklist cannot be read: {}", e.what()));
    }
  }
  double blocked_words(std::string_view text, std::string& details) const {
    const WordList::Hits hits = list_.hits(text);
    details = ",\"word\":" + json_string(hits.first);
    return double(hits.count);
  }
  double language_share(std::string_view text, std::string& details) const {
    const std::vector<LanguageShare> found = languages_of(text);
    double share = 0;
    for (const LanguageShare& language : found)
      if (std::find(languages_.begin(), languages_.end(), language.code) != languages_.end())
        share += language.share;
    details = ",\"language\":" + (found.empty() ? std::string("null") : json_string(found[0].code));
    return share;
  }

  size_t index_of(std::string_view label, const std::string& path) const {
    constexpr std::string_view kPrefix = "__label__";
    constexpr size_t kShown = 20;
    if (label.starts_with(kPrefix)) label.remove_prefix(kPrefix.size());
    std::string some;
    for (size_t i = 0; i < model_.labels().size(); ++i) {
      if (model_.labels()[i] == label) return i;
      if (i < kShown) some += (i > 0 ? ", " : "") + model_.labels()[i];
    }
    throw Error(ErrorCode::kUsage, fmt::format("{} has no label `{}`; it has {}{}", path, label, some,
                                               model_.labels().size() > kShown ? ", ..." : ""));
  }
  double label_probability(std::string_view text, std::string& details) const {
    const std::vector<double> all = model_.probabilities(text);
    details = ",\"label\":null";
    if (all.empty()) return 0;
    details = ",\"label\":" +
              json_string(model_.labels()[size_t(std::max_element(all.begin(), all.end()) - all.begin())]);
    double sum = 0;
    for (const size_t label : labels_) sum += all[label];
    return sum;
  }

  FilterLimits limits_;
  std::vector<std::string> languages_;
  FastTextModel model_;
  std::vector<size_t> labels_;  // of model_, that are wanted
  WordList list_;
  std::vector<FilterRule> rules_;  // those in force
};

}  // namespace

CleaningResult filter(const FilterOptions& options) {
  const Filter filter(options);
  using Facts = std::optional<Removal>;
  return clean_corpus<Facts>(
      options.cleaning, filter.reasons(), "filtering",
      [&]() -> std::function<Facts(std::string_view)> {
        return [&filter, measures = std::make_shared<TextMeasures>()](std::string_view text) {
          return filter.examine(text, *measures);
        };
      },
      [](const Facts& facts, const CleanedRecord&) { return facts; });
}

}  // namespace trainctl::data
