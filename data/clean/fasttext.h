// FastTextModel: a classifier of texts that fastText has trained (`fasttext supervised`), read from its .bin
// file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl::data {

/// Source of format and arithmetic: github.com/facebookresearch/fastText, version 12 of the file (and 11).
/// Immutable after load; any thread. Memory: the size of the file.
class FastTextModel {
 public:
  /// Error(kData), one sentence: the file is missing, damaged, no model of fastText, not supervised, or
  /// quantised (.ftz).
  static FastTextModel load(FileSystem& fs, const std::string& path);

  /// Without their prefix __label__, the most frequent first.
  const std::vector<std::string>& labels() const { return labels_; }
  /// The probability of each label for a text, in their order; empty if no word or part of a word is known.
  /// Line ends count as spaces. As `predict` of fastText, whose tables for the logistic function are off by
  /// up to 0.01.
  std::vector<double> probabilities(std::string_view text) const;

 private:
  enum class Loss { hierarchical = 1, negative_sampling = 2, softmax = 3, one_vs_all = 4 };
  struct Matrix {
    uint64_t rows = 0, columns = 0;
    std::vector<float> values;
    const float* row(uint64_t i) const { return values.data() + i * columns; }
  };
  struct Node {
    int32_t left = -1, right = -1;
    int64_t count = 0;
  };
  class Reader;

  void read_dictionary(Reader& reader);
  void build_tree(const std::vector<int64_t>& counts);
  void add_hash(uint64_t hash, std::vector<int64_t>& rows) const;
  void add_parts(std::string_view word, std::vector<int64_t>& rows) const;
  std::vector<int64_t> rows_of(std::string_view text) const;
  double score(uint64_t output_row, const std::vector<float>& hidden) const;

  int32_t word_ngrams_ = 1, buckets_ = 0, shortest_part_ = 0, longest_part_ = 0;
  Loss loss_ = Loss::softmax;
  int64_t words_ = 0;
  bool is_pruned_ = false;
  std::unordered_map<std::string, int64_t> ids_;      // of words, and -1 of labels
  std::unordered_map<int64_t, int64_t> pruned_rows_;  // of hashes that are left, if is_pruned_
  std::vector<std::string> labels_;
  std::vector<Node> tree_;  // of the hierarchical loss: a leaf for each label, then inner nodes
  Matrix input_, output_;
};

}  // namespace trainctl::data
