#include "runtime/train/tasks/packed_texts.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/error.h"

namespace trainctl {

namespace {

template <typename Value>
int first_of_largest(std::span<const Likelihood> endings, Value value) {
  size_t best = 0;
  for (size_t i = 1; i < endings.size(); ++i)
    if (value(endings[i]) > value(endings[best])) best = i;
  return int(best);
}

}  // namespace

int best_by_mean(std::span<const Likelihood> endings) {
  return first_of_largest(endings, [](const Likelihood& l) { return l.mean(); });
}
int best_by_sum(std::span<const Likelihood> endings) {
  return first_of_largest(endings, [](const Likelihood& l) { return l.log; });
}

void PackedTexts::take(std::span<const float> losses, std::span<Likelihood> of_texts) const {
  for (const Text& text : texts) {
    Likelihood& result = of_texts[text.number] = {.tokens = int64_t(text.end - text.begin)};
    for (size_t t = text.begin; t < text.end; ++t) result.log -= double(losses[t]);
  }
}

bool TextPacker::add(std::vector<int32_t> tokens, size_t first) {
  ENSURE(first >= 1 && first < tokens.size());
  const bool cut = tokens.size() - 1 > most_;
  if (cut) {
    const size_t away = tokens.size() - 1 - most_;
    ENSURE(first > away, "{} tokens from {}", tokens.size(), first);
    tokens.erase(tokens.begin(), tokens.begin() + ptrdiff_t(away));
    first -= away;
  }
  const size_t inputs = tokens.size() - 1;
  if (packed_.tokens.size() + inputs > most_) flush();
  const size_t begin = packed_.tokens.size();
  packed_.tokens.insert(packed_.tokens.end(), tokens.begin(), tokens.end() - 1);
  packed_.targets.insert(packed_.targets.end(), first - 1, -1);
  packed_.targets.insert(packed_.targets.end(), tokens.begin() + ptrdiff_t(first), tokens.end());
  packed_.starts.insert(packed_.starts.end(), inputs, int32_t(begin));
  packed_.texts.push_back({next_++, begin + first - 1, begin + inputs});
  return cut;
}

void TextPacker::flush() {
  if (packed_.texts.empty()) return;
  full_(packed_);
  packed_ = {};
}

int64_t pack_task(const TaskFile& file, std::optional<int32_t> start_token, int64_t seq_len,
                  const std::function<void(const PackedTexts&)>& full,
                  const std::function<void(int64_t examples)>& each) {
  TextPacker packer(seq_len, full);
  int64_t cut = 0, examples = 0;
  for (const TaskExample& example : file.examples) {
    ++examples;
    for (const std::vector<int32_t>& ending : example.endings) {
      if (int64_t(ending.size()) > seq_len)
        throw Error(ErrorCode::kData,
                    fmt::format("{}, example {}: an ending of {} tokens, but the model's sequences have {}",
                                file.path, examples, ending.size(), seq_len));
      std::vector<int32_t> tokens = example.context;
      if (tokens.empty() && !start_token)
        throw Error(
            ErrorCode::kData,
            fmt::format(
                "{}, example {} has no context, and the run does not say which tokenizer made "
                "its tokens, so that there is no token to begin with; give --tokenizer FILE (of a run: "
                "data.tokenizer)",
                file.path, examples));
      if (tokens.empty()) tokens.push_back(*start_token);
      const size_t first = tokens.size();
      tokens.insert(tokens.end(), ending.begin(), ending.end());
      cut += packer.add(std::move(tokens), first);
    }
    if (each) each(examples);
  }
  packer.flush();
  return cut;
}

RightEndings right_endings(const TaskFile& file, std::span<const Likelihood> of_endings) {
  RightEndings right;
  for (const TaskExample& example : file.examples) {
    const std::span endings = of_endings.first(example.endings.size());
    right.by_mean += best_by_mean(endings) == example.label;
    right.by_sum += best_by_sum(endings) == example.label;
    of_endings = of_endings.subspan(endings.size());
  }
  return right;
}

int64_t ending_count(const TaskFile& file) {
  int64_t count = 0;
  for (const TaskExample& example : file.examples) count += int64_t(example.endings.size());
  return count;
}

}  // namespace trainctl
