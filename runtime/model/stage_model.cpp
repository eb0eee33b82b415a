#include "runtime/model/stage_impl.h"

namespace trainctl {

using kernels::Matrix;

StageModel::StageModel(StageUses uses, Options options, parallel::ShardedParams& params,
                       parallel::TensorParallel& tp, kernels::Backend& backend, kernels::Stream& stream,
                       StagePeers peers)
    : impl_(std::make_unique<Impl>(std::move(uses), std::move(options), params, tp, backend, stream, peers)) {
}
StageModel::~StageModel() = default;

void StageModel::weights_changed() {
  for (std::vector<bool>& virtual_stage : impl_->stale) virtual_stage.assign(virtual_stage.size(), true);
}

int StageModel::losses() const { return impl_->shape.cut.blocks_here(); }
int StageModel::loss_sums() const { return impl_->loss_sums(); }
int StageModel::mtp_modules() const { return int(impl_->mtp_layers.size()); }
kernels::Stream& StageModel::stream() { return impl_->stream; }
Matrix StageModel::input(int virtual_stage, int input) {
  return impl_->memory.inputs[size_t(virtual_stage)][size_t(input)];
}
void StageModel::use_input(int virtual_stage, int slot, int input) {
  impl_->slot(virtual_stage, slot).input() = this->input(virtual_stage, input);
}
Matrix StageModel::output(int virtual_stage, int slot) { return impl_->slot(virtual_stage, slot).output; }
Matrix StageModel::output_gradient(int virtual_stage, int slot) {
  return impl_->slot(virtual_stage, slot).output_gradient;
}
Matrix StageModel::input_gradient(int virtual_stage, int slot) {
  return impl_->slot(virtual_stage, slot).input_gradient;
}

void StageModel::pass(const Matrix& from, const Matrix& to) {
  impl_->backend.run(impl_->stream, kernels::Copy{.src = from, .dst = to});
}

int StageModel::parts(int virtual_stage) const { return int(impl_->uses_of(virtual_stage).parts.size()); }
const StagePart& StageModel::part(int virtual_stage, int part) const {
  return impl_->uses_of(virtual_stage).parts[size_t(part)];
}
void StageModel::take_weights(int virtual_stage, int part) { impl_->take_weights(virtual_stage, part); }
void StageModel::release_weights(int virtual_stage, int part) {
  impl_->stale[size_t(virtual_stage)][size_t(part)] = true;
}
StageModel::ExpertCounts StageModel::expert_counts(const StageUses& uses) {
  ExpertCounts counts{.sequences = uses.shape.rows / route_tokens(uses.shape)};
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages)
    for_each_layer(virtual_stage, [&](const LayerUses& layer) {
      const MoePlan* const moe = experts_of(*layer.plan);
      if (!moe) return;
      ++counts.layers, counts.experts = moe->experts;
      counts.of_source = counts.sequences / uses.shape.cut.blocks_here() / uses.shape.token_parts;
      counts.capacity = moe->dispatch(uses.shape).capacity;
    });
  return counts;
}
void StageModel::watch_experts(int32_t* host) { impl_->watched_experts = host; }
void StageModel::watch_losses(float* host) { impl_->watched_losses = host; }
std::span<const Margins> StageModel::margins() const { return impl_->margins; }
void StageModel::clear_margins() {
  for (const Margins& margins : impl_->margins)
    impl_->backend.run(
        impl_->stream,
        kernels::FillZero{.data = margins.sums.data, .size = size_t(margins.sums.count()) * sizeof(int32_t)});
}

void StageModel::forward(int virtual_stage, int slot, const MicroBatch& mb, bool train, double* loss,
                         int part) {
  impl_->forward(virtual_stage, slot, mb, train, loss, part);
}
void StageModel::copy_losses(float* losses) {
  impl_->backend.copy_to_host(impl_->stream, losses, impl_->memory.shared.loss,
                              size_t(impl_->shape.rows) * sizeof(float));
}
void StageModel::backward(int virtual_stage, int slot, const MicroBatch& mb, int part) {
  ENSURE(!impl_->options.split_backward);
  impl_->backward(virtual_stage, slot, mb, true, true, part);
}
void StageModel::backward_input(int virtual_stage, int slot, const MicroBatch& mb, int part) {
  ENSURE(impl_->options.split_backward);
  impl_->backward(virtual_stage, slot, mb, true, false, part);
}
void StageModel::backward_weight(int virtual_stage, int slot, const MicroBatch& mb, int part) {
  ENSURE(impl_->options.split_backward);
  impl_->backward(virtual_stage, slot, mb, false, true, part);
}

}  // namespace trainctl
