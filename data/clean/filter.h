// `trainctl data filter`: keeps the documents that rules accept.
#pragma once
#include <string>
#include <vector>

#include "data/clean/cleaning.h"
#include "data/clean/filter_rules.h"

namespace trainctl::data {

struct FilterOptions {
  CleaningOptions cleaning;
  FilterLimits limits;
  std::vector<std::string> languages;  ///< codes of CLD2; empty: any
  std::string fasttext;                ///< path of a model (data/clean/fasttext.h); "": none
  std::vector<std::string> labels;     ///< of that model, with or without __label__
  std::string blocklist;               ///< path of a list of words (data/clean/word_list.h); "": none
};

/// Holds each document to the rules in the order of FilterRule; the first that refuses it is its reason, one
/// for each rule in force. removed.jsonl has the value, the limit, and how the text begins. Languages without
/// a limit for FilterRule::min_language_share need half of the text, and labels a probability of a half; a
/// list without one for max_blocked_words allows none. Error(kUsage): no rule is in force; a language without
/// CLD2 or unknown to it; labels that the model does not have; a limit whose languages, model or list are
/// missing. Errors of clean_corpus and of FastTextModel::load.
CleaningResult filter(const FilterOptions& options);

}  // namespace trainctl::data
