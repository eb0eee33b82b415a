#include "runtime/train/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/tensor_parallel.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/base/text.h"
#include "runtime/model/stage_model.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/save/checkpointing.h"

namespace trainctl {

namespace {

JobSpec single_rank(JobSpec job) {
  job.parallelism = {};
  job.batch = {.global_sequences = 1, .micro_sequences = 1};
  job.recompute = Recompute::full;  // layers share the memory of activations
  job.model.mtp = {};  // its parameters stay in the checkpoint
  return job;
}

/// What the model has read of a text.
struct Read {
  KeyValueCache cache;
  std::vector<int32_t> held = {};  ///< the tokens that it holds

  /// Begins a pass over `tokens`: over those that it does not hold, and always the last one. All but the last
  /// `most` are read at once; `logits` [V] is scratch.
  std::span<const int32_t> pass(std::span<const int32_t> tokens, size_t most, StageModel& model,
                                std::vector<float>& logits) {
    const auto known = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first;
    held.resize(std::min(size_t(known - held.begin()), tokens.size() - 1));  // a failure leaves no more
    for (;;) {
      cache.pass_from(int64_t(held.size()));
      const std::span<const int32_t> left = tokens.subspan(held.size());
      if (left.size() <= most) return left;
      const StageModel::Behind behind{&cache, left.first(most)};
      model.logits_behind({&behind, 1}, logits);
      held.insert(held.end(), left.begin(), left.begin() + ptrdiff_t(most));
    }
  }
};

}  // namespace

struct Generator::Impl {
  JobSpec job;
  kernels::Backend& backend;
  std::vector<std::unique_ptr<parallel::Communicator>> world = parallel::make_thread_world(1, 10.0);
  std::unique_ptr<kernels::Stream> stream = backend.create_stream();
  ModelTables tables;
  parallel::TensorParallel tp{*world[0], backend, *stream, false};
  std::unique_ptr<parallel::ShardedParams> params;
  std::unique_ptr<StageModel> model;
  Read read{{backend, job.data.seq_len}};

  size_t pass_tokens() const { return size_t(tables.shape.rows); }

  using Load = std::function<void(const ParamTable&, const RankState&)>;

  Impl(const JobSpec& j, kernels::Backend& b, int64_t pass_tokens, const Load& load)
      : job(single_rank(j)), backend(b), tables(model_tables(job)) {
    if (pass_tokens > 0) tables.shape.rows = std::min(job.data.seq_len, pass_tokens);
    tables.shape.local_rows = tables.shape.rows;
    ForwardPlan plan = make_forward_plan(
        {job, device_of_kind(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda), tables});
    const size_t saved = plan.params.bytes().saved;
    params = std::make_unique<parallel::ShardedParams>(
        std::move(plan.params), parallel::AxisGroups(*world[0], *world[0], nullptr), backend, *stream);
    model = std::make_unique<StageModel>(std::move(plan.uses), plan.model, *params, tp, backend, *stream);
    StateStaging staging(backend, *stream, staging_bytes(saved));
    load(tables.params, {*params, backend, *stream, staging});
    params->publish();
    model->weights_changed();
  }
};

Generator::Generator(const JobSpec& job, ckpt::Checkpoint& checkpoint, kernels::Backend& backend,
                     int64_t pass_tokens)
    : impl_(std::make_unique<Impl>(
          job, backend, pass_tokens,
          [&](const ParamTable& table, const RankState& state) { load_weights(table, checkpoint, state); })) {
}
Generator::Generator(const JobSpec& job, ckpt::TensorFolder& folder, kernels::Backend& backend,
                     int64_t pass_tokens)
    : impl_(std::make_unique<Impl>(
          job, backend, pass_tokens,
          [&](const ParamTable& table, const RankState& state) { load_weights(table, folder, state); })) {}
Generator::~Generator() = default;

int32_t pick_token(std::span<const float> logits, const GenerateOptions& options, uint64_t index) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t keep = options.temperature <= 0 ? 1
                      : options.top_k > 0      ? std::min(order.size(), size_t(options.top_k))
                                               : order.size();
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(keep), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  });
  if (keep == 1) return order[0];
  std::vector<double> weight(keep);
  double sum = 0;
  for (size_t i = 0; i < keep; ++i)
    sum += weight[i] = std::exp((double(logits[size_t(order[i])]) - logits[size_t(order[0])]) / options.temperature);
  double left = Philox(options.seed, RandomPurpose::kSample).uniform(index) * sum;
  for (size_t i = 0; i < keep; ++i)
    if ((left -= weight[i]) < 0) return order[i];
  return order[keep - 1];
}

std::vector<float> Generator::next_logits(std::span<const int32_t> tokens) {
  ENSURE(!tokens.empty());
  Impl& m = *impl_;
  std::vector<float> logits(size_t(m.job.model.vocab_size));
  const StageModel::Behind behind{&m.read.cache, m.read.pass(tokens, m.pass_tokens(), *m.model, logits)};
  m.model->logits_behind({&behind, 1}, logits);
  m.read.held.assign(tokens.begin(), tokens.end());
  return logits;
}

namespace {

/// A text that is being continued.
struct Text {
  size_t prompt = 0;
  std::vector<int32_t> tokens;
  std::unique_ptr<Read> read;
  int64_t generated = 0;
  bool ended = false;

  /// Beyond seq_len each token moves to another position, so that all are computed again.
  std::span<const int32_t> context(int64_t seq_len) const {
    return std::span(tokens).last(std::min(tokens.size(), size_t(seq_len)));
  }
  /// Error(kCheckpoint).
  void take(std::span<const float> logits, const GenerateOptions& options,
            const std::function<void(size_t, int32_t)>& each) {
    if (!std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); }))
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("the logits behind {} are not finite: the model's weights have diverged",
                              count_of(int64_t(tokens.size()), "token")));
    const int32_t next = pick_token(logits, options, uint64_t(generated));
    ended = next == options.stop_token;
    if (ended) return;
    tokens.push_back(next);
    ended = ++generated == options.tokens;
    each(prompt, next);
  }
};

/// One pass over the first of the texts that fit; returns how many these are.
size_t read_together(std::span<Text*> texts, StageModel& model, int64_t seq_len, size_t pass_tokens,
                     std::vector<float>& logits, size_t vocab_size) {
  std::vector<StageModel::Behind> together;
  size_t rows = 0;
  for (Text* text : texts) {
    logits.resize(vocab_size);
    const std::span<const int32_t> next =
        text->read->pass(text->context(seq_len), pass_tokens, model, logits);
    rows += next.size();
    if (!together.empty() && rows > pass_tokens) break;
    together.push_back({&text->read->cache, next});
  }
  logits.resize(together.size() * vocab_size);
  model.logits_behind(together, logits);
  for (size_t i = 0; i < together.size(); ++i) {
    const std::span<const int32_t> context = texts[i]->context(seq_len);
    texts[i]->read->held.assign(context.begin(), context.end());
  }
  return together.size();
}

}  // namespace

std::vector<std::vector<int32_t>> Generator::generate(
    std::vector<std::vector<int32_t>> prompts, const GenerateOptions& options,
    const std::function<void(size_t prompt, int32_t)>& each) {
  Impl& m = *impl_;
  const int64_t t = m.job.data.seq_len;
  const size_t v = size_t(m.job.model.vocab_size);
  std::vector<Text> texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ENSURE(!prompts[i].empty());
    Text& text = texts.emplace_back();
    text.prompt = i;
    text.tokens = prompts[i];
    text.ended = options.tokens <= 0;
    text.read.reset(new Read{{m.backend, std::min(t, int64_t(prompts[i].size()) + options.tokens)}});
  }
  std::vector<float> logits(v);
  const auto left = [&] {
    std::vector<Text*> on;
    for (Text& text : texts)
      if (!text.ended) on.push_back(&text);
    return on;
  };
  for (std::vector<Text*> on = left(); !on.empty(); on = left())
    for (std::span<Text*> rest = on; !rest.empty();) {
      const size_t count = read_together(rest, *m.model, t, m.pass_tokens(), logits, v);
      for (size_t i = 0; i < count; ++i) rest[i]->take(std::span(logits).subspan(i * v, v), options, each);
      rest = rest.subspan(count);
    }
  std::vector<std::vector<int32_t>> generated;
  for (const Text& text : texts)
    generated.emplace_back(text.tokens.end() - ptrdiff_t(text.generated), text.tokens.end());
  return generated;
}

std::vector<float> Generator::logits(std::span<const int32_t> tokens) {
  ENSURE(!tokens.empty());
  std::vector<float> logits(tokens.size() * size_t(impl_->job.model.vocab_size));
  impl_->model->logits(tokens, 0, logits);
  return logits;
}

std::vector<float> Generator::losses(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                                     std::span<const int32_t> document_start) {
  return impl_->model->losses(tokens, targets, document_start);
}

int64_t Generator::seq_len() const { return impl_->job.data.seq_len; }

}  // namespace trainctl
