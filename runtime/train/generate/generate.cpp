#include "runtime/train/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/tensor_parallel.h"
#include "runtime/base/philox.h"
#include "runtime/model/stage_model.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/save/checkpointing.h"

namespace trainctl {

namespace {

JobSpec single_rank(JobSpec job) {
  job.parallelism = {};
  job.batch = {.global_sequences = 1, .micro_sequences = 1};
  job.recompute = Recompute::none;
  job.model.mtp = {};  // its parameters stay in the checkpoint
  return job;
}

}  // namespace

struct Generator::Impl {
  JobSpec job;
  kernels::Backend& backend;
  std::vector<std::unique_ptr<parallel::Communicator>> world = parallel::make_thread_world(1, 10.0);
  std::unique_ptr<kernels::Stream> stream = backend.create_stream();
  ModelTables tables = model_tables(job);
  parallel::TensorParallel tp{*world[0], backend, *stream, false};
  std::unique_ptr<parallel::ShardedParams> params;
  std::unique_ptr<StageModel> model;
  KeyValueCache cache{backend, job.data.seq_len};
  std::vector<int32_t> cached;  ///< the tokens that it holds

  using Load = std::function<void(const ParamTable&, const RankState&)>;

  Impl(const JobSpec& j, kernels::Backend& b, const Load& load) : job(single_rank(j)), backend(b) {
    RankPlan plan = make_rank_plan(
        job, device_of_kind(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda), tables, {});
    params = std::make_unique<parallel::ShardedParams>(
        std::move(plan.params), parallel::AxisGroups(*world[0], *world[0], nullptr), backend, *stream);
    model = std::make_unique<StageModel>(std::move(plan.uses), plan.model, *params, tp, backend, *stream);
    StateStaging staging(backend, *stream, staging_bytes(plan.memory.sharding.saved));
    load(tables.params, {*params, backend, *stream, staging});
    params->publish();
    model->weights_changed();
  }
};

Generator::Generator(const JobSpec& job, ckpt::Checkpoint& checkpoint, kernels::Backend& backend)
    : impl_(std::make_unique<Impl>(job, backend, [&](const ParamTable& table, const RankState& state) {
        load_state(table, checkpoint, state);
      })) {}
Generator::Generator(const JobSpec& job, ckpt::TensorFolder& folder, kernels::Backend& backend)
    : impl_(std::make_unique<Impl>(job, backend, [&](const ParamTable& table, const RankState& state) {
        import_weights(table, folder, state);
      })) {}
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
  // A GPU's attention computes queries at the positions of their keys only.
  if (!m.backend.is_host()) {
    m.model->logits(tokens, int64_t(tokens.size()) - 1, logits);
    return logits;
  }
  const auto known = std::mismatch(m.cached.begin(), m.cached.end(), tokens.begin(), tokens.end()).first;
  const size_t begin = std::min(size_t(known - m.cached.begin()), tokens.size() - 1);
  m.cached.resize(begin);  // a failure leaves no more than that
  m.cache.pass_from(int64_t(begin));
  m.model->logits_behind(m.cache, tokens.subspan(begin), logits);
  m.cached.assign(tokens.begin(), tokens.end());
  return logits;
}

std::vector<int32_t> Generator::generate(std::vector<int32_t> tokens, const GenerateOptions& options,
                                         const std::function<void(int32_t)>& each) {
  ENSURE(!tokens.empty());
  impl_->cached.clear();  // so that the text has the same bits whatever was generated before
  std::vector<int32_t> generated;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // Beyond seq_len each token moves to another position, so that all are computed again.
    const size_t count = std::min(tokens.size(), size_t(impl_->job.data.seq_len));
    const int32_t next = pick_token(next_logits(std::span(tokens).last(count)), options, uint64_t(i));
    if (next == options.stop_token) break;
    tokens.push_back(next);
    generated.push_back(next);
    each(next);
  }
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
