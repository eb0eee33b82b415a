#include "runtime/train/generate/sample.h"

#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/generate/asked_format.h"
#include "runtime/train/tasks/task_file.h"

namespace trainctl {
namespace {

/// More tokens at once are hardly faster, and take memory.
constexpr int64_t kPassTokens = 512;

/// The longest start of `text` that ends on a whole UTF-8 character.
size_t whole_characters(const std::string& text) {
  size_t n = text.size();
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const unsigned char c = static_cast<unsigned char>(text[text.size() - back]);
    if (c < 0x80) break;
    if (c < 0xC0) continue;
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (back < length) n = text.size() - back;
    break;
  }
  return n;
}

}  // namespace

std::unique_ptr<kernels::Backend> one_device(DeviceUse use, int threads) {
  use.choice = DeviceChoice::automatic;  // a run made on GPUs is sampled anywhere
  use.ranks = use.ranks_per_gpu = 1;
  use.threads_per_rank = threads;
  return make_rank_backend(use, device_kind(use), 0);
}

Sampler::Sampler(FileSystem& fs, TrainedModel& model, const SampleRequest& request)
    : step_(model.step), options_(request.options) {
  JobSpec job = in_format(model.job, request.compute);
  const data::TokenizerChoice choice = tokenizer_for(fs, job.data, request.tokenizer);
  if (!choice.is_given())
    throw Error(ErrorCode::kData, fmt::format("{} does not say which tokenizer made the tokens; give "
                                              "--tokenizer FILE (or `bytes`)",
                                              model.path));
  tokenizer_ = data::open_tokenizer(choice);
  if (tokenizer_->vocab_size() > job.model.vocab_size)
    throw Error(
        ErrorCode::kData,
        fmt::format("tokenizer {} has {} ids but the model was trained with {}; give the tokenizer of "
                    "the run with --tokenizer",
                    tokenizer_->name(), tokenizer_->vocab_size(), job.model.vocab_size));
  backend_ = one_device(job, request.threads);
  generator_ = model.on(*backend_, job, kPassTokens);
  options_.stop_token = tokenizer_->end_of_text();
}

std::vector<SampleResult> Sampler::write(const std::vector<std::string>& prompts,
                                         const std::function<void(size_t prompt, const std::string&)>& each) {
  std::vector<std::vector<int32_t>> tokens, all(prompts.size());
  for (const std::string& prompt : prompts) {
    tokens.push_back(tokenizer_->encode(prompt));
    if (tokens.back().empty()) tokens.back().push_back(tokenizer_->end_of_text());
  }
  std::vector<SampleResult> results(prompts.size());
  std::vector<size_t> shown(prompts.size());
  const double begin = real_clock().monotonic_s();
  generator_->generate(tokens, options_, [&](size_t i, int32_t token) {
    SampleResult& result = results[i];
    all[i].push_back(token);
    result.text = tokenizer_->decode(all[i]);
    result.seconds = real_clock().monotonic_s() - begin;
    const size_t whole = whole_characters(result.text);
    if (whole > shown[i]) each(i, result.text.substr(shown[i], whole - shown[i]));
    shown[i] = std::max(shown[i], whole);
  });
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (shown[i] < results[i].text.size()) each(i, results[i].text.substr(shown[i]));
    results[i].step = step_;
    results[i].tokens = int64_t(all[i].size());
  }
  return results;
}

}  // namespace trainctl
