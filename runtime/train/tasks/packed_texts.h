// The likelihood of texts, several of them in one sequence, each a document of its own.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/train/tasks/task_file.h"

namespace trainctl {

struct Likelihood {
  double log = 0;      ///< natural, of all tokens that count
  int64_t tokens = 0;  ///< so many
  double mean() const { return log / double(tokens); }
};

/// The ending with the largest mean, or sum; of equals the first.
int best_by_mean(std::span<const Likelihood> endings);
int best_by_sum(std::span<const Likelihood> endings);

/// A sequence of texts.
struct PackedTexts {
  std::vector<int32_t> tokens, targets,
      starts;  ///< of each token its target, -1: none, and the first of its text
  struct Text {
    size_t number;      ///< counted from 0
    size_t begin, end;  ///< its targets that count
  };
  std::vector<Text> texts;

  /// The likelihoods of its texts, from the loss of each token.
  ///   of_texts  by their numbers
  void take(std::span<const float> losses, std::span<Likelihood> of_texts) const;
};

class TextPacker {
 public:
  /// `full` gets one sequence of at most `seq_len` tokens after another.
  TextPacker(int64_t seq_len, std::function<void(const PackedTexts&)> full)
      : most_(size_t(seq_len)), full_(std::move(full)) {}

  /// Packs the next text, of which the tokens from `first` (>= 1) on count. Of a text longer than a sequence,
  /// the end is taken; returns whether that was so. What counts must fit.
  bool add(std::vector<int32_t> tokens, size_t first);
  void flush();

 private:
  const size_t most_;
  const std::function<void(const PackedTexts&)> full_;
  PackedTexts packed_;
  size_t next_ = 0;  // number
};

/// Packs each ending of each example behind its context, in their order. Returns how many contexts were cut at
/// their beginning to fit. `start_token` is the context of those that have none. Error(kData): there is none,
/// or an ending is longer than a sequence.
///   each  is called after each example
int64_t pack_task(const TaskFile& file, std::optional<int32_t> start_token, int64_t seq_len,
                  const std::function<void(const PackedTexts&)>& full,
                  const std::function<void(int64_t examples)>& each = {});

/// Of how many examples the right ending is the likeliest.
struct RightEndings {
  int64_t by_mean = 0, by_sum = 0;
};
/// `of_endings`: in the order of pack_task.
RightEndings right_endings(const TaskFile& file, std::span<const Likelihood> of_endings);
int64_t ending_count(const TaskFile& file);

}  // namespace trainctl
